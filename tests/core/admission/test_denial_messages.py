"""Each denial message states the problem with the author's own values, and advice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.admission.decisions import decide_pod, variable
from tests.support.pods import a_container, a_pod, a_rule
from webhook.core.policy.model import MemoryBounds

MEMORY = "metadata.annotations[vramwarden.io/gpu-memory]"
VRAM = "vramwarden.io/vram"
OTHERS = "if you did not write it, a LimitRange or another webhook did"
ANOTHER = "if you did not write it, another webhook did"
SLICE = "nvidia.com/mig-1g.10gb"
AMD = "amd.com/gpu"
FIRST = "spec.containers[0]"
RULE = a_rule(memory=MemoryBounds(64 * 2**20, 40 * 2**30), max_gpu_count=16)


def asking(**resources: Any):
    return a_pod(containers=[a_container(resources=resources)])


def noted(key: str, value: str):
    return a_pod("8Gi", annotations={f"vramwarden.io/{key}": value})


def secured(**context: Any):
    return a_pod("8Gi", containers=[a_container(securityContext=context)])


DENIALS = [
    (a_pod("8GB"), f"InvalidQuantity: {MEMORY}", "8GB is not a Kubernetes quantity; use 8G or 8Gi"),
    (a_pod(""), f"InvalidQuantity: {MEMORY}", '"" is blank; write a size, e.g. 8Gi'),
    (
        a_pod("0"),
        f"InvalidQuantity: {MEMORY}",
        "0 must be greater than zero; write a size, e.g. 8Gi",
    ),
    (
        asking(limits={VRAM: "500m"}),
        f"InvalidQuantity: {FIRST}.resources.limits[vramwarden.io/vram]",
        (
            "500m is a fraction of a byte, and parts of a GPU are not counted; write a size, "
            "e.g. 8Gi"
        ),
    ),
    (
        a_pod("80GB"),
        f"InvalidQuantity: {MEMORY}",
        (
            "80GB is not a Kubernetes quantity; 80G would be denied: asks for 76294Mi per GPU; "
            'rule "default" allows at most 40Gi; write e.g. 8Gi'
        ),
    ),
    (
        a_pod("3k"),
        f"TooSmall: {MEMORY}",
        "3k is less than 1Mi, the smallest share; write a size, e.g. 8Gi",
    ),
    (
        a_pod("8Gi", containers=[a_container(resources={"limits": {SLICE: "1"}})]),
        f"WholeGPUAndShare: {FIRST}.resources.limits[{SLICE}]",
        (
            f"remove {SLICE} to share one, or vramwarden.io/gpu-memory to have the slice; the pod "
            f"asks for {SLICE} and for a share of a GPU; {OTHERS}"
        ),
    ),
    (
        a_pod("8Gi", containers=[a_container(resources={"limits": {AMD: "1"}})]),
        f"WholeGPUAndShare: {FIRST}.resources.limits[{AMD}]",
        (
            f"remove {AMD} to share one, or vramwarden.io/gpu-memory to keep it; the pod asks for "
            f"{AMD} and for a share of an NVIDIA GPU; {OTHERS}"
        ),
    ),
    (
        asking(limits={AMD: "0.5"}),
        f"FractionalWholeGPU: {FIRST}.resources.limits[{AMD}]",
        "0.5 is not a whole number of GPUs; write a positive integer, e.g. 1",
    ),
    (a_pod("8192"), f"TooSmall: {MEMORY}", "8192 is 8192 bytes; for MiB write 8192Mi"),
    (
        a_pod("10Mi"),
        f"TooSmall: {MEMORY}",
        'asks for 10Mi per GPU; rule "default" wants at least 64Mi',
    ),
    (
        a_pod("41Gi"),
        f"TooLarge: {MEMORY}",
        'asks for 41Gi per GPU; rule "default" allows at most 40Gi',
    ),
    (a_pod("x=8Gi"), f"UnknownContainer: {MEMORY}", 'the pod has no container "x"; it has main'),
    (
        noted("gpu-count", "two"),
        "InvalidCount: metadata.annotations[vramwarden.io/gpu-count]",
        '"two" is not a number of GPUs; write a positive integer, e.g. "2"',
    ),
    (
        noted("gpu-count", "17"),
        "InvalidCount: metadata.annotations[vramwarden.io/gpu-count]",
        'asks for 17 GPUs; rule "default" allows at most 16',
    ),
    (
        asking(requests={VRAM: "8Gi"}),
        f"RequestsLimitsMismatch: {FIRST}.resources.requests[vramwarden.io/vram]",
        "set limits[vramwarden.io/vram] to 8Gi too; the request of 8Gi has no limit",
    ),
    (
        asking(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "2"}),
        f"RequestsLimitsMismatch: {FIRST}.resources.requests[nvidia.com/gpu]",
        "write 2 in both; the request is 1 but the limit is 2",
    ),
    (
        asking(limits={"nvidia.com/gpu": "0.5"}),
        f"FractionalWholeGPU: {FIRST}.resources.limits[nvidia.com/gpu]",
        (
            "0.5 is not a whole number of GPUs; to share a GPU remove it and set the annotation "
            "vramwarden.io/gpu-memory, e.g. to 8Gi"
        ),
    ),
    (
        asking(limits={"nvidia.com/gpu": 1, VRAM: "8Gi"}),
        f"WholeGPUAndShare: {FIRST}.resources.limits[nvidia.com/gpu]",
        (
            "remove nvidia.com/gpu to share one, or vramwarden.io/vram to have a whole one; the "
            f"pod asks for nvidia.com/gpu and for a share of a GPU; {OTHERS}"
        ),
    ),
    (
        asking(limits={"nvidia.com/gpu": 1, VRAM: "8Gi"}, requests={"nvidia.com/gpu": 1}),
        f"WholeGPUAndShare: {FIRST}.resources.limits[nvidia.com/gpu]",
        (
            "remove nvidia.com/gpu in limits and requests to share one, or vramwarden.io/vram to "
            f"have a whole one; the pod asks for nvidia.com/gpu and for a share of a GPU; {OTHERS}"
        ),
    ),
    (
        asking(limits={VRAM: "8192"}, requests={VRAM: "8192"}),
        f"TooSmall: {FIRST}.resources.limits[{VRAM}]",
        "8192 is 8192 bytes; for MiB write 8192Mi in limits and requests",
    ),
    (
        a_pod("8Gi", resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]),
        "WholeGPUAndShare: spec.resourceClaims",
        (
            "remove the claim to share a GPU, or vramwarden.io/gpu-memory to keep the claim; the "
            "pod has a resource claim and asks for a share; if the claim is for another device, "
            "ask your platform team for a rule with resourceClaims: Ignore"
        ),
    ),
    (
        a_pod("8Gi", containers=[a_container(resources={"limits": {VRAM: "4Gi"}})]),
        f"ConflictingAmounts: {FIRST}.resources.limits[vramwarden.io/vram]",
        (
            "remove vramwarden.io/vram, or make the two agree; it sets 4Gi but the annotation "
            "vramwarden.io/gpu-memory asks for 8Gi; if you did not write it, another webhook did"
        ),
    ),
    (
        noted("gpu-class", "h100"),
        "UnknownClass: metadata.annotations[vramwarden.io/gpu-class]",
        'class "h100" does not exist; rule "default" allows a100',
    ),
    (
        a_pod("8Gi", nodeSelector={"vramwarden.io/gpu": "false"}),
        "NodeSelectorConflict: spec.nodeSelector[vramwarden.io/gpu]",
        (
            'remove the line; it selects "false", and pods with VRAM need "true" (rule "default"); '
            "if you did not write it, your namespace or another webhook did"
        ),
    ),
    (
        a_pod("8Gi", hostPID=True),
        "HostPID: spec.hostPID",
        "remove hostPID; the sidecar that holds the cap needs the pod's own process namespace",
    ),
    (
        a_pod("8Gi", shareProcessNamespace=False),
        "ProcessNamespaceNotShared: spec.shareProcessNamespace",
        "remove the line; the sidecar that holds the cap must see the pod's processes",
    ),
    (
        a_pod("8Gi", nodeName="gpu-1"),
        "NodeNamePreset: spec.nodeName",
        (
            "remove it and use nodeSelector kubernetes.io/hostname; with "
            '"gpu-1" it bypasses the scheduler, which counts the VRAM'
        ),
    ),
    (
        secured(privileged=True),
        f"PrivilegedContainer: {FIRST}.securityContext.privileged",
        (
            'remove it; container "main" is privileged, and so reaches every GPU of its node; '
            f"{ANOTHER}"
        ),
    ),
    (
        a_pod(
            "8Gi",
            initContainers=[
                a_container("block-cloud-metadata", securityContext={"privileged": True})
            ],
        ),
        "PrivilegedContainer: spec.initContainers[0].securityContext.privileged",
        (
            "write singleuser.cloudMetadata.blockWithIptables: false in the values of JupyterHub's "
            'chart; container "block-cloud-metadata" is privileged, and so reaches every GPU of '
            "its node; JupyterHub's chart adds it to pods of notebooks"
        ),
    ),
    (
        secured(capabilities={"add": ["SYS_ADMIN"]}),
        f"Capability: {FIRST}.securityContext.capabilities.add[0]",
        (
            "remove it, or ask your platform team for a rule whose capabilities name it; container "
            '"main" adds the capability SYS_ADMIN, which rule "default" does not allow; '
            f"{ANOTHER}"
        ),
    ),
    (
        a_pod("8Gi", volumes=[{"name": "data", "hostPath": {"path": "/dev/nvidia0"}}]),
        "HostPath: spec.volumes[0].hostPath.path",
        (
            "remove the volume and its mounts, or ask your platform team for a rule whose "
            "hostPaths name it; "
            '"/dev/nvidia0" may lead to the node\'s devices, container runtime or kubelet; '
            f"{ANOTHER}"
        ),
    ),
    (
        a_pod(containers=[a_container(**variable("NVIDIA_VISIBLE_DEVICES", "all"))]),
        f"VisibleDevicesOverride: {FIRST}.env[0]",
        (
            "remove NVIDIA_VISIBLE_DEVICES; it shows GPUs that nobody accounts for; GPUs come with "
            "the annotation vramwarden.io/gpu-memory, or whole with nvidia.com/gpu; "
            f"{ANOTHER}"
        ),
    ),
    (
        a_pod("8Gi", containers=[a_container(**variable("CUDA_MPS_PIPE_DIRECTORY", "/x"))]),
        f"DriverVariable: {FIRST}.env[0]",
        "remove CUDA_MPS_PIPE_DIRECTORY; MPS is not used here, and compute is not divided",
    ),
    (
        a_pod("8Gi", initContainers=[a_container("vram-enforcer")]),
        "ReservedName: spec.initContainers[0].name",
        "give the container another name; vram-enforcer is reserved",
    ),
    (
        a_pod("8Gi", os={"name": "windows"}),
        "UnsupportedOS: spec.os.name",
        "remove the request for VRAM; it cannot be shared on Windows",
    ),
    (
        a_pod("8Gi", annotations={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}),
        "DeviceInjection: metadata.annotations[nvidia.cdi.k8s.io/pod]",
        (
            "remove it; it shows GPUs that nobody accounts for; GPUs come with the "
            "annotation vramwarden.io/gpu-memory, or whole with nvidia.com/gpu; "
            f"{ANOTHER}"
        ),
    ),
    (
        a_pod(labels={"vramwarden.io/managed": "true"}),
        "ReservedName: metadata.labels[vramwarden.io/managed]",
        (
            "remove it, or ask with the annotation vramwarden.io/gpu-memory; only vramwarden "
            "writes this, on pods that ask for VRAM"
        ),
    ),
    (
        a_pod("c0=8Gi", containers=[a_container(f"c{number}") for number in range(5_000)]),
        "TooComplex: spec.containers",
        "split the pod; it has 5000 containers, and at most 256 are judged",
    ),
]


@pytest.mark.parametrize(("pod", "place", "says"), DENIALS, ids=[row[-1] for row in DENIALS])
def test_a_denial_says_what_is_wrong_and_what_to_do(pod, place, says):
    assert decide_pod(pod, RULE).message == f"{place}: {says}"


@pytest.mark.parametrize(
    ("name", "env", "says"),
    [
        (
            *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ()),
            "MPS is not used here, and compute is not divided",
        ),
        (
            *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", variable("CUDA_MPS_PIPE_DIRECTORY")["env"]),
            'rule "default" has another value for it',
        ),
        ("NVIDIA_GPU_MEMORY_LIMIT", (), "the pod's limit comes from vramwarden.io/gpu-memory"),
        ("NVIDIA_NVSWITCH", (), "it gives more than the pod's share of a GPU"),
    ],
)
def test_a_denied_variable_of_the_driver_says_what_holds_instead(name, env, says):
    pod = a_pod("8Gi", containers=[a_container(**variable(name, "50"))])
    said = f"DriverVariable: {FIRST}.env[0]: remove {name}; {says}"
    assert decide_pod(pod, a_rule(env=tuple(env))).message == said
