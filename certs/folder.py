"""Certificates in a folder: read a mounted certificate set, or issue a new one.

The kubelet mounts a Secret as `..data`, a symbolic link to a hidden folder with one version of all
files, and replaces the link atomically. Reading through the link therefore gets one version. A
folder without `..data` has plain files, copied by a user or written by `issue_into_folder`.
"""

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from certs.issue import issue_ca, issue_serving
from certs.pem import CERTIFICATE, FILES, KEY, Bundle, CertificatesError

_DATA = "..data"
# The kubelet may replace the link once between two reads. Repeated changes have another cause.
_ATTEMPTS = 5


def read_folder(folder: Path) -> Bundle:
    """Return the certificate set in the folder, all of one version; empty if there are no files.

    Raises CertificatesError if a file cannot be read.
    """
    for _ in range(_ATTEMPTS):
        source = _version_folder(folder)
        bundle = Bundle.from_files({name: _read_file(source / name) for name in FILES})
        if _version_folder(folder) == source:
            return bundle
    problem, cure = "changes faster than it can be read", "stop what keeps writing there"
    raise CertificatesError(str(folder), problem, cure)


def stamp(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return a value that changes if certificate or key change, from two `stat` calls.

    A server compares this value at each handshake, and reads the folder if it has changed. Empty if
    a file is missing.
    """
    try:
        stats = [(folder / name).stat() for name in (CERTIFICATE, KEY)]
    except OSError:
        return ()
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def issue_into_folder(folder: Path, names: Iterable[str], now: datetime) -> Bundle:
    """Issue a CA and a serving certificate for these names, and write them into the folder.

    Files have mode 0600, and a new folder has 0700. Raises CertificatesError if the folder already
    contains a file of a set, if the folder cannot be written, or if a name is unusable.
    """
    ca = issue_ca(now)
    serving = issue_serving(ca, names, now)
    bundle = Bundle(serving.certificate_pem, serving.key_pem, ca.certificate_pem, ca.key_pem)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        existing = [name for name in FILES if os.path.lexists(folder / name)]
        if existing:
            problem, cure = (
                f"holds {existing[0]} already",
                "name another folder, or remove what is there",
            )
            raise CertificatesError(str(folder), problem, cure)
        for name, content in bundle.files().items():
            # Created with its final mode: otherwise the key could be read before the mode is set.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(folder / name, flags, 0o600), "wb") as file:
                file.write(content)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        cure = "give this user the right to write there, or name another folder"
        raise CertificatesError(str(folder), problem, cure) from error
    return bundle


def _version_folder(folder: Path) -> Path:
    """Return the folder that contains the files of the current version."""
    try:
        return folder / (folder / _DATA).readlink()
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise _unreadable(folder, error) from error


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CertificatesError:
    cure = "make it readable for this user, or name another folder"
    return CertificatesError(str(path), f"cannot be read ({error.strerror})", cure)
