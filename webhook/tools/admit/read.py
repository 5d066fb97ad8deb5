"""Which files `vramwarden admit` reads, and what is no manifest yet: charts, overlays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from webhook.tools.shared.manifests.documents import text_of
from webhook.tools.shared.manifests.files import STANDARD_INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_CHART: Final = "Chart.yaml"
_KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_OPENING: Final = "{{"
_ACTION: Final = re.compile(
    r"\{\{-?\s*(?:\.|/\*|(?:if|else|end|range|with|include|template|define|tpl|toYaml)\b)"
)
"""Argo's Workflows have braces as well: `{{inputs.parameters.image}}`."""
UNRENDERED: Final = (
    "looks like a Helm template that is not rendered; run: helm template CHART | "
    "vramwarden admit -f -"
)


def files(names: Iterable[str], say: Callable[[str], None], *, recursive: bool) -> Iterator[str]:
    """Yield the files: those of a folder in the order of their names, then its subfolders'.

    `say` is told what of a folder is not read. Raises click.UsageError for a folder without
    manifests, and for a Helm chart.
    """
    for name in names:
        folder = Path(name)
        if name == STANDARD_INPUT or not folder.is_dir():
            yield name
            continue
        if (folder / _CHART).is_file():
            raise click.UsageError(f"{name}: {_chart(folder)}")
        found = list(_of_folder(folder, say, recursive=recursive))
        if not found:
            wanted = "no *.yaml, *.yml or *.json in it"
            cure = "" if recursive else "; -R reads its subfolders as well"
            raise click.UsageError(f"{name}: {wanted}; name a folder that holds manifests{cure}")
        yield from map(str, found)


def is_unrendered(value: Any) -> bool:
    """Say whether an object has braces of a template where Kubernetes allows none."""
    names = (text_of(value, "kind"), *(text_of(value, "metadata", key) for key in _NAMES))
    return any(_OPENING in name for name in names)


_NAMES: Final = ("name", "namespace")


def line_of_braces(text: str) -> int:
    """Return the first line of a text with an action of Helm's templates; 0 for none."""
    found = _ACTION.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _of_folder(folder: Path, say: Callable[[str], None], *, recursive: bool) -> Iterator[Path]:
    entries = sorted(folder.iterdir())
    overlay = next((one for one in _KUSTOMIZATIONS if (folder / one).is_file()), "")
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
            yield from _of_folder(item, say, recursive=True)


def _is_subfolder(path: Path) -> bool:
    """Leave out what is hidden, and links, by which a folder could contain itself."""
    return path.is_dir() and not path.is_symlink() and not path.name.startswith(".")


def _chart(folder: Path) -> str:
    return f"this is a Helm chart; run: helm template {folder} | vramwarden admit -f -"
