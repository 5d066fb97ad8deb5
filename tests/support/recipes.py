"""The recipes of policies/recipes as objects."""

from __future__ import annotations

from typing import Any

import yaml

from tests.support.paths import POLICIES

FOLDER = POLICIES / "recipes"


def recipe(name: str) -> list[dict[str, Any]]:
    """Return the objects of a recipe, in file order."""
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def workload(name: str) -> dict[str, Any]:
    """Return the object of a recipe that has a pod template."""
    (found,) = (item for item in recipe(name) if "template" in item.get("spec", {}))
    return found
