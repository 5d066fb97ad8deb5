"""Every reason for which we refuse, as a user of a real cluster meets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.our_server import denied, refused
from tests.support.pods import a_container, a_pod
from webhook.core.pod.findings import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = "metadata.annotations[vramwarden.io/gpu-memory]"
VRAM = "vramwarden.io/vram"
FIRST = "spec.containers[0]"


def asking(**resources: Any) -> dict[str, Any]:
    """Return a pod without our annotation whose container asks for resources."""
    return a_pod(containers=[a_container(resources=resources)])


def noted(memory: str | None = "8Gi", **annotations: str) -> dict[str, Any]:
    """Return a pod with annotations of ours; `gpu_count` stands for vramwarden.io/gpu-count."""
    keys = {f"vramwarden.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return a_pod(memory, annotations=keys)


def secured(**context: Any) -> dict[str, Any]:
    """Return a pod with a demand whose container has a security context."""
    return a_pod("8Gi", containers=[a_container(securityContext=context)])


def with_env(name: str, **entry: Any) -> list[dict[str, Any]]:
    """Return containers of which the only one sets a variable."""
    return [a_container(env=[{"name": name, **entry}])]


def with_volume(**volume: Any) -> dict[str, Any]:
    """Return a pod with a demand and a volume."""
    return a_pod("8Gi", volumes=[{"name": "data", **volume}])


@dataclass
class Case:
    """A pod, and how its creation is refused."""

    reason: Reason
    path: str
    says: str
    pod: dict[str, Any] = field(repr=False)
    namespace: str = "team"

    def __str__(self) -> str:
        return f"{self.reason}-{self.path}"


CASES = [
    Case(Reason.INVALID_QUANTITY, MEMORY, "8GB is not a Kubernetes quantity; use 8G", a_pod("8GB")),
    Case(Reason.INVALID_QUANTITY, MEMORY, '"" is blank', a_pod("")),
    Case(Reason.INVALID_QUANTITY, MEMORY, "must be greater than zero", a_pod("0")),
    Case(
        Reason.INVALID_QUANTITY,
        f"{FIRST}.resources.limits[{VRAM}]",
        "fraction of a byte",
        asking(limits={VRAM: "500m"}),
    ),
    Case(Reason.TOO_SMALL, MEMORY, "for MiB write 8192Mi", a_pod("8192")),
    Case(Reason.TOO_SMALL, MEMORY, 'rule "default" wants at least 64Mi', a_pod("10Mi")),
    Case(Reason.TOO_LARGE, MEMORY, "allows at most 40Gi", a_pod("41Gi"), "capped"),
    Case(Reason.UNKNOWN_CONTAINER, MEMORY, 'no container "x"; it has main', a_pod("x=8Gi")),
    Case(
        Reason.INVALID_COUNT,
        "metadata.annotations[vramwarden.io/gpu-count]",
        '"two" is not a number of GPUs',
        noted(gpu_count="two"),
    ),
    Case(
        Reason.INVALID_COUNT,
        "metadata.annotations[vramwarden.io/gpu-count]",
        "allows at most 16",
        noted(gpu_count="17"),
    ),
    Case(
        Reason.REQUESTS_LIMITS_MISMATCH,
        f"{FIRST}.resources.requests[{VRAM}]",
        "the request of 8Gi has no limit",
        asking(requests={VRAM: "8Gi"}),
    ),
    Case(
        Reason.REQUESTS_LIMITS_MISMATCH,
        f"{FIRST}.resources.requests[nvidia.com/gpu]",
        "the request is 1 but the limit is 2",
        asking(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "2"}),
    ),
    Case(
        Reason.FRACTIONAL_WHOLE_GPU,
        f"{FIRST}.resources.limits[nvidia.com/gpu]",
        "500m is not a whole number of GPUs",
        asking(limits={"nvidia.com/gpu": "0.5"}),
    ),
    Case(
        Reason.WHOLE_GPU_AND_SHARE,
        f"{FIRST}.resources.limits[nvidia.com/gpu]",
        "remove nvidia.com/gpu to share one",
        asking(limits={"nvidia.com/gpu": 1, VRAM: "8Gi"}),
    ),
    Case(
        Reason.WHOLE_GPU_AND_SHARE,
        "spec.resourceClaims",
        "remove the claim to share a GPU",
        a_pod("8Gi", resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]),
    ),
    Case(
        Reason.CONFLICTING_AMOUNTS,
        f"{FIRST}.resources.limits[{VRAM}]",
        "sets 4Gi but the annotation vramwarden.io/gpu-memory asks for 8Gi",
        a_pod("8Gi", containers=[a_container(resources={"limits": {VRAM: "4Gi"}})]),
    ),
    Case(
        Reason.UNKNOWN_CLASS,
        "metadata.annotations[vramwarden.io/gpu-class]",
        'class "h100" does not exist; rule "default" allows a100',
        noted(gpu_class="h100"),
    ),
    Case(
        Reason.NODE_SELECTOR_CONFLICT,
        "spec.nodeSelector[vramwarden.io/gpu]",
        'selects "false" but pods with VRAM need "true"',
        a_pod("8Gi", nodeSelector={"vramwarden.io/gpu": "false"}),
    ),
    Case(Reason.HOST_PID, "spec.hostPID", "remove hostPID", a_pod("8Gi", hostPID=True)),
    Case(
        Reason.PROCESS_NAMESPACE_NOT_SHARED,
        "spec.shareProcessNamespace",
        "remove the line",
        a_pod("8Gi", shareProcessNamespace=False),
    ),
    Case(
        Reason.NODE_NAME_PRESET,
        "spec.nodeName",
        '"gpu-1" bypasses the scheduler',
        a_pod("8Gi", nodeName="gpu-1"),
    ),
    Case(
        Reason.PRIVILEGED_CONTAINER,
        f"{FIRST}.securityContext.privileged",
        'container "main" is privileged',
        secured(privileged=True),
    ),
    Case(
        Reason.PRIVILEGED_CONTAINER,
        f"{FIRST}.securityContext.capabilities.add[0]",
        "adds the capability SYS_ADMIN",
        secured(capabilities={"add": ["SYS_ADMIN"]}),
    ),
    Case(
        Reason.PRIVILEGED_CONTAINER,
        "spec.volumes[0].hostPath.path",
        '"/dev/nvidia0" gives the pod the node\'s devices',
        with_volume(hostPath={"path": "/dev/nvidia0"}),
    ),
    Case(
        Reason.VISIBLE_DEVICES_OVERRIDE,
        f"{FIRST}.env[0]",
        "shows GPUs that nobody accounts for",
        a_pod(containers=with_env("NVIDIA_VISIBLE_DEVICES", value="all")),
    ),
    Case(
        Reason.VISIBLE_DEVICES_OVERRIDE,
        f"{FIRST}.env[0]",
        "CUDA_MPS_PIPE_DIRECTORY is set by the platform",
        a_pod("8Gi", containers=with_env("CUDA_MPS_PIPE_DIRECTORY", value="/tmp")),  # noqa: S108
    ),
    Case(
        Reason.RESERVED_NAME,
        "spec.initContainers[0].name",
        "the name vram-enforcer is reserved",
        a_pod("8Gi", initContainers=[a_container("vram-enforcer")]),
    ),
    Case(
        Reason.ENFORCEMENT_IMPOSSIBLE,
        f"{FIRST}.securityContext.runAsUser",
        "set runAsUser to the image's user id",
        a_pod("8Gi"),
        "workload",
    ),
    Case(
        Reason.UNSUPPORTED_OS,
        "spec.os.name",
        "VRAM cannot be shared on Windows",
        a_pod("8Gi", os={"name": "windows"}),
    ),
    Case(
        Reason.VISIBLE_DEVICES_OVERRIDE,
        "metadata.annotations[nvidia.cdi.k8s.io/pod]",
        "shows the pod GPUs that nobody accounts for",
        a_pod("8Gi", annotations={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}),
    ),
    Case(
        Reason.RESERVED_NAME,
        "metadata.labels[vramwarden.io/managed]",
        "only vramwarden writes this",
        a_pod(labels={"vramwarden.io/managed": "true"}),
    ),
    Case(
        Reason.TOO_COMPLEX,
        "spec.containers",
        "has 5000 containers; at most 256 are judged",
        a_pod("c0=8Gi", containers=[a_container(f"c{number}") for number in range(5_000)]),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_creation_is_refused_in_our_words_before_the_api_server_finds_its_own(case, make_team):
    team = make_team(case.namespace)
    said = team.denies(case.pod, case.reason)
    assert said.startswith(f"{case.path}: ")
    assert case.says in said
    assert team.pods() == []


def changes_the_annotation(team):
    pod = team.accepts(a_pod("8Gi"))
    note = {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "16Gi"}}}
    return refused(lambda: team.patch(pod, note))


def debugs_with_a_gpu_past_the_mutating_webhook(team):
    pod = team.accepts(a_pod("8Gi"))
    debugger = a_container("debugger", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    change = {"spec": {"ephemeralContainers": [debugger]}}
    with team.ours.without(team.api, team.ours.mutating):
        return refused(lambda: team.patch(pod, change, "/ephemeralcontainers"))


def slips_past_the_mutating_webhook(team):
    with team.ours.without(team.api, team.ours.mutating):
        return team.refuses(a_pod("8Gi"))


VALIDATED: dict[Reason, tuple[Callable[[Any], Any], str]] = {
    Reason.IMMUTABLE: (
        changes_the_annotation,
        f'{MEMORY}: cannot change from "8Gi" to "16Gi" on a pod that exists; delete the pod and',
    ),
    Reason.EPHEMERAL_CONTAINER: (
        debugs_with_a_gpu_past_the_mutating_webhook,
        "spec.ephemeralContainers[0].env[0]: NVIDIA_VISIBLE_DEVICES shows a debugging container",
    ),
    Reason.UNMUTATED: (
        slips_past_the_mutating_webhook,
        "metadata.annotations[vramwarden.io/admitted]: create the pod again; if that does not help",
    ),
}


@pytest.mark.parametrize("reason", VALIDATED, ids=str)
def test_what_only_the_stored_pod_shows_is_refused_by_the_validating_webhook(reason, team):
    act, says = VALIDATED[reason]
    assert denied(act(team), reason, phase="validate").startswith(says)


def test_every_reason_of_the_closed_set_is_reached():
    assert {case.reason for case in CASES} | set(VALIDATED) == set(Reason)


def test_all_findings_arrive_at_once(team):
    error = team.refuses(a_pod("8GB", hostPID=True, nodeName="gpu-1"))
    causes = error.status["details"]["causes"]
    assert [cause["reason"] for cause in causes] == ["InvalidQuantity", "NodeNamePreset", "HostPID"]
    assert causes[2] == {
        "reason": "HostPID",
        "field": "spec.hostPID",
        "message": "the sidecar that holds the cap needs the pod's own process namespace; "
        "remove hostPID",
    }


def test_kubectl_shows_a_refusal_in_one_line(kubectl, team):
    result = kubectl("create", team.pod(a_pod("8GB")))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        'Error from server (Forbidden): error when creating "STDIN": '
        'admission webhook "mutate.vramwarden.io" denied the request: InvalidQuantity: '
        "metadata.annotations[vramwarden.io/gpu-memory]: "
        "8GB is not a Kubernetes quantity; use 8G or 8Gi\n"
    )


def test_kubectl_apply_names_the_update_that_is_refused(kubectl, team):
    pod = team.pod(a_pod("8Gi"))
    assert kubectl("apply", pod).returncode == 0
    pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "16Gi"
    result = kubectl("apply", pod)
    assert result.returncode == 1
    assert (
        'admission webhook "validate.vramwarden.io" denied the request: Immutable: '
        'metadata.annotations[vramwarden.io/gpu-memory]: cannot change from "8Gi" to "16Gi"'
    ) in result.stderr
