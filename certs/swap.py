"""Replace several files of a folder together, safely against crashes, readers and writers."""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from certs.errors import CertificatesError
from certs.pem import FILES, SECRET_FILES

# The name kubelet uses, so that tools which know a mounted Secret know this folder.
DATA = "..data"
_VERSION = re.compile(r"\.\.\d{4}(_\d\d){5}\.[0-9a-f]{8}")
_LOCK = ".lock"
# A writer holds the lock for some milliseconds; a slow disk may need a second.
_PATIENCE_S = 10.0
_PAUSE_S = 0.02


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock against other writers, threads and processes alike.

    ``flock`` rather than ``lockf``, which does not keep two threads of one process apart; the
    kernel releases it when its holder dies. Raises CertificatesError after ten seconds.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, folder)
        try:
            yield
        finally:
            # Closing is not enough: a child forked meanwhile shares the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def publish(
    folder: Path, before: Mapping[str, bytes], after: Mapping[str, bytes], now: datetime
) -> None:
    """Make the folder show ``after`` (name -> contents) where it showed ``before``.

    Call it under the lock. Plain files are first put behind links with the contents they have,
    so that the one step which changes anything is the rename of ``..data``. Raises OSError; the
    folder then shows ``before`` or ``after``, whole.
    """
    if not all(through_data(folder / name) for name in FILES):
        _point_data_at(folder, _write_version(folder, before, now))
    for name in after.keys() | before.keys():
        _replace_by_link(folder / name, f"{DATA}/{name}")
    current = _write_version(folder, after, now)
    _point_data_at(folder, current)
    for old in folder.iterdir():
        if old.name != current and _VERSION.fullmatch(old.name):
            # What cannot be removed now is removed by the next writer; the swap is done.
            shutil.rmtree(old, ignore_errors=True)


def through_data(name: Path) -> bool:
    """Tell whether the visible name is absent or a link through ``..data``."""
    try:
        return str(name.readlink()) == f"{DATA}/{name.name}"
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _take(descriptor: int, folder: Path) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline_s:
                what = f"has been locked by another process for {_PATIENCE_S:.0f} s"
                cure = "end the process that hangs while writing there"
                raise CertificatesError(str(folder), what, cure) from error
            time.sleep(_PAUSE_S)
        else:
            return


def _write_version(folder: Path, files: Mapping[str, bytes], now: datetime) -> str:
    version = f"..{now:%Y_%m_%d_%H_%M_%S}.{secrets.token_hex(4)}"
    (folder / version).mkdir(mode=0o755)
    for name, content in files.items():
        _write(folder / version / name, content, 0o600 if name in SECRET_FILES else 0o644)
    _sync_folder(folder / version)
    _sync_folder(folder)
    return version


def _write(path: Path, content: bytes, mode: int) -> None:
    """Create the file with its final mode; changing it later would leave a moment to read a key."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _point_data_at(folder: Path, version: str) -> None:
    _replace_by_link(folder / DATA, version)
    _sync_folder(folder)


def _replace_by_link(path: Path, target: str) -> None:
    """Put a link in the place of whatever is there, in one step for those who look."""
    if path.is_symlink() and str(path.readlink()) == target:
        return
    # Only the holder of the lock makes it, so one that is there was left by a crash.
    temporary = path.with_name(f"..{path.name.lstrip('.')}_tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    """Bring renames and new names to the disk; without it a power cut may undo them."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
