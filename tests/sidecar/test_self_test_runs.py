"""The self-test with a real library, real processes and the real program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sidecar.parts import SLEEPS, a_ground, as_user, events_of, in_pod, start

GPU = "gpu GPU-a total=1000 mig=0\n"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"
FOUND = {
    GPU: (0, "full", []),
    None: (70, "blind", ["library"]),
    f"{GPU}fail * 999\n": (70, "blind", ["library"]),
    f"{GPU}fail nvmlSystemGetDriverVersion 18\n": (70, "blind", ["library"]),
    f"driver 550.54.14\n{GPU}": (70, "blind", ["driver"]),
    "driver 565.57.01\n": (70, "blind", ["gpus"]),
    "gpu GPU-a total=1000 mig=1\n": (70, "blind", ["gpus"]),
    f"{GPU}fail {LISTS} 4\n": (70, "blind", ["gpus"]),
}


def outcomes(ground, monkeypatch, texts, **command):
    """Run the self-test once with each text for the stub, and return code and verdict."""

    def scenario():
        import json  # noqa: PLC0415  # it runs elsewhere

        stub = Path(os.environ["GROUND_STUB_FILE"])
        found = []
        for text in json.loads(os.environ["STUB_TEXTS"]):
            stub.unlink(missing_ok=True)
            if text is not None:
                stub.write_text(text, encoding="ascii")
            ended = subprocess.run(
                [*json.loads(os.environ["GROUND_COMMAND"]), "--self-test"],
                env=json.loads(os.environ["GROUND_ENVIRONMENT"]),
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            found.append([ended.returncode, ended.stdout, ended.stderr])
        return found

    ground.offer(monkeypatch, STUB_TEXTS=json.dumps(list(texts)), **command)
    found = in_pod(scenario)
    assert [errors for _, _, errors in found] == [""] * len(texts)
    return [(code, *events_of(said)) for code, said, _ in found]


def test_every_outcome_is_one_line_of_the_real_program(tmp_path, tmp_path_factory, monkeypatch):
    ground = a_ground(tmp_path, tmp_path_factory)
    found = outcomes(ground, monkeypatch, FOUND)
    for (code, verdict), want in zip(found, FOUND.values(), strict=True):
        failed = [name for name, check in verdict["checks"].items() if check["holds"] is False]
        assert (code, verdict["ability"], failed) == want


def test_by_hand_the_self_test_ends_by_itself_too(tmp_path, tmp_path_factory, monkeypatch):
    ground = a_ground(tmp_path, tmp_path_factory)
    by_hand = {"program": ("-m", "webhook.cli", "enforce")}
    ((code, verdict),) = outcomes(ground, monkeypatch, [GPU], **by_hand)
    assert (code, verdict["ability"]) == (0, "full")


@pytest.mark.parametrize(
    ("failed", "code", "level", "ability"),
    [
        ([], 0, "info", "full"),
        (["permission"], 0, "warning", "observe"),
        (["gpus"], 70, "error", "blind"),
        (["permission", "gpus"], 70, "error", "blind"),
    ],
)
def test_only_what_cannot_be_measured_keeps_a_workload_from_starting(
    failed, code, level, ability, tmp_path
):
    script = """
import sys
from webhook.sidecar import journal, program, selftest
checks = [selftest.SelfCheck(name, False, f"No {name}.") for name in sys.argv[3:]]
program.self_test = lambda nvml, placed: selftest.SelfTest(tuple(checks))
environment = {"VRAM_CAP_BYTES": "1"}
ours = journal.EnforcerJournal(1, sys.argv[2])
sys.exit(program.enforce(environment, sys.argv[1], ours, only_test=True))
"""
    log = tmp_path / "termination-log"
    log.touch()
    ended = subprocess.run(
        [sys.executable, "-I", "-c", script, tmp_path, log, *failed],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    (verdict,) = events_of(ended.stdout)
    assert (ended.returncode, ended.stderr) == (code, "")
    assert (verdict["level"], verdict["ability"]) == (level, ability)
    why = " ".join(f"No {name}." for name in failed)
    assert log.read_text(encoding="utf-8") == f"self-test: {why}\n"


def test_a_real_process_of_another_user_leaves_a_plain_user_observing(monkeypatch):
    def scenario():
        sys.path[:0] = os.environ["PARTS_FOLDERS"].split(os.pathsep)
        from tests.sidecar.parts import ScriptedNvml  # noqa: PLC0415  # it runs elsewhere
        from webhook.sidecar.selftest import self_test  # noqa: PLC0415  # it runs elsewhere

        def judged():
            outcome = self_test(ScriptedNvml(a={}))
            return [outcome.ability.value, outcome.why]

        found = [as_user(1000, judged)]
        other = start(f"import os; os.setresuid(1234, 1234, 1234); {SLEEPS}")
        found += [as_user(1000, judged), as_user(1234, judged)]
        found += [as_user(0, judged, capabilities=capabilities) for capabilities in ((), (5,))]
        return [found, other.pid]

    monkeypatch.setenv("PARTS_FOLDERS", os.pathsep.join(sys.path))
    found, pid = in_pod(scenario)
    assert [ability for ability, _ in found] == ["full", "observe", "full", "observe", "full"]
    assert f"process {pid} is user 1234" in found[1][1]
