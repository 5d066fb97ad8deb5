"""Pod templates are found by structure in any kind, and by path in built-in kinds."""

from __future__ import annotations

import pytest
import yaml

from webhook.core.admission.stray_keys import search_stray_keys
from webhook.core.bounds import MAX_TEMPLATE_DEPTH
from webhook.core.pod import pod_templates
from webhook.core.pod.pod_templates import Form, TooMuchToSearchError, format_path
from webhook.core.pod.template_search import (
    find_kind_ignoring_case,
    find_templates,
    is_builtin_kind,
)

POD = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}


def found(text: str):
    obj = yaml.safe_load(text)
    return find_templates(obj, obj["kind"], obj["apiVersion"])


MEMORY = "vramwarden.io/gpu-memory"
DEFAULT = "kubectl.kubernetes.io/default-container"
TEMPLATE = "{metadata: {annotations: {a: b}}, spec: {containers: [{name: main}]}}"
KINDS = {
    "PyTorchJob": (
        f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {TEMPLATE}}}
    Worker: {{replicas: 4, template: {TEMPLATE}}}
""",
        [
            "spec.pytorchReplicaSpecs.Master.template",
            "spec.pytorchReplicaSpecs.Worker.template",
        ],
    ),
    "RayCluster": (
        f"""
apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec: {{template: {TEMPLATE}}}
  workerGroupSpecs: [{{replicas: 2, template: {TEMPLATE}}}]
""",
        ["spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template"],
    ),
    "Knative Service": (
        f"""
apiVersion: serving.knative.dev/v1
kind: Service
spec: {{template: {TEMPLATE}}}
""",
        ["spec.template"],
    ),
    "JobSet": (
        f"""
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
  - {{name: w, template: {{spec: {{template: {TEMPLATE}}}}}}}
""",
        ["spec.replicatedJobs[0].template.spec.template"],
    ),
    "Volcano Job": (
        f"""
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
spec: {{tasks: [{{replicas: 1, name: t, template: {TEMPLATE}}}]}}
""",
        ["spec.tasks[0].template"],
    ),
    "LeaderWorkerSet": (
        f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    leaderTemplate: {TEMPLATE}
    workerTemplate: {TEMPLATE}
""",
        [
            "spec.leaderWorkerTemplate.leaderTemplate",
            "spec.leaderWorkerTemplate.workerTemplate",
        ],
    ),
}


@pytest.mark.parametrize(("text", "fields"), KINDS.values(), ids=KINDS)
def test_templates_are_found_where_they_stand(text, fields):
    templates = found(text)
    assert [template.field for template in templates] == fields
    assert [(template.pod, template.form) for template in templates] == [(POD, Form.POD)] * len(
        fields
    )
    place = templates[0].place(("metadata", "annotations"))
    assert format_path(place) == f"{fields[0]}.metadata.annotations"


def test_a_notebooks_pods_get_its_own_metadata():
    (template,) = found("""
apiVersion: kubeflow.org/v1
kind: Notebook
metadata: {name: nb, annotations: {vramwarden.io/gpu-memory: 8Gi}}
spec: {template: {spec: {containers: [{name: nb}]}}}
""")
    assert template.field == "spec.template"
    assert template.place(("metadata", "annotations")) == ("metadata", "annotations")
    assert template.pod == {
        "metadata": {"name": "nb", "annotations": {"vramwarden.io/gpu-memory": "8Gi"}},
        "spec": {"containers": [{"name": "nb"}]},
    }


WORKFLOW = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
spec:
  podMetadata: {annotations: {a: common, b: common}}
  templates:
  - name: train
    metadata: {annotations: {a: own}}
    container: {image: example}
    sidecars: [{name: side}]
  - name: steps
    steps: []
  - name: script
    script: {image: example, source: print()}
  - name: set
    containerSet: {containers: [{name: one}]}
"""


def test_a_workflows_templates_are_pods_of_one_container():
    train, script, many = found(WORKFLOW)
    assert {item.form for item in (train, script, many)} == {Form.CONTAINER}
    assert train.field == "spec.templates[0]"
    assert train.pod == {
        "metadata": {"annotations": {DEFAULT: "main", "a": "own", "b": "common"}},
        "spec": {"containers": [{"image": "example", "name": "main"}, {"name": "side"}]},
    }
    assert script.pod["spec"]["containers"][0]["name"] == "main"
    assert script.pod["metadata"] == {
        "annotations": {DEFAULT: "main", "a": "common", "b": "common"}
    }
    assert many.pod["metadata"]["annotations"][DEFAULT] == "one"
    assert many.pod["spec"]["containers"] == [{"name": "one"}]


def test_a_cron_workflow_is_one_level_deeper():
    text = WORKFLOW.replace("kind: Workflow", "kind: CronWorkflow").replace(
        "spec:\n", "spec:\n workflowSpec:\n", 1
    )
    assert [item.field for item in found(text)] == [
        f"spec.workflowSpec.templates[{n}]" for n in (0, 2, 3)
    ]


KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama, annotations: {a: common, vramwarden.io/gpu-memory: 8Gi}, labels: {c: d}}
spec:
  predictor:
    annotations: {a: own}
    nodeSelector: {e: f}
    model: {modelFormat: {name: huggingface}, args: [x]}
  transformer:
    containers: [{image: example}, {name: side}]
"""


def test_kserves_components_are_pods_with_the_services_metadata():
    predictor, transformer = found(KSERVE)
    assert {item.form for item in (predictor, transformer)} == {Form.INLINE}
    assert [item.field for item in (predictor, transformer)] == [
        "spec.predictor",
        "spec.transformer",
    ]
    metadata = {"annotations": {"a": "own", MEMORY: "8Gi"}, "labels": {"c": "d"}}
    assert predictor.pod["metadata"] == metadata
    (container,) = predictor.pod["spec"]["containers"]
    assert (container["name"], container["args"]) == ("kserve-container", ["x"])
    assert predictor.pod["spec"]["nodeSelector"] == {"e": "f"}
    names = [container["name"] for container in transformer.pod["spec"]["containers"]]
    assert names == ["kserve-container", "side"]
    at = {
        ("metadata", "annotations", "a"): "spec.predictor.annotations[a]",
        ("metadata", "annotations", MEMORY): f"metadata.annotations[{MEMORY}]",
        ("metadata", "annotations", "new"): "spec.predictor.annotations[new]",
        ("spec", "containers", 0, "args"): "spec.predictor.model.args",
        ("spec", "nodeSelector"): "spec.predictor.nodeSelector",
    }
    assert {path: format_path(predictor.place(path)) for path in at} == at


LLM = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llama, annotations: {a: unread}}
spec:
  annotations: {a: own}
  template: {containers: [{name: main, args: [x]}]}
  worker: {containers: [{name: main}]}
  prefill: {labels: {c: d}, template: {containers: [{name: main}]}, worker: {nodeSelector: {e: f}}}
"""
NIM = """
apiVersion: apps.nvidia.com/v1alpha1
kind: NIMService
metadata: {name: llama, annotations: {a: unread}}
spec:
  annotations: {a: own}
  image: {repository: nvcr.io/nim/llama, tag: "1"}
  resources: {limits: {cpu: 1}}
  nodeSelector: {e: f}
"""


def test_pods_of_an_llm_inference_service_get_the_metadata_of_their_workload():
    main, worker, prefill = found(LLM)
    assert {item.form for item in (main, worker, prefill)} == {Form.INLINE}
    assert main.pod["metadata"] == worker.pod["metadata"] == {"annotations": {"a": "own"}}
    assert prefill.pod["metadata"] == {"labels": {"c": "d"}}
    fields = {
        ("metadata", "annotations"): ("spec.annotations", "spec.prefill.annotations"),
        ("spec", "containers", 0, "args"): (
            "spec.template.containers[0].args",
            "spec.prefill.template.containers[0].args",
        ),
    }
    for path, shown in fields.items():
        assert tuple(format_path(item.place(path)) for item in (main, prefill)) == shown


def test_a_nim_service_is_one_container():
    (template,) = found(NIM)
    assert template.pod == {
        "metadata": {"annotations": {"a": "own"}},
        "spec": {
            "containers": [
                {
                    "name": "llama-ctr",
                    "image": "nvcr.io/nim/llama:1",
                    "resources": {"limits": {"cpu": 1}},
                }
            ],
            "nodeSelector": {"e": "f"},
        },
    }
    limits = template.place(("spec", "containers", 0, "resources", "limits"))
    assert format_path(limits) == "spec.resources.limits"
    assert format_path(template.place(("metadata", "annotations"))) == "spec.annotations"


def test_a_workflows_fields_stand_where_they_were_written():
    common = f"podMetadata: {{annotations: {{{MEMORY}: 8Gi, "
    train, _, many = found(WORKFLOW.replace("podMetadata: {annotations: {", common))
    at = {
        ("metadata", "annotations", "a"): "spec.templates[0].metadata.annotations[a]",
        ("metadata", "annotations", MEMORY): f"spec.podMetadata.annotations[{MEMORY}]",
        ("spec", "containers", 0, "image"): "spec.templates[0].container.image",
        ("spec", "containers", 1): "spec.templates[0].sidecars[0]",
        ("spec", "volumes"): "spec.templates[0].volumes",
    }
    assert {path: format_path(train.place(path)) for path in at} == at
    place = many.place(("spec", "containers", 0))
    assert format_path(place) == "spec.templates[3].containerSet.containers[0]"


def test_only_kinds_of_others_may_leave_out_a_containers_name():
    nameless = (
        "spec: {template: {spec: {containers: [{image: a}, {name: b}], initContainers: [{}]}}}"
    )
    (knative,) = found(f"apiVersion: serving.knative.dev/v1\nkind: Service\n{nameless}")
    spec = knative.pod["spec"]
    assert [container["name"] for container in spec["containers"]] == ["user-container", "b"]
    assert spec["initContainers"] == [{"name": "user-container-init"}]
    (deployment,) = found(f"apiVersion: apps/v1\nkind: Deployment\n{nameless}")
    assert deployment.pod["spec"]["containers"][0] == {"image": "a"}


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ({"a": {MEMORY: "8Gi"}, "b": [{"c": {MEMORY: 8}}]}, ["a", "b[0].c"]),
        ({"limits": {"vramwarden.io/vram": "8Gi"}, "max": {"vramwarden.io/vram": 1}}, ["limits"]),
        ({"a": f"x: y\n{MEMORY}: 8Gi", "b": f'"{MEMORY}" : 8Gi'}, ["a", "b"]),
        ({"a": f"kind: VRAMPolicy\n{MEMORY}: 8Gi", "b": f"has({MEMORY})"}, []),
        ({"template": {**POD, "spec": {**POD["spec"], "x": {MEMORY: 1}}}}, ["template.spec.x"]),
        ({"template": POD, "a": f"{MEMORY}: 8Gi"}, []),
    ],
)
def test_keys_that_no_template_has_are_found_and_in_texts_where_there_is_none(text, fields):
    templates = find_templates(text, "A", "a.io/v1")
    said = search_stray_keys(text, "a.io/v1", templates)
    assert [line.field.partition("[vramwarden")[0] for line in said] == fields
    assert search_stray_keys(text, "vramwarden.io/v1alpha1", []) == ()


@pytest.mark.parametrize(
    ("kind", "above", "field"),
    [("VirtualMachine", "spec:\n  template:", "spec.template"), ("VirtualMachineInstance", "", "")],
)
def test_a_virtual_machine_is_found_without_containers(kind, above, field):
    body = "\n    metadata: {annotations: {a: b}}\n    spec: {domain: {devices: {}}}\n"
    if not above:
        body = body.replace("    ", "")
    (template,) = found(f"apiVersion: kubevirt.io/v1\nkind: {kind}\n{above}{body}")
    assert (template.field, template.form) == (field, Form.MACHINE)
    assert template.pod == {"metadata": {"annotations": {"a": "b"}}}


@pytest.mark.parametrize(
    "text",
    [
        "{apiVersion: v1, kind: ConfigMap, data: {a: 'spec: {containers: []}'}}",
        "{apiVersion: a.io/v1, kind: A, spec: {template: {spec: {containers: []}}}}",
        "{apiVersion: a.io/v1, kind: A, spec: {template: {spec: {containers: [a]}}}}",
        "{apiVersion: a.io/v1, kind: A, spec: {templates: {container: {image: a}}}}",
        "{apiVersion: a.io/v1, kind: A, spec: {template: {spec: {domain: example.com}}}}",
        "{apiVersion: monitoring.coreos.com/v1, kind: Prometheus, spec: {containers: [{name: a}]}}",
    ],
)
def test_what_has_another_shape_is_none(text):
    assert found(text) == []


def test_kubernetes_own_kinds_have_one_template_whatever_it_holds():
    (none,) = found("{apiVersion: apps/v1, kind: Deployment, spec: {template: 1}}")
    assert (none.field, none.pod) == ("spec.template", None)
    (empty,) = found("{apiVersion: batch/v1, kind: CronJob, spec: {jobTemplate: {spec: {template: {}}}}}")  # fmt: skip  # noqa: E501
    assert (empty.field, empty.pod) == ("spec.jobTemplate.spec.template", {})


@pytest.mark.parametrize(
    ("kind", "version", "own", "meant"),
    [
        ("Pod", "v1", True, ""),
        ("Pod", "", True, ""),
        ("Deployment", "apps/v1", True, ""),
        ("Job", "batch.volcano.sh/v1alpha1", False, ""),
        ("pod", "v1", False, "Pod"),
        ("statefulset", "apps/v1", False, "StatefulSet"),
        ("JOB", "batch.volcano.sh/v1alpha1", False, ""),
        ("ConfigMap", "v1", False, ""),
    ],
)
def test_kinds_are_known_by_their_exact_name(kind, version, own, meant):
    assert (is_builtin_kind(kind, version), find_kind_ignoring_case(kind, version)) == (own, meant)


def nested(depth: int):
    value = POD
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_search_has_bounds_and_says_so(monkeypatch):
    deep = f"nests more than {MAX_TEMPLATE_DEPTH} levels deep; flatten it"
    assert len(find_templates(nested(60), "A", "a.io/v1")) == 1
    with pytest.raises(TooMuchToSearchError, match=deep):
        find_templates(nested(100_000), "A", "a.io/v1")
    with pytest.raises(TooMuchToSearchError, match="more than 1,000 pod templates; split it"):
        find_templates({"a": [POD] * 1001}, "A", "a.io/v1")
    assert len(find_templates({"a": [POD] * 1000}, "A", "a.io/v1")) == 1000
    with pytest.raises(TooMuchToSearchError, match="more than 1,000 keys of ours; split it"):
        search_stray_keys({"a": [{MEMORY: "8Gi"}] * 1001}, "a.io/v1", [])
    monkeypatch.setattr(pod_templates, "MAX_VALUES", 100)
    with pytest.raises(TooMuchToSearchError, match="holds more than 100 values; split it"):
        find_templates({"a": [0] * 101}, "A", "a.io/v1")
