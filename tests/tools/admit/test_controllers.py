"""Pods for which a controller merges more than the template: merged, or reported as not judged."""

from __future__ import annotations

import re

import pytest

from tests.support.pods import a_policy, a_rule
from tests.tools.admit.runs import POD, run, run_in_full
from webhook.core.policy.model import MemoryBounds
from webhook.tools.admit.migration.foreign_pod import Origin
from webhook.tools.admit.migration.requests import PRODUCTS

MEMORY = "vramwarden.io/gpu-memory"
VRAM = "vramwarden.io/vram"
ASKS = f"annotations: {{{MEMORY}: 2Gi}}"


def workflow(common: str = "", own: str = "", kind: str = "Workflow") -> str:
    return (
        f"apiVersion: argoproj.io/v1alpha1\nkind: {kind}\nmetadata: {{name: w}}\nspec:\n"
        f"  entrypoint: go\n{common}  templates:\n  - name: go\n{own}"
        "    container: {image: a, volumeMounts: [{name: dev, mountPath: /dev}]}\n"
    )


META = f"    metadata: {{{ASKS}}}\n"
PATCH = (
    '    podSpecPatch: \'{"containers":\t[{"name": "main", "resources": {"limits": '
    f'{{"{VRAM}": "4Gi"}}}}}}]}}\'\n'
)
DENIED = {
    "a patch": (
        workflow("", META + PATCH),
        9,
        "ConflictingAmounts: spec.templates[0].podSpecPatch.",
    ),
    "a parameter of a patch": (
        workflow(
            "  arguments: {parameters: [{name: mem, value: 8GB}]}\n"
            "  podSpecPatch: |\n    containers:\n    - name: main\n"
            f'      resources: {{limits: {{{VRAM}: "{{{{workflow.parameters.mem}}}}"}}}}\n',
            kind="WorkflowTemplate",
        ),
        7,
        f"InvalidQuantity: spec.podSpecPatch.containers[0].resources.limits[{VRAM}]: 8GB is not a ",
    ),
    "a volume": (
        workflow("  volumes: [{name: dev, hostPath: {path: /dev}}]\n", META),
        6,
        "HostPath: spec.volumes[0].hostPath.path: ",
    ),
    "a node selector": (
        workflow("  nodeSelector: {vramwarden.io/gpu: 'false'}\n", META),
        6,
        "NodeSelectorConflict: spec.nodeSelector[vramwarden.io/gpu]: ",
    ),
    "a default": (
        workflow(f"  templateDefaults: {{metadata: {{annotations: {{{MEMORY}: 8GB}}}}}}\n"),
        6,
        f"InvalidQuantity: spec.templateDefaults.metadata.annotations[{MEMORY}]: ",
    ),
}


@pytest.mark.parametrize(("text", "line", "said"), DENIED.values(), ids=DENIED)
def test_a_workflow_is_judged_with_what_argo_adds(text, line, said):
    result = run_in_full(text)
    assert result.code == 1
    assert result.err.startswith(f"a.yaml:{line}: {'Workflow'}")
    assert f": denied: {said}" in result.err


@pytest.mark.parametrize(
    "text",
    [
        workflow("  serviceAccountName: intern\n", META),
        workflow("", f"{META}    serviceAccountName: intern\n"),
        workflow("  serviceAccountName: other\n", f"{META}    serviceAccountName: intern\n"),
        workflow("  podSpecPatch: 'serviceAccountName: intern'\n", META),
    ],
)
def test_a_rule_by_service_accounts_applies_to_workflows(text):
    interns = a_rule(
        name="interns", service_accounts=("intern",), memory=MemoryBounds(max_bytes=2**30)
    )
    said = run(text, policy=a_policy(interns, a_rule(name="all"))).err
    assert said.startswith("Workflow default/w: denied: TooLarge: ")
    assert 'rule "interns" allows at most 1Gi' in said


KSERVE = (
    "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n"
    f"metadata: {{name: x, {ASKS}}}\nspec:\n  predictor:\n"
)
SPARK = (
    "apiVersion: sparkoperator.k8s.io/v1beta2\nkind: SparkApplication\nmetadata: {name: x}\nspec:\n"
)
NOT_JUDGED = {
    "a patch with an expression": (
        workflow("  podSpecPatch: 'priority: {{inputs.parameters.a}}'\n", META),
        "spec.podSpecPatch was not judged (it holds {{inputs.parameters.a}})",
    ),
    "a template of another object": (
        workflow("", META) + "  - {name: b, steps: [[{templateRef: {name: c, template: d}}]]}\n",
        "spec.templates[1].steps[0][0].templateRef was not judged (WorkflowTemplate c)",
    ),
    "a manifest in a text": (
        workflow("", META) + f"  - {{name: b, resource: {{manifest: 'a: {{{MEMORY}: 8GB}}'}}}}\n",
        "spec.templates[1].resource.manifest was not judged (it is a text)",
    ),
    "KServe's configuration": (
        (
            "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\n"
            f"metadata: {{name: x}}\nspec: {{{ASKS}, template: {{containers: [{{name: main}}]}}}}\n"
        ),
        "spec.template was not judged (an LLMInferenceServiceConfig adds to it)",
    ),
    "KServe's runtime": (
        f"{KSERVE}    model: {{modelFormat: {{name: a}}, runtime: vllm}}\n",
        "spec.predictor.model was not judged (ServingRuntime vllm adds to it)",
    ),
    "KServe's own choice of one": (
        f"{KSERVE}    triton: {{}}\n    workerSpec: {{}}\n",
        (
            "spec.predictor.triton was not judged (a ServingRuntime adds to it); "
            "spec.predictor.workerSpec was not judged (its pods are further ones)"
        ),
    ),
    "programs of Ray Serve": (
        (
            "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: x}\nspec:\n"
            "  serveConfigV2: 'engine_kwargs: {gpu_memory_utilization: 1, accelerator_type: A10}'\n"
            f"  rayClusterConfig: {{headGroupSpec: {{rayStartParams: {{num-gpus: '1'}}, "
            f"template: {{metadata: {{{ASKS}}}, spec: {{containers: [{{name: a}}]}}}}}}}}\n"
        ),
        (
            "spec.serveConfigV2 was not judged (it sets engine_kwargs, gpu_memory_utilization, "
            "accelerator_type)"
        ),
    ),
    "Spark's file": (
        (
            f"{SPARK}  sparkConf: {{spark.kubernetes.executor.podTemplateFile: a}}\n"
            f"  executor: {{{ASKS}}}\n"
        ),
        "spec.sparkConf[spark.kubernetes.executor.podTemplateFile] was not judged (it is a file)",
    ),
}


@pytest.mark.parametrize(("text", "said"), NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_what_cannot_be_merged_is_named_in_the_verdict(text, said):
    result = run(text)
    assert result.code == 0
    (verdict,) = result.err.splitlines()
    place = "" if "ray.io" in text else " on the cluster, and printed as it is"
    assert verdict.endswith(f" (2Gi on 1 GPU){place}; {said}")
    assert f"; {said}" in run(text, output="summary").out


def test_a_train_job_names_its_runtime_and_its_patches_are_no_pods():
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: x}\nspec:\n"
        "  runtimeRef: {name: torch}\n  podTemplateOverrides:\n"
        f"  - {{metadata: {{{ASKS}}}, spec: {{containers: [{{name: node}}]}}}}\n"
    )
    result = run(text)
    assert (result.code, result.out) == (0, text)
    assert result.err == (
        f"TrainJob x: carries {MEMORY} and was not judged; its pods are made elsewhere; "
        "spec.runtimeRef was not judged (ClusterTrainingRuntime torch)\n"
    )
    assert run(text.replace("2Gi", "8GB")).code == 1
    (_, finding) = run(text.replace("{name: x}", f"{{name: x, {ASKS}}}")).err.splitlines()
    assert finding.startswith(
        f"TrainJob x: finding: metadata.annotations[{MEMORY}]: write vramwarden.io/vram under "
        "spec.trainer.resourcesPerNode.limits; "
    )


SPARK_DENIED = {
    "a GPU of the configuration": (
        (
            "  sparkConf: {spark.executor.resource.gpu.amount: '1', "
            "spark.executor.resource.gpu.vendor: nvidia.com}\n"
            f"  executor: {{{ASKS}}}\n"
        ),
        "WholeGPUAndShare: spec.sparkConf[spark.executor.resource.gpu.amount]: ",
    ),
    "a GPU": (
        f"  executor: {{{ASKS}, gpu: {{name: nvidia.com/gpu, quantity: 1}}}}\n",
        "WholeGPUAndShare: spec.executor.gpu: ",
    ),
    "an annotation of the configuration": (
        f"  sparkConf: {{spark.kubernetes.driver.annotation.{MEMORY}: 8GB}}\n  driver: {{}}\n",
        f"InvalidQuantity: spec.sparkConf[spark.kubernetes.driver.annotation.{MEMORY}]: ",
    ),
    "a volume": (
        (
            "  volumes: [{name: a, hostPath: {path: /dev}}]\n"
            f"  executor: {{{ASKS}, volumeMounts: [{{name: a, mountPath: /dev}}]}}\n"
        ),
        "HostPath: spec.volumes[0].hostPath.path: ",
    ),
    "a template": (
        f"  driver: {{{ASKS}, template: {{spec: {{hostIPC: true, containers: [{{name: a}}]}}}}}}\n",
        "HostIPC: spec.driver.template.spec.hostIPC: ",
    ),
    "a node selector": (
        f"  nodeSelector: {{kubernetes.io/os: windows}}\n  driver: {{{ASKS}}}\n",
        "UnsupportedOS: spec.nodeSelector[kubernetes.io/os]: ",
    ),
    "a container's privilege": (
        f"  executor: {{{ASKS}, securityContext: {{privileged: true}}}}\n",
        "PrivilegedContainer: spec.executor.securityContext.privileged: ",
    ),
}


@pytest.mark.parametrize(("spec", "said"), SPARK_DENIED.values(), ids=SPARK_DENIED)
def test_a_spark_application_is_judged_with_what_spark_adds(spec, said):
    text = SPARK + spec
    policy = a_policy(whole_gpu_resources=("nvidia.com/gpu",))
    result = run(text, policy=policy)
    assert result.code == 1
    assert f": denied: {said}" in result.err


@pytest.mark.parametrize(
    ("model", "is_told"),
    [
        ("model: {modelFormat: {name: huggingface}}", True),
        ("huggingface: {args: [--model_id=a]}", True),
        ("model: {modelFormat: {name: huggingface}, args: [--backend=huggingface]}", False),
        ("model: {modelFormat: {name: huggingface}, runtime: own}", False),
        ("model: {modelFormat: {name: huggingface}, runtime: kserve-huggingfaceserver}", True),
        ("model: {modelFormat: {name: onnx}, runtime: kserve-huggingfaceserver}", False),
        ("model: {modelFormat: {name: onnx}}", False),
        ("model: {modelFormat: {name: huggingface}, image: own}", False),
    ],
)
def test_kserves_runtime_for_hugging_face_is_known_to_run_vllm(model, is_told):
    field = model.partition(":")[0]
    said = run(f"{KSERVE}    {model}\n").err
    assert (f"spec.predictor.{field}.args: add --gpu-memory-utilization=" in said) == is_told


@pytest.mark.parametrize(
    ("command", "fraction", "said"),
    [
        ("[bash]", "", "add --gpu-memory-utilization=$VRAMWARDEN_GPU_MEMORY_FRACTION after vllm "),
        ("[sh, -e]", "0.9", "write --gpu-memory-utilization=$VRAMWARDEN_GPU_MEMORY_FRACTION; 0.9 "),
        ("[bash]", "$VRAMWARDEN_GPU_MEMORY_FRACTION", ""),
        ("[python]", "0.9", ""),
    ],
)
def test_a_script_of_a_workflow_is_judged_if_a_shell_runs_it(command, fraction, said):
    flag = f" --gpu-memory-utilization={fraction}" if fraction else ""
    script = f"script: {{image: a, command: {command}, source: 'vllm serve m{flag}'}}\n"
    container = "container: {image: a, volumeMounts: [{name: dev, mountPath: /dev}]}\n"
    told = run(workflow("", META).replace(container, script)).err
    assert (": warning: spec.templates[0].script.source: " + said in told) == bool(said)
    assert said or ": warning: " not in told


def ray(group: str, asks: str = ASKS, limits: str = "") -> str:
    container = f"{{name: ray, image: a, resources: {{limits: {{{limits}}}}}}}"
    return (
        "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: x}\nspec:\n  rayClusterSpec:\n"
        "    workerGroupSpecs:\n    - groupName: g\n"
        f"      {group}\n      template:\n        metadata: {{{asks}}}\n"
        f"        spec: {{containers: [{container}]}}\n"
        f"  submitterPodTemplate: {{metadata: {{{asks}}}, spec: {{containers: [{container}]}}}}\n"
    )


COUNTS = (
    "KubeRay counts GPUs by nvidia.com/gpu, and without it Ray's autoscaler sees none in this group"
)
GIVEN = "Ray counts GPUs by this number, and each pod of this group has 1"
LINE = 'write num-gpus: "1"'
GROUP = "spec.rayClusterSpec.workerGroupSpecs[0]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ray("rayStartParams: {}"), f'{GROUP}.rayStartParams: write num-gpus: "1"; {COUNTS}'),
        (
            ray("rayStartParams: {}", "", f"{VRAM}: 2Gi"),
            f'{GROUP}.rayStartParams: write num-gpus: "1"; {COUNTS}',
        ),
        (
            ray("rayStartParams: {}", ASKS.replace("2Gi", "2Gi, vramwarden.io/gpu-count: '2'")),
            f'{GROUP}.rayStartParams: write num-gpus: "2"; {COUNTS}',
        ),
        (ray("resources: {CPU: '1'}"), f'{GROUP}.resources: write GPU: "1"; {COUNTS}'),
        *(
            (
                ray(f"rayStartParams: {{num-gpus: '{n}'}}"),
                f"{GROUP}.rayStartParams: {LINE}; {GIVEN}",
            )
            for n in ("0", "0.5", "4", "x")
        ),
        (ray("resources: {GPU: '2'}"), f'{GROUP}.resources: write GPU: "1"; {GIVEN}'),
        (ray("rayStartParams: {num-gpus: '1'}"), None),
        (ray("rayStartParams: {num-gpus: 1}"), None),
        (ray("resources: {GPU: '1'}"), None),
        (ray("rayStartParams: {}", "labels: {a: b}"), None),
    ],
)
def test_a_group_of_ray_that_asks_for_vram_says_its_number_of_gpus(text, said):
    result = run_in_full(text)
    notes = [line for line in result.err.splitlines() if ": note: " in line]
    assert result.code == 0
    assert [note.partition(": note: ")[2] for note in notes] == [said] * (said is not None)
    assert all(note.startswith("a.yaml:8: ") for note in notes)
    if said:  # write the suggested line
        line = said.partition(": write ")[2].partition(";")[0]
        followed = re.sub("(num-gpus|GPU): '[^']*'", "", text)
        followed = re.sub(r"(rayStartParams|g\n      resources): {", rf"\1: {{{line}, ", followed)
        assert ": note: " not in run_in_full(followed).err


def test_a_group_of_ray_that_is_migrated_has_the_note_as_well():
    text = ray("rayStartParams: {}", "", "nvidia.com/gpu: 1, nvidia.com/gpumem: 8000")
    said = run(text, origin=Origin(PRODUCTS["hami"])).err
    assert said.count(f'note: {GROUP}.rayStartParams: write num-gpus: "1"; {COUNTS}') == 1


def test_a_runtime_of_trainer_that_counts_processes_by_gpus_has_a_note():
    text = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\n"
        "metadata: {name: x}\nspec:\n  mlPolicy: {torch: {}}\n  template: {spec: {replicatedJobs: "
        f"[{{template: {{spec: {{template: {{metadata: {{{ASKS}}}, "
        "spec: {containers: [{name: node, image: a}]}}}}}]}}\n"
    )
    assert (
        ": note: spec.mlPolicy.torch: write numProcPerNode: 1 under spec.trainer" in run(text).err
    )
    assert ": note: " not in run(text.replace("torch: {}", "jax: {}")).err
    for number in ("auto", "1", "4"):
        given = run(text.replace("torch: {}", f"torch: {{numProcPerNode: {number}}}")).err
        assert (": note: spec.mlPolicy.torch: write" in given) == (number == "auto")
        assert (": note: spec.mlPolicy.torch.numProcPerNode: write 1; " in given) == (number == "4")


@pytest.mark.parametrize(("given", "said"), [('"2"', '"1"'), ("3", "1"), ("auto", ""), ('"1"', "")])
def test_a_job_of_more_processes_than_gpus_has_a_note(given, said):
    text = (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec:\n"
        f"  nprocPerNode: {given}\n  pytorchReplicaSpecs: {{Master: {{template: {{metadata: "
        f"{{{ASKS}}}, spec: {{containers: [{{name: pytorch, image: a}}]}}}}}}}}\n"
    )
    line = f": note: spec.nprocPerNode: write {said}; each process needs its own GPU"
    assert (line in run(text).err) == bool(said)
    assert ": note: " not in run(text.replace(given, said or given)).err


def test_a_patched_workflow_is_migrated_by_hand():
    patch = (
        "    podSpecPatch: 'containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1, "
        "nvidia.com/gpumem: 3000}}}]'\n"
    )
    text = workflow("", patch)
    result = run(text, origin=Origin(PRODUCTS["hami"]))
    assert (result.code, result.out) == (1, text)
    assert f"Workflow is not rewritten; by hand, write {MEMORY}: 3000Mi" in result.err


@pytest.mark.parametrize("copied", ["status: {phase: Running}", "metadata: {uid: a}"])
def test_a_pod_of_a_cluster_is_judged_as_a_new_one(copied):
    text = POD.replace("spec:\n", "spec:\n  nodeName: n1\n")
    assert run(text).err.startswith("Pod default/train: denied: NodeNamePreset: ")
    head, _, uid = copied.partition("metadata: {")
    text = text.replace("  name: train\n", f"  name: train\n  {uid.rstrip('}')}\n") if uid else text
    result = run_in_full(text + head)
    verdict, note = result.err.splitlines()[:2]
    assert result.code == 0
    assert ": translated by rule default (8Gi on 1 GPU)" in verdict
    line = text[: text.index("nodeName")].count("\n") + 1
    assert note.startswith(f"a.yaml:{line}: Pod default/train: note: spec.nodeName: left out, ")
    assert "nodeName: n1\n" in result.out


def test_a_static_pod_has_no_share():
    text = POD.replace("annotations:\n", "annotations:\n    kubernetes.io/config.mirror: a\n")
    text = text.replace("spec:\n", "spec:\n  nodeName: n1\n")
    result = run(text)
    assert (result.code, result.out) == (1, text)
    verdict, finding = result.err.splitlines()
    assert verdict == "Pod default/train: left alone (MirrorPod: rule default)"
    assert (
        f"finding: metadata.annotations[{MEMORY}]: remove it, and run the pod by a Daem" in finding
    )


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ("memory: 8GB", "memory]: use 8G or 8Gi; "),
        ("ephemeral-storage: 8 Gi", "ephemeral-storage]: write 8Gi; "),
        ("cpu: two", 'cpu]: "two" is not a Kubernetes quantity; '),
        ("memory: 8, cpu: 0.5, hugepages-2Mi: '{{x}}'", None),
        (f"{VRAM}: 8Gi", None),
    ],
)
def test_an_amount_that_kubernetes_rejects_is_a_warning(amounts, said):
    result = run(POD + f"    resources: {{limits: {{{amounts}}}}}\n")
    warnings = [line for line in result.err.splitlines() if ": warning: " in line]
    assert result.code == 0
    assert len(warnings) == (said is not None)
    for warning in warnings:
        assert f": warning: spec.containers[0].resources.limits[{said}" in warning
        assert warning.endswith(" is not a Kubernetes quantity; Kubernetes rejects that")
