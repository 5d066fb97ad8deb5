# ruff: noqa: INP001 - part of a script: it is in no package and no wheel
"""OCI image layouts as folders, and reproducible archives.

A layout has an image's manifest and blobs as files (github.com/opencontainers/image-spec,
image-layout.md). `skopeo copy`, `oras cp` and `crane push` send it to a registry unchanged.
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
"""Media types of a chart's config and content (helm.sh/docs/topics/registries)."""
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_NAME: Final = "org.opencontainers.image.ref.name"


class OCIError(Exception):
    """Raised for an unexpected layout. The message names the layout and the difference."""


def write_artifact(
    folder: Path,
    tag: str,
    config: tuple[str, bytes],
    layer: tuple[str, bytes],
    annotations: Mapping[str, str],
) -> str:
    """Write a layout of one manifest with one layer, and return the manifest's digest.

    `config` and `layer` are pairs of media type and content.
    """
    manifest: Json = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _write_blob(folder, *config),
        "layers": [_write_blob(folder, *layer)],
        "annotations": dict(annotations),
    }
    descriptor = _write_blob(folder, MANIFEST, _encode_json(manifest))
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [{**descriptor, "annotations": {_NAME: tag}}],
    }
    (folder / "oci-layout").write_bytes(_encode_json({"imageLayoutVersion": "1.0.0"}))
    (folder / "index.json").write_bytes(_encode_json(index))
    return str(descriptor["digest"])


def digest(folder: Path) -> str:
    """Return the digest of a layout's only manifest. Raises OCIError if it has several."""
    index = json.loads((folder / "index.json").read_bytes())
    if len(index["manifests"]) != 1:
        raise OCIError(f"{folder.name} has {len(index['manifests'])} manifests where one is wanted")
    return str(index["manifests"][0]["digest"])


def manifest(folder: Path) -> Json:
    """Return a layout's only manifest."""
    return dict(json.loads(blob(folder, digest(folder))))


def config(folder: Path) -> Json:
    """Return the configuration of a layout's only manifest."""
    return dict(json.loads(blob(folder, manifest(folder)["config"]["digest"])))


def blob(folder: Path, digest: str) -> bytes:
    """Return the content of the blob with a digest."""
    algorithm, _, value = digest.partition(":")
    return (folder / "blobs" / algorithm / value).read_bytes()


def files(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Return the text of an image's files by path, for paths that match one of the patterns.

    Later layers win. Whiteouts are not applied: our images have none.
    """
    wanted = list(patterns)
    texts: dict[str, str] = {}
    for layer in manifest(folder)["layers"]:
        content = io.BytesIO(blob(folder, layer["digest"]))
        with tarfile.open(fileobj=content, mode="r:*") as archive:
            for entry in archive:
                if entry.isfile() and any(_matches(entry.name, pattern) for pattern in wanted):
                    file = archive.extractfile(entry)
                    texts[entry.name] = file.read().decode(errors="replace") if file else ""
    return texts


def _matches(path: str, pattern: str) -> bool:
    """Return True if a path matches a pattern in which `*` does not match a slash."""
    parts = PurePosixPath(path)
    return len(parts.parts) == len(PurePosixPath(pattern).parts) and parts.match(pattern)


def pack(content: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a reproducible tar archive of files by path: sorted, fixed mtime, uid and gid 0."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(content):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content[path]), epoch
            archive.addfile(entry, io.BytesIO(content[path]))
    return packed.getvalue()


def compress(content: bytes) -> bytes:
    """Compress reproducibly, without a time or a name in the header."""
    return gzip.compress(content, mtime=0)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of a folder's files, keyed by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _write_blob(folder: Path, media_type: str, content: bytes) -> Json:
    """Write a blob and return its descriptor."""
    value = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{value}", "size": len(content)}


def _encode_json(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
