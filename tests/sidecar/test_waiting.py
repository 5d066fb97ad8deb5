"""A pod that was bound without a GPU: the sidecar waits, says why, and ends once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.sidecar.parts import BY_HAND, CAP, ENDS_SOON, PROGRAM, Ground, events_of, wait_until
from tests.sidecar.probes import asked
from webhook.names import ENFORCER_GPU_PATH, ENFORCER_RUN_PATH
from webhook.sidecar import waiting
from webhook.sidecar.__main__ import GPU_FOLDER
from webhook.sidecar.heartbeat import RUN_FOLDER
from webhook.sidecar.journal import EnforcerJournal

AWAY = (
    "the pod was bound while vramwarden was away, and gets one when vramwarden is back; if that "
    "does not help, delete the pod, so that it is bound again"
)
GPU = "GPU-8b1c9f2e"
UNPLACED = CAP | {"VRAM_GPUS": "", "NVIDIA_VISIBLE_DEVICES": ""}


class Pod(Ground):
    """A ground whose annotations are shown as the kubelet does: files behind a link."""

    def __init__(self, folder):
        super().__init__(folder, library=folder)
        self.gpu_folder.mkdir()
        self.writes = 0
        self.program = None

    def annotate(self, gpu="", waits=""):
        self.writes += 1
        data = self.gpu_folder / f"..{self.writes}"
        data.mkdir()
        (data / "gpu").write_text(gpu, encoding="utf-8")
        (data / "gpu-waits").write_text(waits, encoding="utf-8")
        link = self.gpu_folder / "..data_tmp"
        link.symlink_to(data.name)
        link.replace(self.gpu_folder / "..data")
        for name in ("gpu", "gpu-waits"):
            with contextlib.suppress(FileExistsError):
                (self.gpu_folder / name).symlink_to(f"..data/{name}")

    def start(self, command=PROGRAM, **environment):
        self.program = subprocess.Popen(
            [sys.executable, *command, *self.options],
            env=self.environment | UNPLACED | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait(self):
        """Wait until the program does."""
        wait_until((self.run_folder / "waiting").exists)

    def end(self):
        said, errors = self.program.communicate(timeout=60)
        assert errors == ""
        return self.program.returncode, events_of(said)

    def probe(self):
        return asked(self.run_folder, "startup")

    def played(self, monkeypatch, *steps):
        """Return the exit code and the events; between two scans a step is taken."""
        left = list(steps)
        pause = SimpleNamespace(sleep=lambda _: left.pop(0)())
        monkeypatch.setattr(waiting, "time", pause)
        with (self.run_folder.parent / "out").open("w+", encoding="utf-8") as out:
            journal = EnforcerJournal(out.fileno(), str(self.termination_log))
            folders = str(self.gpu_folder), str(self.run_folder)
            code = waiting.wait_for_gpus(*folders, journal)
            out.seek(0)
            return code, events_of(out.read())


@pytest.fixture
def pod(tmp_path):
    pod = Pod(tmp_path)
    yield pod
    if pod.program is not None and pod.program.poll() is None:
        pod.program.kill()
        pod.program.communicate()


@pytest.mark.parametrize("command", [PROGRAM, BY_HAND], ids=["sidecar", "by hand"])
def test_it_waits_says_why_and_ends_once_the_pod_has_a_gpu(command, pod):
    pod.annotate()
    pod.start(command)
    pod.wait()
    assert pod.probe() == (1, f"waiting for a GPU: {AWAY}\n")
    pod.annotate(gpu=f"{GPU},GPU-2")
    code, events = pod.end()
    assert code == 76
    assert [event.pop("ts") is not None for event in events] == [True, True]
    why = "the pod has its GPU now, and the sidecar starts again with it"
    assert events == [
        {"level": "warning", "msg": "waiting for a GPU", "why": AWAY},
        {"level": "info", "msg": "assigned late", "why": why, "gpus": f"{GPU},GPU-2"},
    ]
    assert pod.termination_log.read_text(encoding="utf-8") == f"assigned late: {why}\n"


def test_each_reason_is_logged_once_and_reported_by_the_probe(pod, monkeypatch):
    def says(why):
        assert pod.probe() == (1, f"waiting for a GPU: {why}\n")

    few, fewer = "no GPU of node n1 has 5Gi free", "no GPU of node n1 has 5Gi free, 4Gi has one"
    pod.annotate()
    code, events = pod.played(
        monkeypatch,
        lambda: (says(AWAY), pod.annotate(waits=few)),
        lambda: says(few),
        lambda: pod.annotate(waits=fewer),
        *[lambda: says(fewer)] * 3,
        lambda: pod.annotate(gpu=GPU),
    )
    assert code == 76
    assert [event["why"] for event in events[:-1]] == [AWAY, few, fewer]
    assert [event["msg"] for event in events] == ["waiting for a GPU"] * 3 + ["assigned late"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_ends_the_waiting_with_nought(number, pod):
    pod.annotate()
    pod.start()
    pod.wait()
    pod.program.send_signal(number)
    code, events = pod.end()
    assert (code, [event["msg"] for event in events]) == (0, ["waiting for a GPU", "stopped"])


def test_a_variable_that_stays_empty_ends_it_again_and_again(pod):
    pod.annotate(gpu=GPU)
    for _ in range(2):
        pod.start()
        code, events = pod.end()
        assert (code, [event["msg"] for event in events]) == (76, ["assigned late"])


@pytest.mark.parametrize(
    "environment",
    [{"VRAM_GPUS": GPU}, {"VRAM_GPUS": None, "NVIDIA_VISIBLE_DEVICES": "all"}],
    ids=["placed", "sees all"],
)
def test_a_pod_with_its_gpu_waits_for_nothing(environment, pod):
    pod.annotate()
    environment = UNPLACED | environment
    given = {name: text for name, text in environment.items() if text is not None}
    ended = pod.run(command=ENDS_SOON, **given)
    assert (ended.code, [event["msg"] for event in ended.events]) == (70, ["self-test"])
    assert "Delete the pod" not in ended.events[0]["why"]


@pytest.mark.parametrize(
    "environment",
    [UNPLACED, UNPLACED | {"NVIDIA_VISIBLE_DEVICES": "void"}],
    ids=["by the legacy hook", "where devices are injected"],
)
def test_a_sidecar_that_is_shown_no_file_says_what_to_do(environment, pod):
    ended = pod.run(command=ENDS_SOON, **environment)
    assert (ended.code, [event["msg"] for event in ended.events]) == (70, ["self-test"])
    assert ended.events[0]["why"].endswith("Delete the pod, so that it is bound again.")


def test_a_self_test_by_hand_does_not_wait(pod):
    pod.annotate()
    ended = pod.run("--self-test", **UNPLACED)
    assert (ended.code, [event["msg"] for event in ended.events]) == (70, ["self-test"])
    assert list(pod.run_folder.iterdir()) == []


def test_a_long_reason_is_cut_so_that_a_probe_may_report_two(pod, monkeypatch):
    pod.annotate(waits="no GPU\n\x1b[31m" + "é" * 5000)
    probes = []
    _, (waits, _) = pod.played(
        monkeypatch, lambda: (probes.append(pod.probe()), pod.annotate(gpu=GPU))
    )
    ((code, said),) = probes
    assert (code, len(said.encode()) <= 481) == (1, True)
    assert said.startswith("waiting for a GPU: no GPU [31mé")
    assert len(json.dumps(waits["why"], ensure_ascii=False).encode()) < 1100


def test_a_file_that_is_gone_for_a_moment_is_waited_for(pod, monkeypatch):
    pod.annotate()
    steps = (pod.gpu_folder / "gpu").unlink, lambda: None, lambda: pod.annotate(gpu=GPU)
    code, events = pod.played(monkeypatch, *steps)
    assert (code, len(events)) == (76, 2)


def test_where_no_file_is_shown_nothing_is_done(tmp_path):
    journal = EnforcerJournal(-1, os.devnull)
    assert waiting.wait_for_gpus(str(tmp_path / "none"), str(tmp_path), journal) is None
    assert list(tmp_path.iterdir()) == []


def test_the_folders_are_those_that_are_mounted():
    assert (GPU_FOLDER, RUN_FOLDER) == (ENFORCER_GPU_PATH, ENFORCER_RUN_PATH)


def test_a_self_test_that_hangs_ends_by_itself(pod):
    code = """
import sys, time
from webhook.sidecar import journal, program
assert program.SELF_TEST_S == 120
program.SELF_TEST_S = 1
program.self_test = lambda *_, **__: time.sleep(60)
journal = journal.EnforcerJournal(1, sys.argv[2], sys.argv[1])
sys.exit(program.enforce({"VRAM_CAP_BYTES": "1"}, sys.argv[1], journal))
"""
    folders = [str(pod.run_folder), str(pod.termination_log)]
    ended = subprocess.run([sys.executable, "-c", code, *folders], check=False, timeout=60)
    assert ended.returncode == -signal.SIGALRM
