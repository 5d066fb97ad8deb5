"""Manifests that newcomers write first: none gets a wrong verdict or no message.

Each row has a manifest, its result in the summary, and another part of the output. The suggested
amounts are tested in tests/core/admission/rules. Charts, templates and kustomizations are in
test_sources.py.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from tests.tools.admit.runs import run_in_full
from webhook.adapters.policy.files import load_policy, shipped_policy_path

MEMORY = "vramwarden.io/gpu-memory"
VRAM = "vramwarden.io/vram"
NAME = "{name: x}"
MAIN = "{name: main, image: example}"
SPEC = f"{{containers: [{MAIN}]}}"
ASKS = f"annotations: {{{MEMORY}: 8Gi}}"
WRONG = f"annotations: {{{MEMORY}: 8GB}}"
TEMPLATE = f"{{metadata: {{{WRONG}}}, spec: {SPEC}}}"

TRANSLATED, LEFT, NOT_JUDGED = "translated", "left alone", "not judged"
NOT_A_STRING = f"denied: metadata.annotations[{MEMORY}]: must be a string, not a number"
ELSEWHERE = f"carries {MEMORY} and was not judged; its pods are made elsewhere"


class Row(NamedTuple):
    """A manifest and its expected output."""

    text: str
    verdict: str
    """Result in the summary, or the reason of a denial."""
    said: str = ""


def an_object(version: str, kind: str, spec: str, metadata: str = NAME) -> str:
    head = f"apiVersion: {version}\nkind: {kind}\nmetadata: {metadata}\n"
    return f"{head}spec: {spec}\n" if spec else head


def asking(amount: str, key: str = MEMORY) -> str:
    return f"{{name: x, annotations: {{{key}: {amount}}}}}"


def a_pod(amount: str = "8Gi", key: str = MEMORY, spec: str = SPEC) -> str:
    return an_object("v1", "Pod", spec, asking(amount, key))


def a_container(fields: str, metadata: str = NAME, spec: str = "") -> str:
    containers = f"containers: [{{name: main, image: example, {fields}}}]"
    return an_object("v1", "Pod", f"{{{spec}{containers}}}", metadata)


def limits(text: str, metadata: str = NAME, requests: str = "") -> str:
    return a_container(f"resources: {{limits: {{{text}}}, requests: {{{requests}}}}}", metadata)


def a_ray_service(annotations: str, worker: str, limits: str) -> str:
    """Return a RayService with annotations on itself and on its workers."""
    container = f"{{name: main, image: example, resources: {{limits: {{{limits}}}}}}}"
    workers = f"{{metadata: {{{worker}}}, spec: {{containers: [{container}]}}}}"
    groups = (
        f"headGroupSpec: {{template: {{spec: {SPEC}}}}}, "
        f"workerGroupSpecs: [{{rayStartParams: {{}}, template: {workers}}}]"
    )
    return an_object("ray.io/v1", "RayService", f"{{rayClusterConfig: {{{groups}}}}}", annotations)


def a_deployment(template: str, metadata: str = NAME, more: str = "") -> str:
    return an_object("apps/v1", "Deployment", f"{{template: {{{template}}}{more}}}", metadata)


AMOUNTS = {
    **dict.fromkeys(("8Gi", "8G", "8192Mi", '"8e9"', '"8589934592"', "main=8Gi"), TRANSLATED),
    **dict.fromkeys(("8GB", "8gb", "8gi", "8g", "8Go", "8GIB", '"8,5Gi"'), "InvalidQuantity"),
    **dict.fromkeys(('"8 GiB"', '"8 Gi"', '"0.5"', '"50%"', "1/2", '""'), "InvalidQuantity"),
    **dict.fromkeys(('"0"', "-8Gi", "NaN", '"main:8Gi"', '"main=8Gi; a=2Gi"'), "InvalidQuantity"),
    **dict.fromkeys(('"8192"', '"8"'), "TooSmall"),
    **dict.fromkeys(("8192", "8", "8e9", "0.5"), ""),
    "trainr=8Gi": "UnknownContainer",
}
WORKERS = "spec.rayClusterConfig.workerGroupSpecs[0]"
UNREAD = "nothing reads this key"
WRITE = f"write {MEMORY}: 8Gi in its place; {UNREAD}"
AT_TEMPLATE = "put it under spec.template.metadata.annotations"
KEYS = {
    "without a prefix": Row(
        a_pod(key="gpu-memory"), LEFT, f": warning: metadata.annotations[gpu-memory]: {WRITE}"
    ),
    "mistyped": Row(
        a_pod(key="vramwarden.io/gpu-mem"),
        LEFT,
        f": finding: metadata.annotations[vramwarden.io/gpu-mem]: {WRITE}",
    ),
    "half a prefix": Row(a_pod(key="vramwarden/gpu-memory"), LEFT, UNREAD),
    "another prefix": Row(a_pod(key="vram-warden.io/gpu-memory"), LEFT, UNREAD),
    "a short prefix": Row(a_pod(key="vram.io/gpu-memory"), LEFT, "vram.io/gpu-memory]: write "),
    "NVIDIA's prefix": Row(a_pod(key="nvidia.com/gpu-memory"), LEFT, "gpu-memory]: write "),
    "a label": Row(
        an_object("v1", "Pod", SPEC, f"{{name: x, labels: {{{MEMORY}: 8Gi}}}}"),
        LEFT,
        f": finding: metadata.labels[{MEMORY}]: write {MEMORY}: 8Gi under metadata.annotations; ",
    ),
    "a label of a Deployment's template": Row(
        a_deployment(f"metadata: {{labels: {{{MEMORY}: 8Gi}}}}, spec: {SPEC}"),
        LEFT,
        f": write {MEMORY}: 8Gi under spec.template.metadata.annotations; as a label it asks ",
    ),
    "a mistyped label": Row(
        an_object("v1", "Pod", SPEC, "{name: x, labels: {vramwarden.io/gpu-mem: 8Gi}}"),
        LEFT,
        ": finding: metadata.labels[vramwarden.io/gpu-mem]: write ",
    ),
    "a resource": Row(
        limits(f"{MEMORY}: 8Gi"),
        LEFT,
        f": finding: spec.containers[0].resources.limits[{MEMORY}]: remove it and write the ",
    ),
    "on the Deployment": Row(
        a_deployment(f"spec: {SPEC}", asking("8Gi")),
        LEFT,
        f":3: Deployment default/x: finding: metadata.annotations[{MEMORY}]: {AT_TEMPLATE}",
    ),
    "mistyped on the Deployment": Row(
        a_deployment(f"spec: {SPEC}", asking("8GB", "vramwarden.io/gpu-mem")),
        LEFT,
        f"finding: metadata.annotations[vramwarden.io/gpu-mem]: write {MEMORY}: 8GB under "
        f"spec.template.metadata.annotations; {UNREAD}; 8GB is not a Kubernetes quantity; use 8G ",
    ),
    "on the Notebook's template": Row(
        an_object(
            "kubeflow.org/v1", "Notebook", f"{{template: {{metadata: {{{ASKS}}}, spec: {SPEC}}}}}"
        ),
        LEFT,
        f":4: Notebook default/x: finding: spec.template.metadata.annotations[{MEMORY}]: put it "
        "under metadata.annotations; ",
    ),
    "on the RayService": Row(
        a_ray_service(asking("8Gi"), "", "nvidia.com/gpu: 1"),
        LEFT,
        f"finding: metadata.annotations[{MEMORY}]: put it under {WORKERS}.template.metadata."
        "annotations or spec.rayClusterConfig.headGroupSpec.template.metadata.annotations; ",
    ),
    "on the RayService, of which a group names GPUs": Row(
        a_ray_service(asking("8Gi"), f"labels: {{{MEMORY}: 8Gi}}", "").replace(
            "rayStartParams: {}", "rayStartParams: {num-gpus: '1'}"
        ),
        LEFT,
        f"finding: metadata.annotations[{MEMORY}]: put it under {WORKERS}.template.metadata.",
    ),
    "on the RayService, in place of a whole GPU": Row(
        a_ray_service(asking("8Gi"), "", "nvidia.com/gpu: 1"),
        LEFT,
        f"finding: {WORKERS}.template.spec.containers[0].resources.limits[nvidia.com/gpu]: beside "
        "that, WholeGPUAndShare: remove nvidia.com/gpu",
    ),
    "on the RayService, of which a group has it": Row(
        a_ray_service(asking("8Gi"), ASKS, ""),
        TRANSLATED,
        f"note: {WORKERS}.rayStartParams: write num-gpus: ",
    ),
    "on the CronJob's Job": Row(
        an_object(
            "batch/v1",
            "CronJob",
            f"{{jobTemplate: {{metadata: {{{ASKS}}}, spec: {{template: {{spec: {SPEC}}}}}}}}}",
        ),
        LEFT,
        f":4: CronJob default/x: finding: spec.jobTemplate.metadata.annotations[{MEMORY}]: "
        "put it under spec.jobTemplate.spec.template.metadata.annotations",
    ),
    "in the template's spec": Row(
        a_deployment(f"spec: {{{ASKS}, containers: [{MAIN}]}}"),
        LEFT,
        f"finding: spec.template.spec.annotations[{MEMORY}]: {AT_TEMPLATE}",
    ),
    "in the template": Row(
        a_deployment(f"{WRONG}, spec: {SPEC}"),
        LEFT,
        f"spec.template.annotations[{MEMORY}]: {AT_TEMPLATE}; nothing reads it here; 8GB is not ",
    ),
    "in a container": Row(
        a_container(ASKS),
        LEFT,
        f"spec.containers[0].annotations[{MEMORY}]: put it under metadata.annotations; ",
    ),
}
ASKED = asking("8Gi")
RESOURCES = {
    "a fraction of a byte": Row(
        limits(f"{VRAM}: 1.1Gi"),
        "InvalidQuantity",
        f".limits[{VRAM}]: 1.1Gi is a fraction of a byte; use 1127Mi",
    ),
    "a decimal unit": Row(limits(f"{VRAM}: 4500M"), TRANSLATED, "(4292Mi on 1 GPU)"),
    "a limit": Row(limits(f"{VRAM}: 8Gi"), TRANSLATED, "(8Gi on 1 GPU)"),
    "a request": Row(
        a_container(f"resources: {{requests: {{{VRAM}: 8Gi}}}}"), "RequestsLimitsMismatch"
    ),
    "both": Row(limits(f"{VRAM}: 8Gi", requests=f"{VRAM}: 8Gi"), TRANSLATED),
    "unequal": Row(limits(f"{VRAM}: 8Gi", requests=f"{VRAM}: 4Gi"), "RequestsLimitsMismatch"),
    "beside another amount": Row(limits(f"{VRAM}: 8Gi", asking("4Gi")), "ConflictingAmounts"),
    "a whole GPU": Row(limits("nvidia.com/gpu: 1"), LEFT),
    "a whole GPU beside": Row(limits("nvidia.com/gpu: 1", ASKED), "WholeGPUAndShare"),
    "half a GPU": Row(limits("nvidia.com/gpu: 0.5"), "FractionalWholeGPU"),
    "a slice beside": Row(limits("nvidia.com/mig-1g.10gb: 1", ASKED), "WholeGPUAndShare"),
    "a time slice beside": Row(limits("nvidia.com/gpu.shared: 1", ASKED), "WholeGPUAndShare"),
    "a hand-set variable": Row(
        a_container("env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]", ASKED),
        "VisibleDevicesOverride",
    ),
}
PRODUCTS = {
    "HAMi": Row(limits("nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"), LEFT, "HAMi reads it"),
    "HAMi, as stored": Row(limits("nvidia.com/gpumem: 3k"), LEFT, "HAMi reads it"),
    "KAI": Row(a_pod('"2000"', "gpu-memory"), LEFT, "KAI reads it"),
    "KAI, a part": Row(a_pod('"0.5"', "gpu-fraction"), LEFT, "KAI reads it"),
    "gpushare": Row(limits("aliyun.com/gpu-mem: 3"), LEFT, "gpushare reads it"),
    "Volcano": Row(limits("volcano.sh/vgpu-memory: 10000"), LEFT, "Volcano reads it"),
}
PRIVILEGES = {
    "privileged": Row(
        a_container("securityContext: {privileged: true}", ASKED), "PrivilegedContainer"
    ),
    "hostIPC": Row(a_pod(spec=f"{{hostIPC: true, containers: [{MAIN}]}}"), "HostIPC"),
    "hostUsers": Row(a_pod(spec=f"{{hostUsers: false, containers: [{MAIN}]}}"), "UserNamespace"),
    "hostPath": Row(
        a_container("", ASKED, "volumes: [{name: d, hostPath: {path: /dev}}], "),
        "HostPath",
    ),
    "nodeName": Row(a_pod(spec=f"{{nodeName: a, containers: [{MAIN}]}}"), "NodeNamePreset"),
    "a capability": Row(
        a_container("securityContext: {capabilities: {add: [SYS_PTRACE]}}", ASKED),
        "Capability",
    ),
}
RAY = f"headGroupSpec: {{template: {TEMPLATE}}}"
WORKFLOW = "argoproj.io/v1alpha1"
PARAMETER = '"{{inputs.parameters.vram}}"'
BAD = "InvalidQuantity"
OTHER_KINDS = {
    "PyTorchJob": Row(
        an_object(
            "kubeflow.org/v1",
            "PyTorchJob",
            f"{{pytorchReplicaSpecs: {{Master: {{template: {TEMPLATE}}}}}}}",
        ),
        BAD,
    ),
    "RayCluster": Row(an_object("ray.io/v1", "RayCluster", f"{{{RAY}}}"), BAD),
    "RayService": Row(
        an_object("ray.io/v1", "RayService", f"{{rayClusterConfig: {{{RAY}}}}}"), BAD
    ),
    "LeaderWorkerSet": Row(
        an_object(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            f"{{leaderWorkerTemplate: {{workerTemplate: {TEMPLATE}}}}}",
        ),
        BAD,
    ),
    "JobSet": Row(
        an_object(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            f"{{replicatedJobs: [{{template: {{spec: {{template: {TEMPLATE}}}}}}}]}}",
        ),
        BAD,
    ),
    "Volcano's Job": Row(
        an_object("batch.volcano.sh/v1alpha1", "Job", f"{{tasks: [{{template: {TEMPLATE}}}]}}"), BAD
    ),
    "VirtualMachine": Row(
        an_object(
            "kubevirt.io/v1",
            "VirtualMachine",
            f"{{template: {{metadata: {{{WRONG}}}, spec: {{domain: {{devices: {{}}}}}}}}}}",
        ),
        BAD,
    ),
    "Notebook": Row(
        an_object("kubeflow.org/v1", "Notebook", f"{{template: {{spec: {SPEC}}}}}", asking("8GB")),
        BAD,
    ),
    "Workflow": Row(
        an_object(
            WORKFLOW,
            "Workflow",
            f"{{templates: [{{metadata: {{{WRONG}}}, container: {{image: example}}}}]}}",
        ),
        BAD,
    ),
    "Workflow's podMetadata": Row(
        an_object(
            WORKFLOW,
            "Workflow",
            f"{{podMetadata: {{{WRONG}}}, templates: [{{container: {{image: example}}}}]}}",
        ),
        BAD,
    ),
    "Workflow with a parameter": Row(
        an_object(
            WORKFLOW,
            "Workflow",
            f"{{templates: [{{metadata: {asking(PARAMETER)}, container: {{image: example}}}}]}}",
        ),
        NOT_JUDGED,
        ELSEWHERE,
    ),
    "Workflow's podMetadata that no template gets": Row(
        an_object(
            WORKFLOW,
            "Workflow",
            f"{{podMetadata: {{{WRONG}}}, "
            f"templates: [{{metadata: {{{ASKS}}}, container: {{image: example}}}}]}}",
        ),
        TRANSLATED,
        f"finding: spec.podMetadata.annotations[{MEMORY}]: remove it; nothing reads it here",
    ),
}
KNATIVE = "serving.knative.dev/v1"
NAMELESS = "spec: {containers: [{image: example}]}"
KSERVE = "serving.kserve.io/v1beta1"
MODEL = "model: {modelFormat: {name: huggingface}, storageUri: hf://a/b"
HELM_TEXT = f'"singleuser: {{extraAnnotations: {{{MEMORY}: 6GB}}}}"'
MADE_ELSEWHERE = {
    "Knative without a GPU": Row(
        an_object(KNATIVE, "Service", f"{{template: {{{NAMELESS}}}}}"), LEFT, "asks for no VRAM"
    ),
    "Knative": Row(
        an_object(KNATIVE, "Service", f"{{template: {{metadata: {{{WRONG}}}, {NAMELESS}}}}}"), BAD
    ),
    "Knative by name": Row(
        an_object(
            KNATIVE,
            "Configuration",
            f"{{template: {{metadata: {asking('user-container=8Gi')}, {NAMELESS}}}}}",
        ),
        TRANSLATED,
    ),
    "Knative's Revision": Row(
        an_object(KNATIVE, "Revision", "{containers: [{image: example}]}", asking("8GB")), BAD
    ),
    "KServe beside a whole GPU": Row(
        an_object(
            KSERVE,
            "InferenceService",
            f"{{predictor: {{{MODEL}, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}}}}}",
            ASKED,
        ),
        "WholeGPUAndShare",
    ),
    "KServe's predictor": Row(
        an_object(KSERVE, "InferenceService", f"{{predictor: {{{WRONG}, {MODEL}}}}}}}"), BAD
    ),
    "KServe's containers": Row(
        an_object(
            KSERVE, "InferenceService", f"{{predictor: {{{ASKS}, containers: [{{image: a}}]}}}}"
        ),
        TRANSLATED,
        "on the cluster, and printed as it is",
    ),
    "KServe's tensorflow": Row(
        an_object(
            KSERVE,
            "InferenceService",
            f"{{predictor: {{tensorflow: {{resources: {{limits: {{{VRAM}: 8GB}}}}}}}}}}",
        ),
        BAD,
    ),
    "SparkApplication": Row(
        an_object(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            f"{{executor: {{{ASKS}, gpu: {{name: nvidia.com/gpu, quantity: 1}}}}}}",
        ),
        "WholeGPUAndShare",
    ),
    "JupyterHub's values": Row(
        f"singleuser:\n  extraAnnotations:\n    {MEMORY}: 6GB\n", BAD, f"note: {ELSEWHERE}"
    ),
    "a JSON patch": Row(
        f"- {{op: add, path: /metadata/annotations, value: {{{MEMORY}: 6GB}}}}\n",
        BAD,
        f"note: {ELSEWHERE}",
    ),
    "values to be filled in": Row(f"a:\n  {MEMORY}: '{{{{ x }}}}'\n", NOT_JUDGED, ELSEWHERE),
    "HelmRelease": Row(
        an_object(
            "helm.toolkit.fluxcd.io/v2",
            "HelmRelease",
            f"{{values: {{singleuser: {{extraAnnotations: {{{MEMORY}: a=6GB}}}}}}}}",
        ),
        BAD,
        f"spec.values.singleuser.extraAnnotations[{MEMORY}]: a=6GB is not ",
    ),
    "Argo CD's values in a text": Row(
        an_object(WORKFLOW, "Application", f"{{source: {{helm: {{values: {HELM_TEXT}}}}}}}"),
        NOT_JUDGED,
        f"Application x: carries {MEMORY} in a text and was not judged; its pods are made",
    ),
    "TaskRun": Row(
        an_object("tekton.dev/v1", "TaskRun", "{taskSpec: {steps: [{image: a}]}}", ASKED),
        NOT_JUDGED,
        f"a.yaml:3: TaskRun x: {ELSEWHERE}",
    ),
    "Task": Row(
        an_object(
            "tekton.dev/v1",
            "Task",
            f"{{steps: [{{image: a, computeResources: {{limits: {{{VRAM}: 8GB}}}}}}]}}",
        ),
        BAD,
        f"spec.steps[0].computeResources.limits[{VRAM}]: 8GB is not ",
    ),
    "Pipeline": Row(
        an_object("tekton.dev/v1", "Pipeline", "{tasks: []}", asking("main=8Gi")),
        NOT_JUDGED,
        ELSEWHERE,
    ),
    "a kind with a template and more": Row(
        an_object("a.io/v1", "A", f"{{template: {{spec: {SPEC}}}, more: {{{WRONG}}}}}"),
        BAD,
        ELSEWHERE,
    ),
    "a Service of Kubernetes": Row(
        an_object("v1", "Service", "", asking("8GB")), NOT_JUDGED, "of a Service no pods are made"
    ),
    **{
        f"the {field} {key} of a {kind}": Row(
            an_object(version, kind, "", f"{{name: x, {field}: {{{key}: a}}}}"),
            NOT_JUDGED,
            f": finding: metadata.{field}[{key}]: remove it; nothing reads it here",
        )
        for version, kind, field, key in (
            ("v1", "Service", "annotations", MEMORY),
            ("v1", "Service", "labels", "vramwarden.io/managed"),
            ("v1", "ConfigMap", "annotations", "vramwarden.io/foo"),
            ("v1", "Namespace", "labels", "vramwarden.io/share"),
            ("v1", "Namespace", "annotations", "vramwarden.io/webhook"),
            ("v1", "Node", "labels", "vramwarden.io/gpu-memory"),
            ("v1", "Node", "labels", "vramwarden.io/webhook"),
            ("networking.k8s.io/v1", "Ingress", "annotations", MEMORY),
            ("nvidia.com/v1", "DynamoGraphDeployment", "labels", "vramwarden.io/foo"),
        )
    },
    **{
        f"the mistyped label {key} of a {kind}": Row(
            an_object("v1", kind, "", f"{{name: x, labels: {{vramwarden.io/{key}: a}}}}"),
            NOT_JUDGED,
            f": finding: metadata.labels[vramwarden.io/{key.partition(':')[0]}]: {do}; nothing ",
        )
        for kind, key, do in (
            ("Namespace", "webhok", 'write vramwarden.io/webhook: "a" in its place'),
            ("Namespace", "webhok: b, vramwarden.io/webhook", "remove it"),
            ("Node", "shared", 'write vramwarden.io/share: "a" in its place'),
        )
    },
    **{
        f"the label {key} of a {kind}": Row(
            an_object("v1", kind, "", f"{{name: x, labels: {{vramwarden.io/{key}: a}}}}"),
            f"1 {kind}",
        )
        for kind, key in (
            ("Namespace", "webhook"),
            ("Node", "share"),
            ("Node", "gpu-memory-free-mib.16"),
            ("ConfigMap", "gpu-assignments"),
        )
    },
    "a List": Row(
        f"kind: List\nmetadata: {{{ASKS}}}\nitems: [{{apiVersion: v1, kind: Pod, spec: {SPEC}}}]\n",
        LEFT,
        f":2: List (no name): finding: metadata.annotations[{MEMORY}]: remove it; nothing reads it",
    ),
    "a comment": Row(
        f"apiVersion: a.io/v1\nkind: A\nmetadata: {NAME} # {MEMORY}: 8GB\n",
        "without a pod template",
    ),
    "a policy": Row(
        an_object("vramwarden.io/v1alpha1", "VRAMPolicy", f"{{examples: [{{pod: {{{WRONG}}}}}]}}"),
        "1 policy (see `vramwarden policy check`)",
    ),
    "a policy in a text": Row(
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a.yaml: "kind: VRAMPolicy\\n'
        f'x: {{{MEMORY}: 8Gi}}"}}\n',
        "without a pod template",
    ),
}
VLLM = "image: vllm/vllm-openai"
UNBOUNDED = "; vLLM takes nine tenths of the GPU"
QUOTA = f"requests.{VRAM}"
OF_A_QUOTA = "Kubernetes counts only requests for this resource, so the line bounds nothing"

OF_ANOTHER = "no pod asks for this resource, so the line bounds nothing"


def a_quota(*keys: str) -> str:
    hard = ", ".join(f"{key}: 10Gi" for key in keys)
    return an_object("v1", "ResourceQuota", f"{{hard: {{{hard}}}}}")


BOUNDS = {
    "a quota of limits": Row(
        a_quota(f"limits.{VRAM}"),
        NOT_JUDGED,
        f"spec.hard[limits.{VRAM}]: write {QUOTA}: 10Gi; {OF_A_QUOTA}",
    ),
    "a quota of the bare resource": Row(
        a_quota(VRAM), NOT_JUDGED, f"spec.hard[{VRAM}]: write {QUOTA}: 10Gi; {OF_A_QUOTA}"
    ),
    "a quota of both": Row(
        a_quota(f"limits.{VRAM}", QUOTA),
        NOT_JUDGED,
        f"spec.hard[limits.{VRAM}]: remove it; {OF_A_QUOTA}",
    ),
    "a quota of the annotation": Row(
        a_quota(f"requests.{MEMORY}"),
        NOT_JUDGED,
        f": finding: spec.hard[requests.{MEMORY}]: write {QUOTA}: 10Gi; {OF_ANOTHER}",
    ),
    "a quota of a resource that is none": Row(
        a_quota("requests.vramwarden.io/gpu"),
        NOT_JUDGED,
        f": finding: spec.hard[requests.vramwarden.io/gpu]: remove it; {OF_ANOTHER}",
    ),
    "a LimitRange": Row(
        an_object("v1", "LimitRange", f"{{limits: [{{type: Container, max: {{{VRAM}: 8Gi}}}}]}}"),
        NOT_JUDGED,
        f": warning: spec.limits[0].max[{VRAM}]: remove it, and bound VRAM by a ResourceQuota of ",
    ),
    "a quota that counts": Row(a_quota(QUOTA), "1 ResourceQuota"),
    "a LimitRange of something else": Row(
        an_object("v1", "LimitRange", "{limits: [{type: Container, max: {cpu: 1}}]}"),
        "1 LimitRange",
    ),
}
SERVERS = {
    "vLLM in a shell": Row(
        a_deployment(
            f"metadata: {{{ASKS}}}, spec: {{containers: [{{name: v, {VLLM}, "
            "command: [sh, -c], args: [vllm serve a/b --trust-remote-code]}]}"
        ),
        TRANSLATED,
        "spec.template.spec.containers[0].args[0]: add --gpu-memory-utilization=",
    ),
    "vLLM": Row(
        a_deployment(f"metadata: {{{ASKS}}}, spec: {{containers: [{{name: v, {VLLM}}}]}}"),
        TRANSLATED,
        UNBOUNDED,
    ),
    "vLLM with a whole GPU": Row(
        a_deployment(
            f"spec: {{containers: [{{name: v, {VLLM}, "
            "resources: {limits: {nvidia.com/gpu: 1}}}]}"
        ),
        LEFT,
    ),
}
GROUPS = {
    "amount": {
        written: Row(a_pod(written), verdict or "denied", "" if verdict else NOT_A_STRING)
        for written, verdict in AMOUNTS.items()
    },
    "key": KEYS,
    "resource": RESOURCES,
    "product": PRODUCTS,
    "privilege": PRIVILEGES,
    "kind": OTHER_KINDS,
    "elsewhere": MADE_ELSEWHERE,
    "bound": BOUNDS,
    "server": SERVERS,
}
ROWS = {f"{group}: {name}": row for group, rows in GROUPS.items() for name, row in rows.items()}


@cache
def the_shipped_policy():
    return load_policy(shipped_policy_path(), enforcer_image="example")


@pytest.mark.parametrize(("text", "verdict", "said"), ROWS.values(), ids=ROWS)
def test_each_gets_the_right_verdict_and_a_word(text, verdict, said):
    code, _, err = run_in_full(text, policy=the_shipped_policy())
    *lines, count = err.splitlines()
    is_denied = verdict == "denied" or verdict[0].isupper()
    is_unread = ": finding: " in err
    assert (code, "1 denied" in count) == (is_denied or is_unread, is_denied)
    assert any(f"denied: {verdict}: " in line for line in lines) or not verdict[0].isupper()
    assert verdict in count or is_denied
    assert any(said in line for line in lines) or not said


def test_who_is_left_alone_without_a_word_asks_for_nothing_of_ours():
    quiet = [name for name, row in ROWS.items() if row.verdict == LEFT and not row.said]
    assert quiet == ["resource: a whole GPU", "server: vLLM with a whole GPU"]
