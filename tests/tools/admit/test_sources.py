"""Choice of the files to read, and messages about all others."""

from __future__ import annotations

import pytest

from tests.tools.admit.runs import POD

NAMES = ("a.yaml", "deep/b.yml", "deep/deeper/c.json", ".git/d.yaml", "deep/readme.md")


@pytest.fixture
def folder(tmp_path):
    """Create a folder with subfolders and a link back to the folder."""
    made = tmp_path / "manifests"
    for name in NAMES:
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"kind": "{name}"}}\n')
    (made / "deep" / "back").symlink_to(made)
    return made


def kinds(result):
    return [line.split('"')[3] for line in result.stdout.splitlines() if "kind" in line]


def test_subfolders_that_are_not_read_are_named(invoke, folder):
    result = invoke("-f", "manifests")
    assert kinds(result) == ["a.yaml"]
    said = "manifests: subfolders are skipped (deep); -R reads them as well"
    assert result.stderr == f"{said}\n1 without a pod template (1 a.yaml)\n"


@pytest.mark.parametrize("option", ["-R", "--recursive"])
def test_subfolders_are_read_where_that_is_wanted(invoke, folder, option):
    result = invoke(option, "-f", "manifests")
    assert kinds(result) == ["a.yaml", "deep/b.yml", "deep/deeper/c.json"]
    assert "skipped" not in result.stderr


def test_a_folder_of_folders_says_how_to_read_them(invoke, folder):
    (folder / "a.yaml").unlink()
    result = invoke("-f", "manifests")
    assert result.exit_code == 2
    assert result.stderr.endswith("that holds manifests; -R reads its subfolders as well\n")
    assert invoke("-R", "-f", "manifests").exit_code == 0


BROKEN = {
    "b.yaml": b"kind: Pod\n{% if x %}\n",
    "c.yaml": b"kind: Pod\nmetadata: {{- toYaml .Values.x }}\n",
    "d.yaml": b"a:\n\t- b\n",
    "e.yaml": b"a: caf\xe9\n",
    "f.yaml": b"kind: pod\n",
    "g.yaml": b"- kind: Pod\n",
}


def test_files_that_cannot_be_read_end_no_scan_of_a_folder(invoke, tmp_path):
    made = tmp_path / "repo"
    made.mkdir()
    (made / "a.yaml").write_text(POD)
    (made / "playbook.yaml").write_text("- hosts: all\n")
    (made / "z.yaml").write_text(POD.replace("8Gi", "8GB"))
    for name, data in BROKEN.items():
        (made / name).write_bytes(data)
    result = invoke("-R", "-f", "repo", "-o", "diff")
    assert result.exit_code == 2
    assert "+  shareProcessNamespace: true" in result.stdout
    first, *errors, last, count = result.stderr.splitlines()
    assert first.startswith("repo/a.yaml:1: Pod default/train: translated by rule ")
    lines = {"b.yaml": 2, "c.yaml": 2, "d.yaml": 2, "e.yaml": 1, "f.yaml": 1, "g.yaml": 1}
    for error, (name, line) in zip(errors, lines.items(), strict=True):
        assert error.startswith(f"Error: repo/{name}:{line}: ")
    assert last.startswith("repo/z.yaml:6: Pod default/train: denied: InvalidQuantity: ")
    assert count == "1 translated, 1 denied, 1 without a pod template (1 (no kind)), 6 unreadable"


@pytest.fixture
def chart(tmp_path):
    made = tmp_path / "manifests" / "chart"
    (made / "templates").mkdir(parents=True)
    (made / "Chart.yaml").write_text("apiVersion: v2\nname: x\n")
    (made / "values.yaml").write_text("a: 1\n")
    (made / "templates" / "pod.yaml").write_text("kind: Pod\n{{- if .Values.a }}\n{{- end }}\n")
    return made


def test_a_helm_chart_is_rendered_by_helm(invoke, chart):
    result = invoke("-f", "manifests/chart")
    assert (result.exit_code, result.stdout) == (2, "")
    said = "this is a Helm chart; run: helm template manifests/chart | vramwarden admit -f -"
    assert result.stderr.endswith(f"manifests/chart: {said}\n")


def test_a_helm_chart_among_others_is_skipped_with_a_word(invoke, chart):
    (chart.parent / "pod.yaml").write_text(POD)
    result = invoke("-R", "-f", "manifests")
    assert result.exit_code == 0
    first, second, _ = result.stderr.splitlines()
    run = "helm template manifests/chart | vramwarden admit -f -"
    assert first == f"manifests/chart: skipped, this is a Helm chart; run: {run}"
    assert second.startswith("manifests/pod.yaml:1: Pod default/train: translated")


def test_a_template_of_a_chart_is_recognised(invoke, chart):
    result = invoke("-f", "manifests/chart/templates")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: manifests/chart/templates/pod.yaml:2: looks like a Helm template that is not "
        "rendered; run: helm template CHART | vramwarden admit -f -\n"
    )


@pytest.mark.parametrize("name", ["kustomization.yaml", "kustomization.yml", "Kustomization"])
def test_a_kustomization_is_applied_by_kubectl(invoke, tmp_path, name):
    made = tmp_path / "overlay"
    made.mkdir()
    (made / "pod.yaml").write_text(POD)
    (made / name).write_text("kind: Kustomization\nresources: [pod.yaml]\n")
    result = invoke("-f", "overlay")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == (
        "overlay: holds a kustomization, which is not applied here; to judge what it makes, "
        "run: kubectl kustomize overlay | vramwarden admit -f -"
    )


def test_help_names_every_form_and_ends_its_sentences(invoke):
    said = " ".join(invoke("--help").stdout.split())
    for form in ("yaml|json|patch|diff|summary|github|junit|report", "-R, --recursive", "-v"):
        assert form in said
    assert "..." not in said.replace("Usage: admit [OPTIONS]", "")
