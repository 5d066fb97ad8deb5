"""Print the table of values that stands in deploy/README.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.charts import CHART

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]

SHORT = 40


def schema() -> Json:
    """Return the values' schema."""
    return dict(json.loads((CHART / "values.schema.json").read_text()))


def values() -> Json:
    """Return the default values."""
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def leaves(node: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield path and schema of every value that is not only a group of others."""
    for name, found in node["properties"].items():
        # What a group holds has its own lines; what is given as a whole has one.
        if found.get("properties") and not path_is_whole((*path, name)):
            yield from leaves(found, (*path, name))
        else:
            yield (*path, name), found


def path_is_whole(path: tuple[str, ...]) -> bool:
    """Say whether an object is one value, and not a group."""
    return path[-1] == "issuerRef"


def default(path: tuple[str, ...]) -> Any:
    """Return the default of a value."""
    found: Any = values()
    for name in path:
        found = found[name]
    return found


def rows() -> list[str]:
    """Return the table's lines."""
    lines = []
    for path, found in leaves(schema()):
        if path == ("global",):
            continue
        text = json.dumps(default(path))
        shown = f"`{text}`" if len(text) <= SHORT else "see `values.yaml`"
        lines.append(f"| `{'.'.join(path)}` | {shown} | {found['description']} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
