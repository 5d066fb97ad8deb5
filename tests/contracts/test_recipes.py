"""Recipes: each is in the table of its page and is mutated as the page states."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.recipes import FOLDER, recipe

NAMES = sorted(path.stem for path in FOLDER.iterdir())
PAGE = FOLDER.with_suffix(".md").read_text()
VALUES = "jupyterhub"
NOT_JUDGED = "carries vramwarden.io/gpu-memory and was not judged; its pods are made elsewhere"
WITHOUT_PODS = ["kueue-queue", "quota"]


def admit(name: str, manifest: str | None = None) -> list[str]:
    """Return the lines of `vramwarden admit` for a recipe, without file and line."""
    text = (FOLDER / f"{name}.yaml").read_text() if manifest is None else manifest
    done = subprocess.run(
        [sys.executable, "-m", "webhook.cli", "admit", "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (": finding: " in done.stderr), done.stderr
    return [line.partition(": ")[2] or line for line in done.stderr.splitlines()]


def test_each_recipe_has_one_row_of_the_table():
    row = r"^\| [^|]+ \| \[([\w-]+)\.yaml\]\(recipes/\1\.yaml\) \| .+ \|$"
    rows = re.findall(row, PAGE, re.MULTILINE)
    assert sorted(rows) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short_and_says_first_what_it_is_for(name):
    first, second, *rest = (FOLDER / f"{name}.yaml").read_text().splitlines()
    assert re.fullmatch(r"# [A-Z].+[^:,]\.", first)
    assert not second.startswith("#")
    assert len(rest) < 39


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {VALUES, *WITHOUT_PODS}])
def test_a_recipe_is_translated_without_a_warning(name):
    *said, _ = admit(name)
    verdict = r"\w+ [\w-]+/[\w-]+( \(\S+\))?: (translated by rule default \(.+\)|left alone \(.+\))"
    assert [line for line in said if not re.fullmatch(verdict, line)] == []
    assert [line for line in said if "translated" in line]


@pytest.mark.parametrize("name", WITHOUT_PODS)
def test_the_others_make_no_pods(name):
    (tally,) = admit(name)
    assert re.fullmatch(r"\d without a pod template \(.+\)", tally)


def test_the_page_announces_what_is_said_of_values():
    assert admit(VALUES) == [f"(no kind): {NOT_JUDGED}", "1 not judged"]
    assert f"`{NOT_JUDGED}`" in PAGE


@pytest.mark.parametrize(
    ("name", "line", "instead", "said"),
    [
        ("vllm", "--gpu-memory-utilization=$(VRAMWARDEN_GPU_MEMORY_FRACTION)", "", "add --gpu-m"),
        ("ray", '{num-gpus: "1"}', "{}", 'write num-gpus: "1"; '),
        ("pytorchjob", 'nprocPerNode: "1"', 'nprocPerNode: "4"', 'write "1"; '),
        ("quota", "{requests.", "{limits.", "write requests.vramwarden.io/vram: 64Gi; "),
    ],
)
def test_without_its_line_a_recipe_is_warned_of(name, line, instead, said):
    text = (FOLDER / f"{name}.yaml").read_text()
    assert line in text
    level = "note|warning|finding"
    warnings = [item for item in admit(name, text.replace(line, instead)) if re.search(level, item)]
    assert said in warnings[0]


def test_the_two_files_of_kueue_name_the_same_queue():
    flavor, cluster, local = recipe("kueue-queue")
    (job,) = recipe("kueue-job")
    assert local["metadata"]["name"] == job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert local["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    (group,) = cluster["spec"]["resourceGroups"]
    (used,) = group["flavors"]
    assert used["name"] == flavor["metadata"]["name"]
    assert [resource["name"] for resource in used["resources"]] == group["coveredResources"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    asked = {**container["resources"]["requests"], **container["resources"]["limits"]}
    assert asked.keys() <= {*group["coveredResources"]}
