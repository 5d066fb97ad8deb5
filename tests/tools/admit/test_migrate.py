"""`admit --migrate`: a folder per case in `migrated`; options and output formats.

In each folder, `input.yaml` results in `expected.yaml` and `expected.txt` (the messages).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.golden_files import assert_recorded
from tests.support.pods import a_policy
from tests.tools.admit.runs import run_in_full
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.tools.admit.migration.foreign_pod import Origin
from webhook.tools.admit.migration.requests import PRODUCTS
from webhook.tools.admit.output import ci_reports

FOLDER = Path(__file__).parent / "migrated"
CASES = {
    "hami": Origin(PRODUCTS["hami"], 40 * 2**30),
    "hami-unsized": Origin(PRODUCTS["hami"]),
    "kai": Origin(PRODUCTS["kai"], 16 * 2**30),
    "gpushare": Origin(PRODUCTS["gpushare"]),
    "whole": Origin(PRODUCTS["whole"], 16 * 2**30),
    "nothing": Origin(PRODUCTS["hami"]),
}
MEMORY = "vramwarden.io/gpu-memory"
POLICY = a_policy(whole_gpu_resources=WHOLE_GPU_RESOURCES)


def migrated(case: str, text: str | None = None, *, output: str = "yaml"):
    return run_in_full(
        text or (FOLDER / case / "input.yaml").read_text(),
        policy=POLICY,
        namespace="team-a",
        output=output,
        origin=CASES[case],
    )


@pytest.mark.parametrize("case", sorted(CASES))
def test_manifests_come_out_as_recorded(case):
    folder = FOLDER / case
    result = migrated(case)
    made = {
        "expected.yaml": result.out,
        "expected.txt": f"{result.err}exit code {result.code}\n",
    }
    for name, text in made.items():
        assert_recorded(folder / name, text)
    assert {path.name for path in folder.iterdir()} == {"input.yaml", *made}


def test_every_folder_is_a_case():
    assert {path.name for path in FOLDER.iterdir()} == {*CASES}


@pytest.mark.parametrize("case", sorted(CASES))
def test_migrating_twice_is_migrating_once(case):
    once = migrated(case)
    twice = migrated(case, once.out)
    assert twice.out == once.out
    assert ": migrated: " not in twice.err


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_differences_are_those_of_the_migration(case):
    """The diff contains no changes by admission, which the manifest does not show."""
    diff = migrated(case, output="diff").out
    assert "vram-enforcer" not in diff
    assert ("+++ a.yaml (migrated)" in diff) == (case != "nothing")


def test_a_patch_is_that_of_the_manifest():
    (patch,) = map(json.loads, migrated("hami", POD, output="patch").out.splitlines())
    assert patch == [
        {
            "op": "add",
            "path": "/metadata/annotations",
            "value": {"vramwarden.io/gpu-memory": "3000Mi"},
        },
        {"op": "remove", "path": "/spec/containers/0/resources"},
    ]


POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  containers:
  - name: main
    image: example
    resources:
      limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 10}
"""
STUCK = POD.replace("nvidia.com/gpumem: 3000, ", "")


def test_a_workload_without_a_template_is_left_alone():
    text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {}}\n"
    result = migrated("hami", text)
    assert (result.code, result.out) == (0, text)
    assert "Deployment team-a/x: left alone (no pod template)" in result.err


def test_what_has_no_place_for_a_pod_is_said_and_not_rewritten():
    text = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model:
      resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}
"""
    result = migrated("hami", text)
    said = (
        "not migrated: spec.predictor.annotations: InferenceService is not rewritten; by hand, "
        "write vramwarden.io/gpu-memory: 3000Mi"
    )
    assert (result.code, result.out) == (1, text)
    assert said in result.err
    asked = text.replace(
        "predictor:", "predictor:\n    annotations: {vramwarden.io/gpu-memory: 3Gi}"
    )
    assert "by hand, remove what HAMi read" in migrated("hami", asked).err


ELSEWHERE = {
    "spec.services.w.resources.limits[gpu]": (
        "nvidia.com/v1alpha1",
        "{services: {w: {resources: {limits: {gpu: '1'}}}}}",
    ),
    "spec.trainer.resourcesPerNode.requests[nvidia.com/gpu]": (
        "trainer.kubeflow.org/v1alpha1",
        "{trainer: {resourcesPerNode: {requests: {nvidia.com/gpu: 1}}}}",
    ),
}


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize("metadata", ["{name: x}", f"{{name: x, annotations: {{{MEMORY}: 8Gi}}}}"])
def test_what_pods_that_are_made_elsewhere_ask_for_is_not_migrated(path, metadata):
    version, spec = ELSEWHERE[path]
    text = f"apiVersion: {version}\nkind: A\nmetadata: {metadata}\nspec: {spec}\n"
    said = f"{path}: by hand, remove it and give the pods the annotation {MEMORY}; A is not rewrit"
    whole = migrated("whole", text)
    assert (whole.code, whole.out, f": A x: not migrated: {said}" in whole.err) == (1, text, True)
    assert whole.err.splitlines()[-1].startswith("1 not migrated, 1 ")
    assert f"::error file=a.yaml,line=4,title=vramwarden::A x: {said}" in (
        migrated("whole", text, output="github").out
    )
    assert migrated("kai", text).code == migrated("whole", text.replace("gpu: ", "cpu: ")).code == 0


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: a.io/v1\nkind: A\nlimits: [{nvidia.com/gpu: 1}, nvidia.com/gpu, [1]]\n",
        "apiVersion: a.io/v1\nkind: A\nlimits: {1: 1}\n",
        "apiVersion: v1\nkind: Service\nlimits: {nvidia.com/gpu: 1}\n",
    ],
)
def test_what_is_no_amount_of_a_pod_is_nothing_to_migrate(text):
    assert migrated("whole", text).code == 0


def test_a_json_list_holds_what_is_migrated():
    made = json.loads(migrated("hami", POD, output="json").out)
    assert made["metadata"]["annotations"] == {"vramwarden.io/gpu-memory": "3000Mi"}


def test_reports_say_what_was_carried_over_and_what_not(monkeypatch):
    monkeypatch.setattr(ci_reports, "__version__", "0.0.0")
    (done,) = json.loads(migrated("hami", POD, output="report").out)["verdicts"]
    assert done["migration"] == {
        "product": "HAMi",
        "asks": "vramwarden.io/gpu-memory: 3000Mi",
        "problems": [],
        "notes": [
            {
                "field": "spec.containers[0].resources.limits[nvidia.com/gpucores]",
                "line": 10,
                "sentence": "spec.containers[0].resources.limits[nvidia.com/gpucores]: 10 is "
                "removed: compute is not divided here, and pods of one GPU take turns",
            }
        ],
    }
    (stuck,) = json.loads(migrated("hami-unsized", STUCK, output="report").out)["verdicts"]
    (problem,) = stuck["migration"]["problems"]
    assert (problem["line"], stuck["migration"]["asks"]) == (10, "")


def test_what_is_not_migrated_fails_in_continuous_integration():
    place = "file=a.yaml,line=10,title=vramwarden"
    github = migrated("hami-unsized", STUCK, output="github")
    assert github.code == 1
    (line,) = [line for line in github.out.splitlines() if line.startswith("::error")]
    assert line.startswith(f"::error {place}::Pod team-a/train: spec.containers[0].resources")
    junit = migrated("hami-unsized", STUCK, output="junit").out
    assert 'tests="1" failures="1"' in junit
    assert '<failure type="NotMigrated" message="not migrated: spec.containers[0]' in junit
    carried = migrated("hami", POD, output="junit").out
    assert 'tests="1" failures="0"' in carried


def test_the_summary_says_it_beside_what_admission_adds():
    said = migrated("hami", POD, output="summary").out
    assert "  migrated    a.yaml:1: from HAMi to vramwarden.io/gpu-memory: 3000Mi\n" in said
    assert "  sidecar     vram-enforcer (cap 3000Mi per GPU" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu-memory", "8Gi"], "--gpu-memory is for --migrate; add --migrate, or remove it"),
        (["--gpu-memory-unit", "1Mi"], "--gpu-memory-unit is for --migrate; add --migrate"),
        (["--migrate", "kai", "--gpu-memory-unit", "1Mi"], "--migrate kai has no unit; remove"),
        (["--migrate", "whole"], "--migrate whole needs to know what a whole GPU becomes; add"),
        (["--migrate", "hami", "--gpu-memory", "8GB"], '"8GB" is not a Kubernetes quantity; use'),
        (["--migrate", "nos"], "'nos' is not one of 'hami', 'kai', 'gpushare', 'whole'"),
    ],
)
def test_options_that_mean_nothing_are_rejected(invoke, arguments, says):
    result = invoke("-f", "-", *arguments, stdin=POD)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_options_reach_the_migration(invoke):
    by_unit = invoke("-f", "-", "--migrate", "hami", "--gpu-memory-unit", "2Mi", stdin=POD)
    assert (by_unit.exit_code, "vramwarden.io/gpu-memory: 6000Mi\n" in by_unit.stdout) == (0, True)
    whole = invoke("-f", "-", "--migrate", "hami", "--gpu-memory", "24Gi", stdin=STUCK)
    assert (whole.exit_code, "vramwarden.io/gpu-memory: 24Gi\n" in whole.stdout) == (0, True)
    unknown = invoke("-f", "-", "--migrate", "hami", stdin=STUCK)
    assert (unknown.exit_code, unknown.stdout) == (1, STUCK)


SCHEDULERS = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  schedulerName: [hami-scheduler]
  containers:
  - name: c
    image: x
%s
"""


@pytest.mark.parametrize("asks", ["", "    resources: {limits: {nvidia.com/gpumem: 3000}}"])
def test_the_name_of_a_scheduler_may_be_anything(asks):
    result = migrated("hami", SCHEDULERS % asks)
    assert "schedulerName: [hami-scheduler]" in result.out
    assert "places" not in result.err
