# ruff: noqa: INP001 - beside scripts, and no package: it goes into no wheel
"""OCI image layouts as folders, and archives that are the same whenever they are written.

A layout is what registries hold, as files (github.com/opencontainers/image-spec, image-layout.md):
`skopeo copy`, `oras cp` and `crane push` send one to a registry without changing a digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

Json = dict[str, Any]

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CHART_CONFIG: Final = "application/vnd.cncf.helm.config.v1+json"
CHART_CONTENT: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
"""The last two: helm.sh/docs/topics/registries, "Helm chart manifest"."""
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_NAME: Final = "org.opencontainers.image.ref.name"


class OCIError(Exception):
    """A layout is not as expected; the message says where and what."""


def write_artifact(
    folder: Path,
    tag: str,
    settings: tuple[str, bytes],
    layer: tuple[str, bytes],
    notes: Mapping[str, str],
) -> str:
    """Write a layout of one manifest with one layer, each part with its type; return the digest."""
    manifest: Json = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _store(folder, *settings),
        "layers": [_store(folder, *layer)],
        "annotations": dict(notes),
    }
    stored = _store(folder, MANIFEST, _encoded(manifest))
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [{**stored, "annotations": {_NAME: tag}}],
    }
    (folder / "oci-layout").write_bytes(_encoded({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(_encoded(index))
    return str(stored["digest"])


def digest(folder: Path) -> str:
    """Return the digest of a layout's only manifest, by which registries know it."""
    index = json.loads((folder / "index.json").read_bytes())
    if len(index["manifests"]) != 1:
        raise OCIError(f"{folder.name} has {len(index['manifests'])} manifests where one is wanted")
    return str(index["manifests"][0]["digest"])


def manifest(folder: Path) -> Json:
    """Return a layout's only manifest."""
    return dict(json.loads(blob(folder, digest(folder))))


def config(folder: Path) -> Json:
    """Return the configuration that a layout's only manifest names."""
    return dict(json.loads(blob(folder, manifest(folder)["config"]["digest"])))


def blob(folder: Path, name: str) -> bytes:
    """Return what a digest stands for."""
    algorithm, _, value = name.partition(":")
    return (folder / "blobs" / algorithm / value).read_bytes()


def files(folder: Path, wanted: Iterable[str]) -> dict[str, str]:
    """Return the texts of an image's files whose paths match one of the patterns, by path.

    A file that a later layer replaces counts as that layer has it. What a layer takes away counts
    still: none of ours does.
    """
    patterns = list(wanted)
    found: dict[str, str] = {}
    for layer in manifest(folder)["layers"]:
        content = io.BytesIO(blob(folder, layer["digest"]))
        with tarfile.open(fileobj=content, mode="r:*") as archive:
            for entry in archive:
                if entry.isfile() and any(_matches(entry.name, one) for one in patterns):
                    read = archive.extractfile(entry)
                    found[entry.name] = read.read().decode(errors="replace") if read else ""
    return found


def _matches(path: str, pattern: str) -> bool:
    """Compare part by part, so that a star stands for no slash."""
    one = PurePosixPath(path)
    return len(one.parts) == len(PurePosixPath(pattern).parts) and one.match(pattern)


def pack(content: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a tar archive of files by path: sorted, of one time, and nobody's."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(content):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content[path]), epoch
            archive.addfile(entry, io.BytesIO(content[path]))
    return made.getvalue()


def compressed(content: bytes) -> bytes:
    """Compress without a time and a name in the head."""
    return gzip.compress(content, mtime=0)


def contents(folder: Path) -> dict[str, bytes]:
    """Return a folder's files by their path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _store(folder: Path, kind: str, content: bytes) -> Json:
    value = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{value}", "size": len(content)}


def _encoded(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
