"""The program as the kubelet or a person starts it: arguments, exit codes, signals."""

import signal

import pytest

from tests.sidecar.parts import BY_HAND, CAP, ENDS_SOON, PROGRAM, Ground, a_ground
from webhook.names import ENFORCER_RUN_PATH
from webhook.sidecar.__main__ import main
from webhook.sidecar.heartbeat import RUN_FOLDER

BOTH = (PROGRAM, BY_HAND)
WRONG = [
    ["--nonsense"], ["enforce"], ["--run-folder"], ["--run-folder="], ["--run-folder", ""],
    ["--self-test=yes"], ["--self-test", "--self-tests"], ["startup"], ["-x"],
]  # fmt: skip


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
    assert "[--run-folder FOLDER]" in capsys.readouterr().err


@pytest.mark.parametrize("command", [None, BY_HAND], ids=["sidecar", "by hand"])
@pytest.mark.parametrize("arguments", [["--nonsense"], ["startup"]], ids=" ".join)
def test_wrong_usage_ends_with_two_whoever_starts_it(command, arguments, without_library):
    more = {} if command is None else {"command": command}
    ended = without_library.run(*arguments, **more)
    assert (ended.code, ended.events) == (2, [])
    assert "sage: " in ended.errors


@pytest.mark.parametrize("arguments", [[], ["--self-test"]], ids=["guard", "self-test"])
@pytest.mark.parametrize("environment", [{}, {"VRAM_CAP_BYTES": "8Gi", "VRAM_GRACE": "soon"}])
def test_wrong_settings_end_it_with_seventy_and_one_line(arguments, environment, without_library):
    ended = without_library.run(*arguments, command=ENDS_SOON, **environment)
    assert (ended.code, ended.errors) == (70, "")
    (verdict,) = ended.events
    assert (verdict["level"], verdict["msg"]) == ("error", "self-test")
    assert verdict["ability"] == "blind"
    assert all(name in verdict["why"] for name in environment)
    message = without_library.termination_log.read_text(encoding="utf-8")
    assert message == f"self-test: {verdict['why']}\n"


@pytest.mark.parametrize("arguments", [[], ["--self-test"]], ids=["guard", "self-test"])
def test_no_library_ends_it_with_seventy_and_one_line(arguments, without_library):
    ended = without_library.run(*arguments, command=ENDS_SOON, **CAP)
    assert (ended.code, ended.errors) == (70, "")
    (verdict,) = ended.events
    assert "libnvidia-ml.so.1: cannot open shared object file" in verdict["why"]
    assert verdict["checks"]["library"]["holds"] is False
    assert not (without_library.run_folder / "heartbeat").exists()


@pytest.mark.parametrize("arguments", [[], ["--self-test"]], ids=["guard", "self-test"])
@pytest.mark.parametrize("command", [ENDS_SOON, BY_HAND], ids=["sidecar", "by hand"])
def test_an_empty_list_of_gpus_ends_it_with_seventy(command, arguments, ground):
    ended = ground.run(*arguments, command=command, **CAP, VRAM_GPUS="")
    (verdict,) = ended.events
    assert (ended.code, verdict["msg"], verdict["ability"]) == (70, "self-test", "blind")
    assert verdict["why"].startswith("VRAM_GPUS: is empty: ")
    # A self-test in addition to the running enforcer must leave nothing for the enforcer's probes.
    assert bool(list(ground.run_folder.iterdir())) is not bool(arguments)


def test_the_run_folder_is_the_one_that_is_mounted():
    assert RUN_FOLDER == ENFORCER_RUN_PATH


@pytest.mark.parametrize("environment", [CAP, {}, {"VRAM_CAP_BYTES": "1", "VRAM_GPUS": "GPU-x"}])
def test_by_hand_it_is_the_same_program(environment, ground):
    lines = [ground.run("--self-test", command=command, **environment) for command in BOTH]
    for line in lines:
        assert line.events[0].pop("ts")
    assert lines[0] == lines[1]
    assert "GPU-x" not in str(environment) or "GPU-x" in lines[0].events[0]["why"]


def test_a_signal_to_stop_ends_a_guard_with_nought(pod):
    def incident(p):
        p.guard(by=PROGRAM)
        p.enforcer.send_signal(signal.SIGTERM)
        figures = p.end(), p.messages, p.events("self-test")[0], p.events("last words")[0]["s"]
        return *figures, p.outputs[1].read_text()

    code, messages, verdict, seconds, message = pod.run(incident)
    assert (code, messages, verdict["ability"]) == (0, ["self-test", "stopped"], "full")
    assert verdict["why"].startswith("Driver 570.86.15 ")
    peak = "no peak was measured, the cap is 1000Mi, nothing was stopped, guarded for"
    figures = f'{{"v":1,"cap":1048576000,"peak":{{}},"stops":0,"s":{seconds}}}'
    said = f"ended: {peak} {seconds}s"
    assert message == f"self-test: {verdict['why']}\n{said}\n{figures}\n"
