"""The real program in a pod that was bound without a GPU: it waits, says why, and ends once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.sidecar.parts import BY_HAND, CAP, ENDS_SOON, PROGRAM, Ground, events_of, wait_until
from tests.sidecar.probes import asked
from webhook.names import ENFORCER_GPU_PATH, ENFORCER_RUN_PATH
from webhook.sidecar.__main__ import GPU_FOLDER
from webhook.sidecar.heartbeat import RUN_FOLDER
from webhook.sidecar.journal import EnforcerJournal
from webhook.sidecar.waiting import wait_for_gpus

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

    def wait_for(self, why):
        def says_so():
            with contextlib.suppress(OSError):
                left = (self.run_folder / "waiting").read_text(encoding="utf-8")
                return left.endswith(f"{why}\n")
            return False

        wait_until(says_so)

    def end(self):
        said, errors = self.program.communicate(timeout=60)
        assert errors == ""
        return self.program.returncode, events_of(said)

    def probe(self, *arguments):
        return asked(self.run_folder, "startup", *arguments)


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
    pod.wait_for(AWAY)
    assert pod.probe() == (1, f"waiting for a GPU: {AWAY}\n")
    pod.annotate(gpu=f"{GPU},GPU-2")
    annotated_s = time.monotonic()
    code, events = pod.end()
    assert time.monotonic() - annotated_s < 20  # half a second where nobody else wants the cores
    assert code == 76
    assert [event.pop("ts") is not None for event in events] == [True, True]
    why = "the pod has its GPU now, and the sidecar starts again with it"
    assert events == [
        {"level": "warning", "msg": "waiting for a GPU", "why": AWAY},
        {"level": "info", "msg": "assigned late", "why": why, "gpus": f"{GPU},GPU-2"},
    ]
    assert pod.termination_log.read_text(encoding="utf-8") == f"assigned late: {why}\n"


def test_each_reason_is_logged_once_and_reported_by_the_probe(pod):
    pod.annotate()
    pod.start()
    pod.wait_for(AWAY)
    for why in ("no GPU of node n1 has 5Gi free", "no GPU of node n1 has 5Gi free, 4Gi has one"):
        pod.annotate(waits=why)
        pod.wait_for(why)
        assert pod.probe() == (1, f"waiting for a GPU: {why}\n")
    time.sleep(1.2)  # two more scans, which find nothing new
    pod.program.send_signal(signal.SIGTERM)
    code, events = pod.end()
    assert code == 0
    assert [event.get("why") for event in events] == [
        AWAY, "no GPU of node n1 has 5Gi free", "no GPU of node n1 has 5Gi free, 4Gi has one", None,
    ]  # fmt: skip
    assert [event["msg"] for event in events[2:]] == ["waiting for a GPU", "stopped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_ends_the_waiting_with_nought(number, pod):
    pod.annotate()
    pod.start()
    pod.wait_for(AWAY)
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
    ids=["placed", "a pod of 0.1"],
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
    [UNPLACED, CAP | {"NVIDIA_VISIBLE_DEVICES": ""}, UNPLACED | {"NVIDIA_VISIBLE_DEVICES": "void"}],
    ids=["a plain container", "a pod of 0.1", "where devices are injected"],
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


def test_a_probe_that_waits_keeps_on_while_the_pod_has_no_gpu(pod):
    pod.annotate()
    pod.start()
    pod.wait_for(AWAY)
    started_s = time.monotonic()
    assert pod.probe(1) == (1, f"waiting for a GPU: {AWAY}\n")
    assert time.monotonic() - started_s >= 1


def test_what_one_waits_for_says_nothing_of_the_next(pod):
    pod.annotate()
    pod.start()
    pod.wait_for(AWAY)
    pod.program.kill()
    pod.program.communicate()
    assert pod.probe() == (1, "not guarding yet: the self-test has not finished\n")


def test_a_long_reason_is_cut_so_that_a_probe_may_report_two(pod):
    pod.annotate(waits="no GPU\n\x1b[31m" + "é" * 5000)
    pod.start()
    pod.wait_for("é" * 9)
    code, said = pod.probe()
    assert (code, len(said.encode()) <= 481) == (1, True)
    assert said.startswith("waiting for a GPU: no GPU [31mé")
    pod.program.send_signal(signal.SIGTERM)
    _, (waits, _) = pod.end()
    assert len(json.dumps(waits["why"], ensure_ascii=False).encode()) < 1100


def test_a_file_that_is_gone_for_a_moment_is_waited_for(pod):
    pod.annotate()
    pod.start()
    pod.wait_for(AWAY)
    (pod.gpu_folder / "gpu").unlink()
    time.sleep(1.2)
    assert pod.program.poll() is None
    pod.annotate(gpu=GPU)
    assert pod.end()[0] == 76


def test_where_no_file_is_shown_nothing_is_done(tmp_path):
    journal = EnforcerJournal(-1, os.devnull)
    assert wait_for_gpus(str(tmp_path / "none"), str(tmp_path), journal) is None
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
    ended = subprocess.run([sys.executable, "-c", code, *folders], check=False, timeout=50)
    assert ended.returncode == -signal.SIGALRM
