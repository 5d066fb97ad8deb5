"""Wait for a GPU, where the pod was bound without one.

A variable is resolved once, when its container starts; the files of a downward-API volume change in
place. So the sidecar waits for the file, and ends: the kubelet starts it again, with its variable
set, and after it the other containers, which have not been started before. A first restart comes
at once, every later one after a pause that grows, so this one must be the only one.

This comes before the program's large imports, which a waiting sidecar does not need.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from webhook.names import ASSIGNED_LATE_EXIT_CODE, GPU_ANNOTATION, GPU_WAITS_ANNOTATION, PREFIX
from webhook.sidecar.heartbeat import leave_waiting, one_line

if TYPE_CHECKING:
    from webhook.sidecar.journal import EnforcerJournal

_SCAN_S = 0.5
_WAITING = "waiting for a GPU"
_LONGEST_VALUE = 4096
_AWAY = (
    "the pod was bound while vramwarden was away, and gets one when vramwarden is back; if that "
    "does not help, delete the pod, so that it is bound again"
)
"""While nobody has written a reason yet."""


def wait_for_gpus(gpu_folder: str, run_folder: str, journal: EnforcerJournal) -> int | None:
    """Wait until the pod has GPUs, and return the exit code; call it where VRAM_GPUS is empty.

    | the file `gpu` | then |
    | --- | --- |
    | does not exist, so there is nothing to wait for | None, at once |
    | is empty | wait |
    | names GPUs | 76, at once, also after a restart that did not help |
    """
    gpus = _read(gpu_folder, GPU_ANNOTATION)
    if gpus is None:
        return None
    said = ""
    while not gpus:
        why = _read(gpu_folder, GPU_WAITS_ANNOTATION) or _AWAY
        if why != said:
            leave_waiting(run_folder, f"{_WAITING}: {why}")
            journal.event("warning", _WAITING, why=why)
            said = why
        time.sleep(_SCAN_S)
        gpus = _read(gpu_folder, GPU_ANNOTATION)
    why = "the pod has its GPU now, and the sidecar starts again with it"
    journal.verdict("info", "assigned late", why, report=False, gpus=gpus)
    return ASSIGNED_LATE_EXIT_CODE


def _read(folder: str, key: str) -> str | None:
    """Return what the file of an annotation says, on one line and cut; None where it is not there.

    Opened each time: the kubelet replaces the folder behind a link.
    """
    try:
        path = f"{folder}/{key.removeprefix(PREFIX)}"
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is large
            return one_line(file.read(_LONGEST_VALUE))
    except OSError:
        return None
