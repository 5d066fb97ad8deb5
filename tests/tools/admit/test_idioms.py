"""Full output for other products' kinds and for files that are no manifests yet."""

from __future__ import annotations

import pytest

from tests.support.pods import a_policy, a_rule
from tests.tools.admit.runs import POD, run, run_in_full
from tests.tools.admit.test_newcomers import MEMORY, NAME, OTHER_KINDS, TEMPLATE, WRONG, asking
from webhook.tools.admit.verdicts.manifest_text import UNRENDERED

CONTAINERS = "containers: [{name: main, image: example}]"
WITH_TEMPLATE = {name: row.text for name, row in OTHER_KINDS.items() if TEMPLATE in row.text}


@pytest.mark.parametrize("text", WITH_TEMPLATE.values(), ids=WITH_TEMPLATE)
def test_a_pod_template_of_any_kind_is_translated(text):
    result = run(text.replace("8GB", "8Gi"))
    kind = result.value["kind"]
    assert result.code == 0
    verdict, *notes = result.err.splitlines()
    assert verdict == f"{kind} default/x: translated by rule default (8Gi on 1 GPU)"
    assert [": note: " in note for note in notes] == [True] * kind.startswith("Ray")
    assert result.out.count("name: vram-enforcer,") == 1


def test_a_workflow_is_judged_and_printed_as_it_is():
    text = OTHER_KINDS["Workflow"].text.replace("8GB", "8Gi")
    said = "Workflow default/x: translated by rule default (8Gi on 1 GPU) on the cluster, "
    assert run(text) == (0, text, f"{said}and printed as it is\n")
    assert run(text, output="patch").out == "[]\n"


def test_a_virtual_machine_is_told_that_no_share_reaches_it():
    text = OTHER_KINDS["VirtualMachine"].text.replace("8GB", "8Gi")
    said = (
        f"spec.template.metadata.annotations[{MEMORY}]: remove the annotation and use "
        "spec.template.spec.domain.devices.gpus; a share of a GPU reaches no virtual machine"
    )
    assert run(text) == (
        1,
        text,
        (
            "VirtualMachine default/x: left alone (a virtual machine)\n"
            f"VirtualMachine default/x: finding: {said}\n"
        ),
    )


NOTEBOOK = """\
apiVersion: kubeflow.org/v1
kind: Notebook
metadata:
  name: nb
  namespace: team-a
  annotations:
    vramwarden.io/gpu-memory: 8Gi
spec:
  template:
    spec:
      containers:
      - name: nb
        image: example
"""


def test_a_notebooks_own_annotation_counts():
    result = run(NOTEBOOK)
    assert result.err == "Notebook team-a/nb: translated by rule default (8Gi on 1 GPU)\n"
    assert result.value["metadata"]["labels"] == {"vramwarden.io/managed": "true"}
    assert set(result.value["spec"]["template"]) == {"spec"}
    assert result.value["spec"]["template"]["spec"]["shareProcessNamespace"] is True
    bad = run_in_full(NOTEBOOK.replace("8Gi", "8GB"))
    assert bad.err.startswith("a.yaml:7: Notebook team-a/nb: denied: InvalidQuantity: ")


def test_a_notebooks_annotation_at_its_template_is_at_the_wrong_place():
    there = "  template:\n    metadata: {annotations: {vramwarden.io/gpu-memory: 8Gi}}\n"
    text = NOTEBOOK.replace("  annotations:\n    vramwarden.io/gpu-memory: 8Gi\n", "").replace(
        "  template:\n", there
    )
    path = f"spec.template.metadata.annotations[{MEMORY}]"
    said = f"finding: {path}: put it under metadata.annotations; nothing reads it here"
    assert run(text).err.splitlines()[1] == f"Notebook team-a/nb: {said}"


def test_an_annotation_on_an_unknown_kind_itself_is_a_finding():
    text = OTHER_KINDS["PyTorchJob"].text.replace(WRONG, "").replace(NAME, asking("8Gi"))
    place = "spec.pytorchReplicaSpecs.Master.template.metadata.annotations"
    assert run(text).err.splitlines()[1] == (
        f"PyTorchJob default/x: finding: metadata.annotations[{MEMORY}]: put it under {place}; "
        "nothing reads it here"
    )


@pytest.mark.parametrize(
    ("of_master", "of_worker", "word", "beside"),
    [("gpu", "gpu", "and", "MW"), ("cpu", "gpu", "or", "W")],
)
def test_a_key_for_each_template_that_asks_for_gpus_is_to_be_put_under_all(
    of_master, of_worker, word, beside
):
    def template(resource: str) -> str:
        limits = f"resources: {{limits: {{nvidia.com/{resource}: 1}}}}"
        return f"{{template: {{spec: {{containers: [{{name: main, {limits}}}]}}}}}}"

    text = (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {asking('8Gi')}\nspec:\n"
        f"  pytorchReplicaSpecs: {{M: {template(of_master)}, W: {template(of_worker)}}}\n"
    )
    places = [f"spec.pytorchReplicaSpecs.{name}.template.metadata.annotations" for name in "MW"]
    if word == "or":
        places.reverse()
    said = run(text).err
    assert said.count(f": put it under {f' {word} '.join(places)}; nothing reads it here") == 1
    assert said.count("beside that, WholeGPUAndShare: ") == len(beside)
    for name in beside:
        assert f"(spec.pytorchReplicaSpecs.{name}.template): finding: spec." in said


def test_a_label_of_a_namespace_that_a_rule_asks_for_is_read():
    text = (
        "apiVersion: v1\nkind: Namespace\n"
        "metadata: {name: a, labels: {vramwarden.io/tier: gold, vramwarden.io/foo: a}}\n"
    )
    policy = a_policy(a_rule(namespace_labels={"vramwarden.io/tier": "gold"}))
    (carries, finding) = run(text, policy=policy).err.splitlines()
    assert ": finding: metadata.labels[vramwarden.io/foo]: " in finding, carries


def test_several_templates_of_one_object_are_told_apart():
    text = (
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: x}\nspec:\n"
        f"  headGroupSpec: {{template: {TEMPLATE}}}\n"
        f"  workerGroupSpecs: [{{template: {{spec: {{{CONTAINERS}}}}}}}]\n"
    )
    head, note, worker = run_in_full(text).err.splitlines()[:3]
    assert ": note: spec.headGroupSpec.rayStartParams: write num-gpus: " in note
    assert head.startswith("a.yaml:5: RayCluster default/x (spec.headGroupSpec.template): denied")
    assert worker == (
        "a.yaml:6: RayCluster default/x (spec.workerGroupSpecs[0].template): "
        "left alone (asks for no VRAM)"
    )


def test_objects_without_a_template_are_counted_and_named_on_request():
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: team-a}\n"
    text = f"{text}---\n{text}---\n# a role\nkind: ClusterRole\nmetadata: {{name: r}}\n"
    counted = "3 without a pod template (2 ConfigMap, 1 ClusterRole)"
    assert run_in_full(text).err == f"{counted}\n"
    assert run_in_full(text, verbose=True).err.splitlines() == [
        "a.yaml:1: ConfigMap team-a/c: no pod template",
        "a.yaml:5: ConfigMap team-a/c: no pod template",
        "a.yaml:10: ClusterRole r: no pod template",
        counted,
    ]


def test_two_deployments_of_one_name_are_told_apart_by_file_and_line():
    web = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n"
        "    metadata:\n      annotations:\n        vramwarden.io/gpu-memory: 8Gi\n"
        f"    spec: {{{CONTAINERS}}}\n"
    )
    first, second, tally = run_in_full(web, web.replace("8Gi", "8GB")).err.splitlines()
    assert first == "a.yaml:5: Deployment default/web: translated by rule default (8Gi on 1 GPU)"
    assert second.startswith("b.yaml:8: Deployment default/web: denied: InvalidQuantity: ")
    assert tally == "1 translated, 1 denied"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            POD.replace("kind: Pod", "kind: pod"),
            'a.yaml:2: "pod" is no kind of Kubernetes; write kind: Pod',
        ),
        ("metadata:\n  {{- toYaml .Values.x }}\n", f"a.yaml:2: {UNRENDERED}"),
        (
            POD.replace("name: train", 'name: "{{ .Release.Name }}"'),
            f"a.yaml:4: {UNRENDERED}",
        ),
        ("{{ if .Values.on }}\nkind: Pod\n{{ end }}\n", f"a.yaml:1: {UNRENDERED}"),
    ],
)
def test_what_is_no_manifest_yet_is_rejected(text, said):
    assert run_in_full(text) == (2, "", f"Error: {said}\n")


def test_an_expression_of_argos_is_no_template_of_helm():
    text = OTHER_KINDS["Workflow"].text.replace("example", '"{{inputs.parameters.image}}"')
    assert run(text.replace("8GB", "8Gi")).code == 0
    assert run(f"{text}\tx: y\n").err.startswith("Error: a.yaml:5: not valid YAML: ")


def test_objects_of_a_json_stream_have_their_own_lines():
    one = '{"kind": "ConfigMap",\n "metadata": {"name": "c"}}\n'
    lines = run_in_full(f"---\n{one}\n{one}", verbose=True).err.splitlines()
    assert lines[:2] == [
        "a.yaml:2: ConfigMap c: no pod template",
        "a.yaml:5: ConfigMap c: no pod template",
    ]
