import contextlib
import fcntl
import subprocess
import sys
import threading

import pytest

from certs import Bundle, CertificatesError, SetAction, advance, ensure, problems, read
from certs.stores import swap
from tests.certs.handshakes import DAY, NAMES, put, real_now, versions

NOW = real_now().replace(microsecond=0)


def test_a_writer_that_hangs_is_reported_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(swap, "_PATIENCE_S", 0.1)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CertificatesError, match="locked by another process"):
            ensure(tmp_path, NAMES, NOW)
    assert [p.name for p in tmp_path.iterdir()] == [".lock"]
    assert ensure(tmp_path, NAMES, NOW).action is SetAction.ISSUED


def test_what_a_crash_left_between_two_renames_is_no_obstacle(tmp_path):
    for name in ("..data_tmp", "..tls.crt_tmp"):
        (tmp_path / name).symlink_to("nowhere")
    assert ensure(tmp_path, NAMES, NOW).action is SetAction.ISSUED


@pytest.mark.parametrize("step", range(1, 16))
def test_a_crash_at_any_step_of_writing_loses_nothing(tmp_path, monkeypatch, step):
    # Starting from plain files is the longest way: they go behind links first.
    before = put(tmp_path, advance(Bundle(), NAMES, NOW).bundle)
    calls = []

    def dying(function):
        def wrapped(*arguments):
            calls.append(function.__name__)
            if len(calls) == step:
                raise OSError(5, "Input/output error")
            return function(*arguments)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("_write", "_link"):
            patch.setattr(swap, name, dying(getattr(swap, name)))
        with contextlib.suppress(CertificatesError):
            ensure(tmp_path, NAMES, NOW + 300 * DAY)
    # A failure behind the rename leaves the new set; a half of each is never seen.
    shown = read(tmp_path)
    assert shown == before or problems(shown, NOW + 300 * DAY, NAMES) == ()
    assert shown.ca_pem == before.ca_pem
    assert {n: (tmp_path / n).read_bytes() for n in shown.files()} == shown.files()
    assert ensure(tmp_path, ["next.svc"], NOW + 300 * DAY).problems == ()
    assert len(versions(tmp_path)) == 1


ENSURE = """
import sys, pathlib
from datetime import datetime
from certs import ensure
sys.stdin.readline()
now = datetime.fromisoformat(sys.argv[2])
print(ensure(pathlib.Path(sys.argv[1]), ["hook.gpu.svc"], now).action)
"""


def test_processes_that_start_together_end_with_one_valid_set(tmp_path):
    command = [sys.executable, "-c", ENSURE, str(tmp_path / "tls"), NOW.isoformat()]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=60)[0].strip() for process in started)
    assert said == ["issued", "kept", "kept"]
    assert problems(read(tmp_path / "tls"), NOW, ["hook.gpu.svc"]) == ()
    assert len(versions(tmp_path / "tls")) == 1


def test_threads_that_start_together_end_with_one_valid_set(tmp_path):
    gate, said = threading.Barrier(4), []

    def run():
        gate.wait(60)
        said.append(ensure(tmp_path, NAMES, NOW).action)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(said) == ["issued", "kept", "kept", "kept"]
