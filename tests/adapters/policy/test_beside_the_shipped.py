"""Additional and replacement rules for the shipped policy, as documented in policies/change.md."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.support.paths import ROOT
from tests.support.policies import SHIPPED, load, problems, write

PAGES = "".join((ROOT / "policies" / f"{name}.md").read_text() for name in ("change", "back-ends"))
DEFAULT = SHIPPED[0]
WHOLE = SHIPPED[1:]
REQUEST = "pod: {namespace: a, annotations: {vramwarden.io/gpu-memory: 8Gi}}"


def documented(name: str = "10-teams.yaml") -> str:
    """Return the file that a page recommends in addition to default.yaml."""
    return re.search(rf"```yaml\n(# {re.escape(name)}\n.*?)```", PAGES, re.DOTALL)[1]


def beside_default(folder, name: str, text: str):
    shutil.copy(DEFAULT, folder)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "rule"), [("10-teams.yaml", "students"), ("10-interns.yaml", "interns")]
)
def test_a_documented_file_is_valid_beside_the_shipped_policy(tmp_path, name, rule):
    policy = load(beside_default(tmp_path, name, documented(name)))
    assert [found.name for found in policy.rules] == [rule, "system", "default"]
    files = {example.where.split("/")[-1].split(":")[0] for example in policy.examples}
    assert files == {name, "default.yaml"}


def test_after_the_shipped_policy_the_documented_file_is_of_no_use(tmp_path):
    folder = beside_default(tmp_path, "teams.yaml", documented())
    assert all("rule default in " in problem for problem in problems(folder))
    assert problems(folder)


@pytest.mark.parametrize("file", WHOLE, ids=lambda file: file.stem)
def test_no_example_policy_goes_beside_the_shipped_one_and_the_problems_say_why(tmp_path, file):
    found = problems(beside_default(tmp_path, "10-teams.yaml", file.read_text()))
    assert found
    for problem in found:
        assert re.search(
            "is defined twice; it stands in 10-teams.yaml:"
            "|^default.yaml:.*; rule [a-z-]+ in 10-teams.yaml:[0-9]+ matched first: "
            "|^10-teams.yaml:.*; rule default in default.yaml:[0-9]+ applies to the pod, ",
            problem,
        ), problem


@pytest.mark.parametrize("file", WHOLE, ids=lambda file: file.stem)
def test_an_example_policy_replaces_the_shipped_one_with_its_rule_for_the_system(tmp_path, file):
    shipped = DEFAULT.read_text()
    start = shipped.index("  - name: system\n")
    system = shipped[start : shipped.index("  # Everybody else.", start)]
    text = file.read_text().replace("  rules:\n", f"  rules:\n{system}", 1)
    (tmp_path / "default.yaml").write_text(text)
    first, *own = load(tmp_path).rules
    assert first.name == "system"
    assert own


def test_an_example_that_a_rule_of_an_earlier_file_breaks_names_both(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  rules:\n  - name: early\n    memory: {max: 4Gi}\n",
        b="  rules: [{name: late}]\n"
        f"  examples: [{{name: one, {REQUEST}, expect: {{allowed: true, rule: late}}}}]\n",
    )
    first = "; rule early in a.yaml:6 matched first: files are read in the order of their names; "
    first += "narrow its match, or rename a file"
    denied, ruled = problems(folder)
    assert denied.startswith("b.yaml:6: example 'one': wanted allowed: true, got denied by rule")
    assert denied.endswith(first)
    assert ruled == f"b.yaml:6: example 'one': wanted rule late, got early{first}"


def test_an_example_that_a_rule_of_a_later_file_breaks_names_both(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  rules: [{name: early, match: {namespaces: [b]}}]\n"
        f"  examples: [{{name: one, {REQUEST}, expect: {{allowed: true, vram: 0}}}}]\n",
        b="  rules:\n  - name: late\n",
    )
    (problem,) = problems(folder)
    assert problem == (
        "a.yaml:6: example 'one': wanted vram 0, got 8Gi; "
        "rule late in b.yaml:6 applies to the pod, for no rule of this file matches it"
    )


def test_an_example_that_its_own_file_breaks_names_no_file(tmp_path):
    folder = write(
        tmp_path / "policy",
        a="  rules: [{name: early}]\n"
        f"  examples: [{{name: one, {REQUEST}, expect: {{allowed: true, vram: 1Gi}}}}]\n",
        b="  rules: [{name: late}]\n",
    )
    assert problems(folder) == ["a.yaml:6: example 'one': wanted vram 1Gi, got 8Gi"]
