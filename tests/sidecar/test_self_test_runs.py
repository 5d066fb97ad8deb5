"""The self-test with a real library, real processes and the real program."""

import signal
import subprocess
import sys

import pytest

from tests.sidecar.parts import BY_HAND, events_of
from webhook.sidecar import program
from webhook.sidecar.journal import EnforcerJournal
from webhook.sidecar.program import enforce
from webhook.sidecar.self_test import SelfCheck, SelfTest

GPU = "gpu GPU-a total=1000 mig=0\n"
LISTS = "nvmlDeviceGetComputeRunningProcesses_v3"
FOUND = {
    GPU: (0, "full", []),
    None: (70, "blind", ["library"]),
    f"{GPU}fail * 999\n": (70, "blind", ["library"]),
    f"{GPU}fail nvmlSystemGetDriverVersion 18\n": (70, "blind", ["library"]),
    f"driver 550.54.14\n{GPU}": (70, "blind", ["driver"]),
    "driver 570.86.15\n": (70, "blind", ["gpus"]),
    "gpu GPU-a total=1000 mig=1\n": (70, "blind", ["gpus"]),
    f"{GPU}fail {LISTS} 4\n": (70, "blind", ["gpus"]),
}


def test_every_outcome_is_one_line_of_the_real_program(pod):
    def incident(p, texts, by_hand):
        found = []
        for text in texts:
            p.stub.unlink(missing_ok=True)
            if text is not None:
                p.stub.write_text(text)
            found.append([p.start("--self-test").wait(), p.events()[-1]])
        p.script()
        found.append([p.start("--self-test", by=by_hand).wait(), p.events()[-1]])
        return found, len(p.events())

    found, lines = pod.run(incident, list(FOUND), BY_HAND)
    assert lines == len(found)
    for (code, verdict), want in zip(found, [*FOUND.values(), FOUND[GPU]], strict=True):
        failed = [name for name, check in verdict["checks"].items() if check["holds"] is False]
        assert (code, verdict["ability"], failed) == want


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
    failed, code, level, ability, tmp_path, monkeypatch
):
    checks = [SelfCheck(name, False, f"No {name}.") for name in failed]
    monkeypatch.setattr(program, "self_test", lambda *_, **__: SelfTest(tuple(checks)))
    log, out = tmp_path / "termination-log", tmp_path / "out"
    log.touch()
    with out.open("w") as said:
        ours = EnforcerJournal(said.fileno(), str(log))
        assert enforce({"VRAM_CAP_BYTES": "1"}, str(tmp_path), ours, only_test=True) == code
    (verdict,) = events_of(out.read_text(encoding="utf-8"))
    assert (verdict["level"], verdict["ability"]) == (level, ability)
    why = " ".join(f"No {name}." for name in failed)
    assert log.read_text(encoding="utf-8") == f"self-test: {why}\n"


def test_a_self_test_that_hangs_ends_by_itself(tmp_path):
    code = """
import sys, time
from webhook.sidecar import journal, program
assert program.SELF_TEST_TIMEOUT_S == 120
program.SELF_TEST_TIMEOUT_S = 1
program.self_test = lambda *_: time.sleep(60)
journal = journal.EnforcerJournal(1, sys.argv[1] + "/termination-log", sys.argv[1])
sys.exit(program.enforce({"VRAM_CAP_BYTES": "1"}, sys.argv[1], journal))
"""
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGALRM


def test_a_real_process_of_another_user_leaves_a_plain_user_observing(pod):
    def incident(p):
        def judged(user):
            p.start("--self-test", user=user).wait()
            return [p.events()[-1]["ability"], p.events()[-1]["why"]]

        found = [judged(1000)]
        other = p.process("plain", user=1234)
        return [*found, *map(judged, (1000, 1234, 0, None))], other.pid

    found, pid = pod.run(incident)
    # No other process; one of another user; one of the same user; root without CAP_KILL; root with
    # it.
    assert [ability for ability, _ in found] == ["full", "observe", "full", "observe", "full"]
    assert f"process {pid} is user 1234" in found[1][1]
