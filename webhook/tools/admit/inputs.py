"""Input of `vramwarden admit`: options, and files that may not be manifests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from webhook.core.nvidia.device_plugin import MIG_PROFILE
from webhook.core.pod.findings import quote
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.tools.admit.migration.foreign_pod import Origin
from webhook.tools.admit.migration.requests import PRODUCTS
from webhook.tools.manifests.reading import STANDARD_INPUT

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Regular expression that matches a namespace name: a DNS label (RFC 1123)."""
_ADDRESS: Final = re.compile("https?://")
_WHOLE: Final = "whole"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_CHART: Final = "Chart.yaml"
_KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")


def files(names: Iterable[str], say: Callable[[str], None], *, recursive: bool) -> Iterator[str]:
    """Yield the files. A folder yields its files by name, then those of its subfolders.

    `say` is called for each skipped file of a folder. Raises click.UsageError for a folder without
    manifests, a Helm chart or a URL.
    """
    for name in names:
        folder = Path(name)
        if _ADDRESS.match(name):
            cure = f"run: curl --location {name} | vramwarden admit -f -"
            raise click.UsageError(f"{name}: addresses are not read; {cure}")
        if name == STANDARD_INPUT or not folder.is_dir():
            yield name
            continue
        if (folder / _CHART).is_file():
            raise click.UsageError(f"{name}: {_chart(folder)}")
        found = list(_list_manifests(folder, say, recursive=recursive))
        if not found:
            wanted = "no *.yaml, *.yml or *.json in it"
            cure = "" if recursive else "; -R reads its subfolders as well"
            raise click.UsageError(f"{name}: {wanted}; name a folder that holds manifests{cure}")
        yield from map(str, found)


def _list_manifests(folder: Path, say: Callable[[str], None], *, recursive: bool) -> Iterator[Path]:
    entries = sorted(folder.iterdir())
    overlay = next(
        (kustomization for kustomization in _KUSTOMIZATIONS if (folder / kustomization).is_file()),
        "",
    )
    if overlay:
        say(
            f"{folder}: holds a kustomization, which is not applied here; to judge what it makes, "
            f"run: kubectl kustomize {folder} | vramwarden admit -f -"
        )
    yield from (item for item in entries if item.suffix in _SUFFIXES and item.is_file())
    inner = [item for item in entries if _is_subfolder(item)]
    if not recursive and inner:
        which = ", ".join(item.name for item in inner)
        say(f"{folder}: subfolders are skipped ({which}); -R reads them as well")
    for item in inner if recursive else ():
        if (item / _CHART).is_file():
            say(f"{item}: skipped, {_chart(item)}")
        else:
            yield from _list_manifests(item, say, recursive=True)


def _is_subfolder(path: Path) -> bool:
    """Return True if a folder is neither hidden nor a symbolic link, which may form a cycle."""
    return path.is_dir() and not path.is_symlink() and not path.name.startswith(".")


def _chart(folder: Path) -> str:
    return f"this is a Helm chart; run: helm template {folder} | vramwarden admit -f -"


def read_namespace(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Return the namespace. Raises BadParameter if its name is invalid."""
    if _NAMESPACE.fullmatch(value):
        return value
    raise click.BadParameter(
        f"{quote(value)} can be no namespace: lower case letters, digits and -, at most 63"
    )


def read_labels(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Parse labels written as key=value. Raises BadParameter if one is malformed."""
    labels: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{quote(value)} is no label; write key=value")
        labels[key] = text
    return labels


def read_mig_profiles(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int]:
    """Return the size of a MIG slice by profile name. Raises BadParameter if one is malformed."""
    found: dict[str, int] = {}
    for value in values:
        name, _, size = value.partition("=")
        try:
            found[name] = parse_vram(size)
        except QuantityError as error:
            raise click.BadParameter(
                f"{quote(value)} has no size of a slice: {error}; write e.g. 1g.10gb=9728Mi"
            ) from error
        if not re.fullmatch(MIG_PROFILE, name):
            raise click.BadParameter(
                f"{quote(name)} is not the name of a profile; write e.g. 1g.10gb=9728Mi"
            )
    return found


def read_origin(
    product: str | None, gpu_bytes: int | None, unit_bytes: int | None
) -> Origin | None:
    """Return the product of the manifests, or None without --migrate. Raises click.UsageError."""
    given = {"--gpu-memory": gpu_bytes, "--gpu-memory-unit": unit_bytes}
    if product is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"{name} is for --migrate; add --migrate, or remove it")
        return None
    found = PRODUCTS[product]
    if unit_bytes is not None and not found.has_configurable_unit:
        raise click.UsageError(f"--migrate {product} has no unit; remove --gpu-memory-unit")
    if product == _WHOLE and gpu_bytes is None:
        raise click.UsageError(
            "--migrate whole needs to know what a whole GPU becomes; add --gpu-memory 16Gi, for "
            "example"
        )
    return Origin(found, gpu_bytes, unit_bytes)


def read_size(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> int | None:
    """Parse a size into bytes. Raises BadParameter if it is malformed."""
    if value is None:
        return None
    try:
        return parse_vram(value)
    except QuantityError as error:
        raise click.BadParameter(f"{quote(value)} {error}") from None
