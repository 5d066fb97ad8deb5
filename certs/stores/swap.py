"""Replace several files of a folder together, beside readers and other writers."""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from certs.pki.pem import FILES, SECRET_FILES, CertificatesError

# The name kubelet uses, so that tools which know a mounted Secret know this folder.
DATA = "..data"
_VERSION = "..version-"
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
        deadline_s = time.monotonic() + _PATIENCE_S
        while not _taken(descriptor):
            if time.monotonic() > deadline_s:
                what = f"has been locked by another process for {_PATIENCE_S:.0f} s"
                cure = "end the process that hangs while writing there"
                raise CertificatesError(str(folder), what, cure)
            time.sleep(_PAUSE_S)
        yield
    finally:
        # Closing is not enough: a child forked meanwhile shares the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def publish(folder: Path, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Make the folder show ``after`` (name -> contents) where it showed ``before``.

    Call it under the lock. Plain files are first put behind links with the contents they have,
    so that the one step which changes anything is the rename of ``..data``. Raises OSError; the
    folder then shows all of ``before`` or all of ``after``.
    """
    if not all(through_data(folder / name) for name in FILES):
        _link(folder / DATA, _write_version(folder, before))
    for name in after.keys() | before.keys():
        _link(folder / name, f"{DATA}/{name}")
    current = _write_version(folder, after)
    _link(folder / DATA, current)
    for old in folder.glob(f"{_VERSION}*"):
        if old.name != current:
            # What cannot be removed now is removed by the next writer; the swap is done.
            shutil.rmtree(old, ignore_errors=True)


def through_data(name: Path) -> bool:
    """Return whether the visible name is absent or a link through ``..data``."""
    try:
        return str(name.readlink()) == f"{DATA}/{name.name}"
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_version(folder: Path, files: Mapping[str, bytes]) -> str:
    version = folder / f"{_VERSION}{secrets.token_hex(4)}"
    version.mkdir(mode=0o755)
    for name, content in files.items():
        _write(version / name, content, 0o600 if name in SECRET_FILES else 0o644)
    return version.name


def _write(path: Path, content: bytes, mode: int) -> None:
    """Create the file with its final mode: changed later, a key could be read in between."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _link(path: Path, target: str) -> None:
    """Replace whatever has this name by a link; readers see it happen in one step."""
    # Only the holder of the lock creates it, so an existing one was left by a crash.
    temporary = path.with_name(f"..{path.name.lstrip('.')}_tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
