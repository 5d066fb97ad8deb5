"""The program as the kubelet starts it, and as a person does: words, exit codes, signals."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sidecar.parts import CAP, PROGRAM, Ground, a_ground, in_pod, wait_until
from webhook.sidecar.__main__ import main
from webhook.sidecar.heartbeat import Heartbeat, leave_verdict

BY_HAND = ("-m", "webhook.cli", "enforce")
BOTH = (PROGRAM, BY_HAND)
WRONG = [
    ["--nonsense"],
    ["enforce"],
    ["--probe"],
    ["--probe="],
    ["--probe=", "startup"],
    ["--probe", ""],
    ["--probe", "readiness"],
    ["--probe=self-test"],
    ["--run-folder"],
    ["--run-folder="],
    ["--self-test=yes"],
    ["--self-test", "--self-tests"],
    ["startup"],
    ["-x"],
]


@pytest.fixture
def ground(tmp_path, tmp_path_factory):
    return a_ground(tmp_path, tmp_path_factory)


@pytest.fixture
def without_library(tmp_path):
    return Ground(tmp_path, library=tmp_path)


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_is_told_and_nothing_is_done(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: python3 -m webhook.sidecar ")


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_no_error(word, capsys):
    assert main([word]) == 0
    assert "--probe startup|liveness" in capsys.readouterr().err


@pytest.mark.parametrize("command", [None, BY_HAND], ids=["sidecar", "by hand"])
@pytest.mark.parametrize("arguments", [["--nonsense"], ["--probe", "readiness"]], ids=" ".join)
def test_wrong_usage_ends_with_two_whoever_starts_it(command, arguments, without_library):
    more = {} if command is None else {"command": command}
    ended = without_library.run(*arguments, **more)
    assert (ended.code, ended.events) == (2, [])
    assert "sage: " in ended.errors


@pytest.mark.parametrize("joined", [False, True])
def test_options_are_read_with_and_without_an_equals_sign(joined, tmp_path):
    options = ["--probe=startup", f"--run-folder={tmp_path}"]
    if not joined:
        options = [word for option in options for word in option.split("=", 1)]
    command = [sys.executable, *PROGRAM, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    want = "not guarding yet: the self-test has not finished\n"
    assert (ended.returncode, ended.stdout) == (1, want)


@pytest.mark.parametrize("kind", ["startup", "liveness"])
def test_a_probe_by_hand_answers_as_the_kubelets_does(kind, without_library):
    for command in BOTH:
        ended = subprocess.run(
            [sys.executable, *command, *without_library.options, "--probe", kind],
            env=without_library.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        want = "not guarding yet: the self-test has not finished\n"
        assert (ended.returncode, ended.stdout, ended.stderr) == (1, want, "")


@pytest.mark.parametrize("command", BOTH, ids=" ".join)
def test_a_liveness_probe_by_hand_reports_a_verdict_once(command, tmp_path, without_library):
    Heartbeat(str(tmp_path)).beat()
    probe = [sys.executable, *command, "--probe", "liveness", "--run-folder", str(tmp_path)]

    def asked():
        ended = subprocess.run(
            probe, env=without_library.environment, capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout, ended.stderr

    assert asked() == (0, "guarding\n", "")
    leave_verdict(str(tmp_path), "stopping a process: why")
    assert asked() == (1, "stopping a process: why\n", "")
    assert asked() == (0, "guarding\n", "")


@pytest.mark.parametrize("arguments", [[], ["--self-test"]], ids=["guard", "self-test"])
@pytest.mark.parametrize("environment", [{}, {"VRAM_CAP_BYTES": "8Gi", "VRAM_GRACE": "soon"}])
def test_wrong_settings_end_it_with_seventy_and_one_line(arguments, environment, without_library):
    ended = without_library.run(*arguments, **environment)
    assert (ended.code, ended.errors) == (70, "")
    (verdict,) = ended.events
    assert (verdict["level"], verdict["msg"]) == ("error", "self-test")
    assert verdict["ability"] == "blind"
    assert all(name in verdict["why"] for name in environment)
    message = without_library.termination_log.read_text(encoding="utf-8")
    assert message == f"self-test: {verdict['why']}\n"


@pytest.mark.parametrize("arguments", [[], ["--self-test"]], ids=["guard", "self-test"])
def test_no_library_ends_it_with_seventy_and_one_line(arguments, without_library):
    ended = without_library.run(*arguments, **CAP)
    assert (ended.code, ended.errors) == (70, "")
    (verdict,) = ended.events
    assert "libnvidia-ml.so.1: cannot open shared object file" in verdict["why"]
    assert verdict["checks"]["library"]["holds"] is False
    assert not (without_library.run_folder / "heartbeat").exists()


def test_a_pod_bound_past_the_webhook_is_told_why_it_has_no_library(without_library):
    (verdict,) = without_library.run(**CAP, NVIDIA_VISIBLE_DEVICES="").events
    assert verdict["why"].endswith("Delete the pod, so that it is bound again.")


@pytest.mark.parametrize(
    "environment", [CAP, {}, {"VRAM_CAP_BYTES": "1", "NVIDIA_VISIBLE_DEVICES": "GPU-x"}]
)
def test_by_hand_it_is_the_same_program(environment, ground):
    lines = [ground.run("--self-test", command=command, **environment) for command in BOTH]
    for one in lines:
        assert one.events[0].pop("ts")
    assert lines[0] == lines[1]
    assert "GPU-x" not in str(environment) or "GPU-x" in lines[0].events[0]["why"]


def guarded(act, ground, monkeypatch, **environment):
    """Let the program guard in a namespace, do something to it, and return how it ended."""

    def scenario():
        import json  # noqa: PLC0415  # it runs elsewhere

        log = Path(os.environ["GROUND_RUN_FOLDER"], "said")
        with log.open("w", encoding="utf-8") as said:
            program = subprocess.Popen(
                json.loads(os.environ["GROUND_COMMAND"]),
                env=json.loads(os.environ["GROUND_ENVIRONMENT"]) | json.loads(os.environ["MORE"]),
                stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip
        wait_until(Path(os.environ["GROUND_RUN_FOLDER"], "heartbeat").exists)
        stub = Path(os.environ["GROUND_STUB_FILE"])
        if act := os.environ["ACT"]:
            beside = stub.with_name("beside")
            beside.write_text(act, encoding="ascii")
            beside.replace(stub)
        else:
            program.send_signal(int(os.environ["SIGNAL"]))
        code = program.wait(timeout=60)
        return [code, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]]

    number = act if isinstance(act, int) else 0
    ground.offer(
        monkeypatch,
        ACT="" if number else act,
        SIGNAL=str(int(number)),
        MORE=json.dumps({"VRAM_POLL_INTERVAL": "0.1"} | environment),
    )
    code, events = in_pod(scenario)
    return code, events, ground.termination_log.read_text(encoding="utf-8")


NOTHING = "no peak was measured, the cap is 1Mi, nothing was stopped, guarded for "


def final_figures(event):
    """Return what the last event says that the termination message ends with."""
    assert event["msg"] == "last words"
    assert event["why"] == f"{NOTHING}{event['s']}s"
    figures = f'{{"v":1,"cap":1000,"peak":{{}},"stops":0,"s":{event["s"]}}}'
    return f"ended: {event['why']}\n{figures}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_ends_a_guard_with_nought(number, ground, monkeypatch):
    code, events, message = guarded(number, ground, monkeypatch)
    said = [event["msg"] for event in events]
    assert (code, said) == (0, ["self-test", "last words", "stopped"])
    assert events[0]["ability"] == "full"
    assert message == f"self-test: {events[0]['why']}\n{final_figures(events[1])}"
    assert message.startswith("self-test: Driver 565.57.01 ")


def test_a_driver_that_was_replaced_ends_a_guard_with_seventy_five(ground, monkeypatch):
    gpu = "gpu GPU-a total=100000\n"
    code, events, message = guarded(f"{gpu}fail * 18\n", ground, monkeypatch)
    *_, changed, words = events
    assert (code, changed["level"], changed["msg"]) == (75, "error", "the driver changed")
    assert "only a new container gets the new one" in changed["why"]
    assert message == f"the driver changed: {changed['why']}\n{final_figures(words)}"


def test_a_pod_that_must_restart_ends_a_guard_with_eighty_eight(ground, monkeypatch):
    code, events, message = guarded(
        "fail * 999\n", ground, monkeypatch,
        VRAM_BLIND_AFTER="1s", VRAM_WHEN_BLIND="Terminate", VRAM_GRACE="0s",
    )  # fmt: skip
    *_, ended, words = events
    assert (code, ended["msg"]) == (88, "the pod must restart")
    assert message == f"the pod must restart: {ended['why']}\n{final_figures(words)}"
