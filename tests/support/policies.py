"""Policy files for tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.paths import ROOT
from webhook.adapters.policy.files import PolicyInvalidError, load_policy

SHIPPED = [
    ROOT / "policies" / "default.yaml",
    *sorted((ROOT / "policies" / "examples").glob("*.yaml")),
]
IMAGE = "vramwarden/enforcer:test"
HEAD = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: test}\nspec:\n"
"""Header of four lines, so that a spec begins on line 5."""


def write(folder: Path, **files: str) -> Path:
    """Write each spec to a file `<name>.yaml` in a folder."""
    folder.mkdir(exist_ok=True)
    for name, spec in files.items():
        (folder / f"{name}.yaml").write_text(HEAD + spec, encoding="utf-8")
    return folder


def load(path: Path):
    return load_policy(path, enforcer_image=IMAGE)


def load_spec(folder: Path, spec: str):
    return load(write(folder / "policy", a=spec))


def problems(path: Path) -> list[str]:
    """Return the problems of a policy, without the folder in file names."""
    try:
        load(path)
    except PolicyInvalidError as error:
        return [str(problem).replace(f"{path}/", "") for problem in error.problems]
    return []


def problems_of_spec(folder: Path, spec: str) -> list[str]:
    return problems(write(folder / "policy", a=spec))
