"""Every reason to refuse a new pod: where it can occur, what is nearly it, and what is said."""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

import pytest
from builders import A100, RULE, a_container, a_pod, a_policy, a_request, a_rule
from test_update import refused_after_creation

from webhook.core.admission import Outcome, Phase, decide
from webhook.core.enforcer_user import enforcer_user
from webhook.core.errors import Reason
from webhook.core.policy import Action, Bounds, EnforceBy, Rule, RunAs, Style, VisibleDevices

VRAM = "vramwarden.io/vram"
MEMORY = "metadata.annotations[vramwarden.io/gpu-memory]"
COUNT = "metadata.annotations[vramwarden.io/gpu-count]"
CLASS = "metadata.annotations[vramwarden.io/gpu-class]"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
WITHOUT_SIDECAR = a_rule(enforcement={"by": EnforceBy.NONE})
SHM = "/dev/shm"  # noqa: S108 - a path of the node, not a file
# What is wrong, then what to do; or a bound, which says both.
SAYS_WHAT_TO_DO = re.compile("; |must be greater than|is less than .*, the smallest")
EVERYWHERE = ["main", "second", "init", "side"]


def a_full_pod(memory: str | None = "main=8Gi", **fields: Any):
    """Return a pod with a container at each place where one can stand."""
    return a_pod(
        memory,
        containers=[a_container("main"), a_container("second")],
        initContainers=[a_container("init"), a_container("side", restartPolicy="Always")],
        **fields,
    )


def decided(pod, rule: Rule = RULE, phase: Phase = Phase.MUTATE, **fields: Any):
    return decide(a_request(copy.deepcopy(pod), **fields), a_policy(rule), phase)


def findings_of(pod, rule: Rule = RULE, phase: Phase = Phase.MUTATE):
    found = decided(pod, rule, phase).findings
    return [(finding.reason.value, finding.path) for finding in found]


def translated(pod, rule: Rule = RULE):
    decision = decided(pod, rule)
    assert decision.outcome is Outcome.MUTATED, decision.message
    return copy.deepcopy(decision.obj)


def put(holder, fields) -> None:
    """Merge fields into an object: objects are merged, lists grow at their end."""
    for key, value in copy.deepcopy(fields).items():
        if isinstance(value, dict) and isinstance(holder.get(key), dict):
            put(holder[key], value)
        elif isinstance(value, list) and isinstance(holder.get(key), list):
            holder[key].extend(value)
        else:
            holder[key] = value


def put_in(pod, name: str, fields) -> str:
    """Merge fields into a container; return the container's path."""
    for field in ("containers", "initContainers"):
        for index, container in enumerate(pod["spec"].get(field, [])):
            if container["name"] == name:
                put(container, fields)
                return f"spec.{field}[{index}]"
    raise LookupError(name)


def ended(path: str, holder) -> str:
    """Replace `[-1]` in a path by the index of the list's last item."""
    head, _, tail = path.partition("[-1]")
    if head == path:
        return path
    for key in head.split("."):
        holder = holder[key]
    return f"{head}[{len(holder) - 1}]{tail}"


def container_of(pod, name: str):
    return next(
        container
        for field in ("containers", "initContainers")
        for container in pod["spec"].get(field, [])
        if container["name"] == name
    )


def assert_refused(decision, reason: str, path: str) -> None:
    """Assert that this alone is found, in the words of the contract."""
    assert [(found.reason.value, found.path) for found in decision.findings] == [
        (str(reason), path)
    ]
    assert decision.outcome is Outcome.DENIED
    assert decision.patch == ()
    (found,) = decision.findings
    assert decision.message == f"{reason}: {path}: {found.detail}"
    assert decision.reasons == (reason,)
    assert SAYS_WHAT_TO_DO.search(found.detail), found.detail
    assert "\n" not in decision.message


def assert_fine(pod, rule: Rule = RULE) -> None:
    """Assert that a pod is admitted and then stored."""
    decision = decided(pod, rule)
    assert decision.allowed, decision.message
    assert decision.findings == ()
    stored = decided(decision.obj, rule, Phase.VALIDATE)
    assert stored.outcome is Outcome.ALLOWED, stored.message


# --- what a single container can do wrong in a pod with a demand


def variable(name: str, value: str | None = None, **source: Any):
    entry: dict[str, Any] = {"name": name}
    if value is not None:
        entry["value"] = value
    if source:
        entry["valueFrom"] = source
    return {"env": [entry]}


def limits(resource: str, amount: Any):
    return {"resources": {"limits": {resource: amount}}}


def capability(name: str):
    return {"securityContext": {"capabilities": {"add": [name]}}}


CONFIG_MAP = {"configMapKeyRef": {"name": "settings", "key": "gpus"}}
OTHER_FIELD = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpus']"}}
ADDED = "securityContext.capabilities.add[-1]"

CONTAINER_FAULTS: list[tuple[Reason, str, Any, str]] = [
    (
        Reason.PRIVILEGED_CONTAINER,
        "privileged",
        {"securityContext": {"privileged": True}},
        "securityContext.privileged",
    ),
    *(
        (Reason.PRIVILEGED_CONTAINER, name, capability(name), ADDED)
        for name in (
            "ALL",
            "SYS_ADMIN",
            "SYS_PTRACE",
            "SYS_MODULE",
            "SYS_RAWIO",
            "KILL",
            "BPF",
            "CAP_SYS_ADMIN",
            "sys_admin",
            "all",
        )
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, f"sees {value!r}", variable(VISIBLE, value), "env[-1]")
        for value in ("all", "0", "0,1", "GPU-5d4ea1", "MIG-1", " void", "VOID", "$(X)", "nvidia")
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, f"sees by {name}", variable(VISIBLE, **source), "env[-1]")
        for name, source in (
            ("config map", CONFIG_MAP),
            ("secret", {"secretKeyRef": {"name": "s", "key": "k"}}),
            ("another annotation", OTHER_FIELD),
        )
    ),
    (
        Reason.VISIBLE_DEVICES_OVERRIDE,
        "void beside valueFrom",
        variable(VISIBLE, "void", **CONFIG_MAP),
        "env[-1]",
    ),
    *(
        (Reason.VISIBLE_DEVICES_OVERRIDE, name, variable(name, "0"), "env[-1]")
        for name in (
            "NVIDIA_GPU_MEMORY_LIMIT",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "CUDA_MPS_PIPE_DIRECTORY",
        )
    ),
    (
        Reason.VISIBLE_DEVICES_OVERRIDE,
        "MPS by config map",
        variable("CUDA_MPS_PIPE_DIRECTORY", **CONFIG_MAP),
        "env[-1]",
    ),
    *(
        (
            Reason.WHOLE_GPU_AND_SHARE,
            f"{resource} {amount}",
            limits(resource, amount),
            f"resources.limits[{resource}]",
        )
        for resource, amount in (
            ("nvidia.com/gpu", "1"),
            ("nvidia.com/gpu", 2),
            ("nvidia.com/gpu", "2000m"),
            ("amd.com/gpu", "1"),
            ("nvidia.com/mig-1g.10gb", "1"),
        )
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        "request and limit",
        {"resources": {kind: {"nvidia.com/gpu": "1"} for kind in ("requests", "limits")}},
        "resources.limits[nvidia.com/gpu]",
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        "claim",
        {"resources": {"claims": [{"name": "gpu"}]}},
        "resources.claims",
    ),
]


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_container_with_a_fault_is_refused_wherever_it_stands(reason, fields, path, name, phase):
    pod = a_full_pod()
    holder = put_in(pod, name, fields)
    path = ended(path, container_of(pod, name))
    assert_refused(decided(pod, phase=phase), reason, f"{holder}.{path}")


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [pytest.param(r, f, p, id=f"{r.value}-{n}") for r, n, f, p in CONTAINER_FAULTS],
)
def test_a_fault_that_another_webhook_adds_to_a_translated_pod_is_refused(
    reason, fields, path, name
):
    pod = translated(a_full_pod())
    holder = put_in(pod, name, fields)
    path = ended(path, container_of(pod, name))
    assert_refused(decided(pod, phase=Phase.VALIDATE), reason, f"{holder}.{path}")


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "fields",
    [
        {"securityContext": {"privileged": False}},
        {"securityContext": None},
        {"securityContext": {"capabilities": {"drop": ["ALL", "SYS_ADMIN"]}}},
        capability("NET_ADMIN"),
        capability("SYS_NICE"),
        capability("SYS_ADMIN_X"),
        variable(VISIBLE, "void"),
        variable(VISIBLE, "none"),
        variable(VISIBLE, ""),
        variable(VISIBLE),
        variable("CUDA_VISIBLE_DEVICES", "0"),
        variable("MY_NVIDIA_VISIBLE_DEVICES", "all"),
        variable("NVIDIA_DRIVER_CAPABILITIES", "all"),
        variable("NVIDIA_GPU", "x"),
        variable("GPUS", **CONFIG_MAP),
        limits("nvidia.com/gpu", "0"),
        limits("nvidia.com/gpu", 0),
        {"resources": {kind: {"nvidia.com/gpu": "0"} for kind in ("requests", "limits")}},
        limits("nvidia.com/gpu.shared", "1"),
        limits("example.com/gpu", "500m"),
        {"resources": {"claims": []}},
    ],
    ids=str,
)
def test_what_is_nearly_a_fault_is_admitted_and_stored(fields, name):
    pod = a_full_pod()
    put_in(pod, name, fields)
    assert_fine(pod)


def test_the_variable_as_we_write_it_is_accepted_only_where_there_is_vram():
    ours = {
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['vramwarden.io/gpu']"}
    }
    pod = a_full_pod()
    put_in(pod, "main", variable(VISIBLE, **ours))
    assert_fine(pod)
    holder = put_in(pod, "second", variable(VISIBLE, **ours))
    assert_refused(decided(pod), "VisibleDevicesOverride", f"{holder}.env[0]")


def test_a_variable_of_the_rule_itself_is_accepted():
    mps = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
    rule = a_rule(env=(mps,))
    assert_fine(a_full_pod(), rule)
    pod = a_full_pod()
    holder = put_in(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/other"))
    assert_refused(decided(pod, rule), "VisibleDevicesOverride", f"{holder}.env[0]")


def test_the_gpu_is_not_for_the_user_to_choose():
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu": "GPU-1"})
    path = "metadata.annotations[vramwarden.io/gpu]"
    assert_refused(decided(pod), "VisibleDevicesOverride", path)


def test_capabilities_matter_only_where_there_is_a_sidecar_to_defeat():
    pod = a_full_pod()
    put_in(pod, "main", capability("SYS_PTRACE"))
    assert_fine(pod, WITHOUT_SIDECAR)
    holder = put_in(pod, "main", {"securityContext": {"privileged": True}})
    path = f"{holder}.securityContext.privileged"
    assert_refused(decided(pod, WITHOUT_SIDECAR), "PrivilegedContainer", path)


def test_a_whole_gpu_that_only_a_request_names_is_refused_at_the_request():
    pod = a_full_pod()
    holder = put_in(pod, "second", {"resources": {"requests": {"nvidia.com/gpu": "1"}}})
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert sorted(findings_of(pod)) == [
        ("RequestsLimitsMismatch", path),
        ("WholeGPUAndShare", path),
    ]


# --- what a pod can do wrong


def host_path(path: str):
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


SPEC_FAULTS: list[tuple[Reason, Any, str]] = [
    (Reason.HOST_PID, {"hostPID": True}, "spec.hostPID"),
    (
        Reason.PROCESS_NAMESPACE_NOT_SHARED,
        {"shareProcessNamespace": False},
        "spec.shareProcessNamespace",
    ),
    (Reason.NODE_NAME_PRESET, {"nodeName": "node-1"}, "spec.nodeName"),
    (Reason.UNSUPPORTED_OS, {"os": {"name": "windows"}}, "spec.os.name"),
    (
        Reason.UNSUPPORTED_OS,
        {"nodeSelector": {"kubernetes.io/os": "windows"}},
        "spec.nodeSelector[kubernetes.io/os]",
    ),
    (
        Reason.NODE_SELECTOR_CONFLICT,
        {"nodeSelector": {"vramwarden.io/gpu": "false"}},
        "spec.nodeSelector[vramwarden.io/gpu]",
    ),
    (
        Reason.NODE_SELECTOR_CONFLICT,
        {"nodeSelector": {"vramwarden.io/gpu": ""}},
        "spec.nodeSelector[vramwarden.io/gpu]",
    ),
    (
        Reason.WHOLE_GPU_AND_SHARE,
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "spec.resourceClaims",
    ),
    *(
        (Reason.PRIVILEGED_CONTAINER, host_path(path), "spec.volumes[-1].hostPath.path")
        for path in (
            "/dev",
            "/dev/",
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/nvidia-caps",
            "/dev/dri/card0",
            "//dev",
            "/./dev",
            f"{SHM}/../nvidia0",
            f"{SHM}oo",
            "/",
            "dev/nvidia0",
        )
    ),
    (
        Reason.RESERVED_NAME,
        {
            "volumes": [
                {"name": "v", "emptyDir": {}},
                {"name": "vram-enforcer-run", "hostPath": {"path": "/data"}},
            ]
        },
        "spec.volumes[-1].name",
    ),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("reason", "fields", "path"), SPEC_FAULTS, ids=str)
def test_a_pod_with_a_fault_is_refused(reason, fields, path, phase):
    pod = a_full_pod(**fields)
    assert_refused(decided(pod, phase=phase), reason, ended(path, {"spec": pod["spec"]}))


@pytest.mark.parametrize(
    ("reason", "fields", "path"),
    [case for case in SPEC_FAULTS if case[0] is not Reason.RESERVED_NAME],
    ids=str,
)
def test_a_fault_of_the_pod_is_found_again_when_it_is_stored(reason, fields, path):
    pod = translated(a_full_pod())
    put(pod["spec"], fields)
    assert_refused(decided(pod, phase=Phase.VALIDATE), reason, ended(path, pod))


@pytest.mark.parametrize(
    "fields",
    [
        {"hostPID": False},
        {"hostPID": None},
        {"hostIPC": True},
        {"hostNetwork": True},
        {"shareProcessNamespace": True},
        {"shareProcessNamespace": None},
        {"nodeName": ""},
        {"nodeSelector": {"kubernetes.io/hostname": "node-1"}},
        {"nodeSelector": {"vramwarden.io/gpu": "true", "kubernetes.io/os": "linux"}},
        {"os": {"name": "linux"}},
        {"resourceClaims": []},
        {"schedulerName": "other"},
        *map(host_path, (SHM, f"{SHM}/", f"{SHM}/x", "/dev/hugepages", "/devices")),
        *map(host_path, ("/data", "/data/dev", "/data/dev/nvidia0")),
        {"volumes": [{"name": "dev", "emptyDir": {}}, {"name": "vram-enforcer", "emptyDir": {}}]},
    ],
    ids=str,
)
def test_a_pod_that_is_nearly_at_fault_is_admitted_and_stored(fields):
    assert_fine(a_full_pod(**fields))


@pytest.mark.parametrize("fields", [{"hostPID": True}, {"shareProcessNamespace": False}], ids=str)
def test_without_a_sidecar_the_process_namespace_is_the_users(fields):
    assert_fine(a_full_pod(**fields), WITHOUT_SIDECAR)


def test_a_pod_without_a_demand_may_do_all_this():
    pod = a_full_pod(
        None,
        hostPID=True,
        nodeName="node-1",
        shareProcessNamespace=False,
        os={"name": "windows"},
        nodeSelector={"vramwarden.io/gpu": "false"},
        resourceClaims=[{"name": "gpu"}],
        **host_path("/dev"),
    )
    put_in(pod, "main", {"securityContext": {"privileged": True}})
    put_in(pod, "second", variable("CUDA_MPS_PIPE_DIRECTORY", "/mps"))
    for phase in Phase:
        assert decided(pod, phase=phase).outcome is Outcome.ALLOWED


# --- the demand and its bounds

DEMAND_FAULTS: list[tuple[Reason, str | None, dict[str, str], str]] = [
    (Reason.INVALID_QUANTITY, "8GB", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "0", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "", {}, MEMORY),
    (Reason.INVALID_QUANTITY, "main=8Gi,main=8Gi", {}, MEMORY),
    (Reason.TOO_SMALL, "8192", {}, MEMORY),
    (Reason.TOO_SMALL, "1Ki", {}, MEMORY),
    (Reason.UNKNOWN_CONTAINER, "other=8Gi", {}, MEMORY),
    (
        Reason.UNKNOWN_CONTAINER,
        "8Gi",
        {"kubectl.kubernetes.io/default-container": "other"},
        "metadata.annotations[kubectl.kubernetes.io/default-container]",
    ),
    (Reason.INVALID_COUNT, "8Gi", {"vramwarden.io/gpu-count": "0"}, COUNT),
    (Reason.INVALID_COUNT, "8Gi", {"vramwarden.io/gpu-count": "half"}, COUNT),
    (Reason.INVALID_COUNT, None, {"vramwarden.io/gpu-count": "1"}, COUNT),
    (Reason.INVALID_QUANTITY, None, {"vramwarden.io/gpu-class": "a100"}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": "h100"}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": ""}, CLASS),
    (Reason.UNKNOWN_CLASS, "8Gi", {"vramwarden.io/gpu-class": "A100"}, CLASS),
    (Reason.TOO_LARGE, "79Gi", {"vramwarden.io/gpu-class": "a100"}, MEMORY),
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("reason", "memory", "annotations", "path"), DEMAND_FAULTS)
def test_a_demand_that_cannot_be_met_is_refused_at_its_annotation(
    reason, memory, annotations, path, phase
):
    pod = a_full_pod(memory, annotations=annotations)
    assert_refused(decided(pod, phase=phase), reason, path)


GI = 2**30


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        ("40Gi", None),
        ("40961Mi", "TooLarge"),
        ("42949672961", "TooLarge"),
        ("64Mi", None),
        ("63Mi", "TooSmall"),
        ("66060289", None),
        ("main=20Gi,second=20Gi", None),
        ("main=20Gi,second=20481Mi", "TooLarge"),
        ("main=20Gi,init=40Gi", None),
        ("main=20Gi,init=41Gi", "TooLarge"),
        ("main=20Gi,side=21Gi", "TooLarge"),
        ("main=32Mi,second=32Mi", None),
        ("main=1Mi", "TooSmall"),
    ],
)
def test_the_bounds_of_a_rule_are_inclusive_and_for_the_whole_pod(memory, reason):
    rule = a_rule(memory=Bounds(min_bytes=2**26, max_bytes=40 * GI))
    pod = a_full_pod(memory)
    if reason is None:
        assert_fine(pod, rule)
    else:
        decision = decided(pod, rule)
        assert_refused(decision, reason, MEMORY)
        assert ("40Gi" if reason == "TooLarge" else "64Mi") in decision.message
        assert '"default"' in decision.message


@pytest.mark.parametrize(("memory", "wanted"), [("78Gi", []), ("79873Mi", ["TooLarge"])])
def test_the_bounds_of_a_class_hold_too(memory, wanted):
    pod = a_pod(memory, annotations={"vramwarden.io/gpu-class": "a100"})
    assert [reason for reason, _ in findings_of(pod)] == wanted
    by_default = a_rule(default_class="a100")
    assert [reason for reason, _ in findings_of(a_pod(memory), by_default)] == wanted


def test_a_class_has_a_lower_bound_as_well():
    large = A100.__class__("large", {}, (), Bounds(min_bytes=8 * GI))
    policy = a_policy(a_rule(default_class="large"), classes={"large": large})
    assert decide(a_request(a_pod("8Gi")), policy, Phase.MUTATE).allowed
    decision = decide(a_request(a_pod("8191Mi")), policy, Phase.MUTATE)
    assert_refused(decision, "TooSmall", MEMORY)
    assert 'class "large" wants at least 8Gi' in decision.message


def test_a_demand_outside_both_bounds_is_told_both():
    rule = a_rule(memory=Bounds(max_bytes=40 * GI))
    pod = a_pod("80Gi", annotations={"vramwarden.io/gpu-class": "a100"})
    decision = decided(pod, rule)
    assert findings_of(pod, rule) == [("TooLarge", MEMORY), ("TooLarge", MEMORY)]
    assert 'rule "default" allows at most 40Gi' in decision.message
    assert 'class "a100" allows at most 78Gi' in decision.message


def test_bounds_are_per_gpu_whatever_the_count():
    rule = a_rule(memory=Bounds(max_bytes=40 * GI))
    assert_fine(a_pod("40Gi", annotations={"vramwarden.io/gpu-count": "4"}), rule)


@pytest.mark.parametrize(("count", "wanted"), [("1", []), ("2", []), ("3", ["InvalidCount"])])
def test_the_count_has_a_bound_too(count, wanted):
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-count": count})
    decision = decided(pod, a_rule(max_gpu_count=2))
    assert list(decision.reasons) == wanted
    if wanted:
        assert_refused(decision, "InvalidCount", COUNT)
        assert "allows at most 2" in decision.message


def test_an_explicit_amount_is_held_to_the_bounds_at_its_own_path():
    pod = a_full_pod(None)
    holder = put_in(pod, "second", limits(VRAM, "41Gi"))
    rule = a_rule(memory=Bounds(max_bytes=40 * GI))
    assert_refused(decided(pod, rule), "TooLarge", f"{holder}.resources.limits[{VRAM}]")


@pytest.mark.parametrize(
    ("allowed", "wanted", "says"),
    [
        (("*",), [], ""),
        (("a*",), [], ""),
        (("h*", "a100"), [], ""),
        (("h*",), ["UnknownClass"], "not allowed"),
        ((), ["UnknownClass"], "not allowed"),
    ],
)
def test_a_class_must_be_allowed_by_the_rule(allowed, wanted, says):
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "a100"})
    decision = decided(pod, a_rule(allowed_classes=allowed))
    assert list(decision.reasons) == wanted
    assert says in decision.message


def test_an_unknown_class_is_told_the_known_ones():
    pod = a_pod("8Gi", annotations={"vramwarden.io/gpu-class": "h100"})
    assert "allows a100" in decided(pod).message


def test_the_default_class_of_a_rule_applies_where_none_is_named():
    after = translated(a_pod("8Gi"), a_rule(default_class="a100", allowed_classes=()))
    assert after["spec"]["nodeSelector"]["nvidia.com/gpu.product"] == "A100"


def test_a_pod_that_selects_other_nodes_than_its_class_is_refused():
    pod = a_pod(
        "8Gi",
        annotations={"vramwarden.io/gpu-class": "a100"},
        nodeSelector={"nvidia.com/gpu.product": "T4", "vramwarden.io/gpu": "no"},
    )
    assert findings_of(pod) == [
        ("NodeSelectorConflict", "spec.nodeSelector[vramwarden.io/gpu]"),
        ("NodeSelectorConflict", "spec.nodeSelector[nvidia.com/gpu.product]"),
    ]


# --- resources


def both(resource: str, request: Any, limit: Any):
    resources = {"requests": {resource: request}, "limits": {resource: limit}}
    return {
        "resources": {
            kind: amounts
            for kind, amounts in resources.items()
            if next(iter(amounts.values())) is not None
        }
    }


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "resource", [VRAM, "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"]
)
@pytest.mark.parametrize(("request_", "limit"), [("2Gi", "4Gi"), ("4Gi", "2Gi"), ("2Gi", None)])
def test_a_request_without_its_equal_limit_is_refused_in_any_container(
    request_, limit, resource, name, phase
):
    pod = a_full_pod(None)
    holder = put_in(pod, name, both(resource, request_, limit))
    path = f"{holder}.resources.requests[{resource}]"
    assert_refused(decided(pod, phase=phase), "RequestsLimitsMismatch", path)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("amount", ["500m", "0.5", 0.5, "1500m", "1.5", "2m", "1n", "-1"])
@pytest.mark.parametrize("request_", [None, "same"])
def test_a_part_of_a_whole_gpu_is_refused_in_any_container(amount, request_, name, phase):
    pod = a_full_pod(None)
    holder = put_in(pod, name, both("nvidia.com/gpu", request_ and amount, amount))
    path = f"{holder}.resources.limits[nvidia.com/gpu]"
    decision = decided(pod, phase=phase)
    assert_refused(decision, "FractionalWholeGPU", path)
    cure = "write a positive integer" if amount == "-1" else "vramwarden.io/gpu-memory"
    assert cure in decision.message


def test_a_part_of_a_gpu_in_a_request_alone_is_refused_there():
    pod = a_full_pod(None)
    holder = put_in(pod, "init", both("nvidia.com/gpu", "500m", None))
    path = f"{holder}.resources.requests[nvidia.com/gpu]"
    assert findings_of(pod) == [("FractionalWholeGPU", path), ("RequestsLimitsMismatch", path)]


@pytest.mark.parametrize("amount", ["half", "1 ", "", "1GB", "nan"])
def test_a_count_of_gpus_that_is_no_quantity_is_refused(amount):
    pod = a_full_pod(None)
    holder = put_in(pod, "second", limits("nvidia.com/gpu", amount))
    (found,) = decided(pod).findings
    assert (found.reason.value, found.path) == (
        "InvalidQuantity",
        f"{holder}.resources.limits[nvidia.com/gpu]",
    )


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "fields",
    [
        limits("nvidia.com/gpu", "1"),
        limits("nvidia.com/gpu", 8),
        limits("nvidia.com/gpu", "2000m"),
        limits("nvidia.com/gpu", "1k"),
        limits("nvidia.com/gpu", "0"),
        both("nvidia.com/gpu", "2", "2000m"),
        limits("cpu", "500m"),
        both("cpu", "100m", "500m"),
        both("memory", "1Gi", None),
        limits("nvidia.com/gpu.shared", "500m"),
        {"resources": None},
        {"resources": {"limits": None, "requests": {}}},
    ],
    ids=str,
)
def test_whole_gpus_and_other_resources_are_left_alone(fields, name):
    pod = a_full_pod(None)
    put_in(pod, name, fields)
    for phase in Phase:
        decision = decided(pod, phase=phase)
        assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize(
    "amounts", [both(VRAM, "8Gi", "8192Mi"), both(VRAM, None, 8 * GI)], ids=str
)
def test_equal_amounts_of_vram_may_be_written_differently(amounts):
    pod = a_full_pod(None)
    put_in(pod, "second", amounts)
    assert_fine(pod)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
def test_an_explicit_amount_that_disagrees_with_the_annotation_is_refused(name, phase):
    pod = a_full_pod(f"{name}=8Gi")
    holder = put_in(pod, name, limits(VRAM, "4Gi"))
    path = f"{holder}.resources.limits[{VRAM}]"
    assert_refused(decided(pod, phase=phase), "ConflictingAmounts", path)


def test_an_annotation_changed_after_translation_disagrees_with_it():
    pod = translated(a_full_pod())
    pod["metadata"]["annotations"]["vramwarden.io/gpu-memory"] = "main=4Gi"
    path = f"spec.containers[0].resources.limits[{VRAM}]"
    assert_refused(decided(pod, phase=Phase.VALIDATE), "ConflictingAmounts", path)


# --- visible devices, by rule


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "entry",
    [variable(VISIBLE, "all"), variable(VISIBLE, "0"), variable(VISIBLE, **CONFIG_MAP)],
    ids=str,
)
def test_a_pod_without_a_demand_sees_no_gpu_by_hand(entry, name, phase):
    pod = a_full_pod(None)
    holder = put_in(pod, name, entry)
    decision = decided(pod, phase=phase)
    assert_refused(decision, "VisibleDevicesOverride", f"{holder}.env[0]")


@pytest.mark.parametrize("value", ["void", "none", "", None])
@pytest.mark.parametrize("devices", VisibleDevices)
def test_hiding_the_gpus_is_always_allowed(value, devices):
    pod = a_full_pod(None)
    put_in(pod, "init", variable(VISIBLE, value))
    decision = decided(pod, a_rule(visible_devices=devices))
    assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    "source", [variable(VISIBLE, "all"), variable(VISIBLE, **CONFIG_MAP)], ids=str
)
def test_a_rule_may_void_what_is_set_by_hand(source, name):
    rule = a_rule(visible_devices=VisibleDevices.VOID)
    pod = a_full_pod(None)
    put_in(pod, name, variable("A", "1"))
    put_in(pod, name, source)
    put_in(pod, name, variable("B", "2"))
    decision = decided(pod, rule)
    assert decision.outcome is Outcome.MUTATED
    assert container_of(decision.obj, name)["env"] == [
        {"name": "A", "value": "1"},
        {"name": VISIBLE, "value": "void"},
        {"name": "B", "value": "2"},
    ]
    container_of(decision.obj, name)["env"] = container_of(pod, name)["env"]
    assert decision.obj == pod


def test_a_pod_with_another_fault_is_not_voided():
    pod = a_full_pod(None)
    put_in(pod, "main", variable(VISIBLE, "all"))
    put_in(pod, "second", limits("nvidia.com/gpu", "500m"))
    for action in (Action.ENFORCE, Action.WARN, Action.AUDIT):
        rule = a_rule(visible_devices=VisibleDevices.VOID, action=action)
        decision = decided(pod, rule)
        assert (decision.reasons, decision.patch) == (("FractionalWholeGPU",), ())


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_rule_may_ignore_what_is_set_by_hand(name):
    pod = a_full_pod(None)
    put_in(pod, name, variable(VISIBLE, "all"))
    for phase in Phase:
        decision = decided(pod, a_rule(visible_devices=VisibleDevices.IGNORE), phase)
        assert (decision.outcome, decision.patch) == (Outcome.ALLOWED, ())


@pytest.mark.parametrize(
    ("devices", "second"), [(VisibleDevices.VOID, "void"), (VisibleDevices.IGNORE, "all")]
)
def test_with_a_demand_the_containers_with_vram_see_their_gpu_whatever_the_rule(devices, second):
    rule = a_rule(visible_devices=devices)
    pod = a_full_pod()
    put_in(pod, "main", variable(VISIBLE, "all"))
    put_in(pod, "second", variable(VISIBLE, "all"))
    after = translated(pod, rule)
    (main,) = (e for e in container_of(after, "main")["env"] if e["name"] == VISIBLE)
    assert main["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['vramwarden.io/gpu']"
    assert container_of(after, "second")["env"] == [{"name": VISIBLE, "value": second}]
    assert_fine(pod, rule)


@pytest.mark.parametrize("devices", VisibleDevices)
def test_limits_of_the_driver_are_refused_whatever_the_rule_says_of_devices(devices):
    pod = a_full_pod()
    holder = put_in(pod, "init", variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"))
    decision = decided(pod, a_rule(visible_devices=devices))
    assert_refused(decision, "VisibleDevicesOverride", f"{holder}.env[0]")


# --- what the rule's action makes of it


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("memory", [None, "main=8Gi"])
@pytest.mark.parametrize(
    ("action", "outcome", "allowed"),
    [
        (Action.ENFORCE, Outcome.DENIED, False),
        (Action.WARN, Outcome.WARNED, True),
        (Action.AUDIT, Outcome.AUDITED, True),
    ],
)
def test_the_action_decides_and_an_allowed_fault_is_not_mutated(
    action, outcome, allowed, memory, phase
):
    pod = a_full_pod(memory)
    put_in(pod, "second", variable(VISIBLE, "all"))
    decision = decided(pod, a_rule(action=action), phase)
    assert (decision.outcome, decision.allowed) == (outcome, allowed)
    assert decision.reasons == ("VisibleDevicesOverride",)
    assert decision.patch == ()
    assert decision.obj == pod


@pytest.mark.parametrize("phase", Phase)
def test_a_rule_that_ignores_looks_at_nothing(phase):
    pod = a_full_pod("8GB", hostPID=True)
    decision = decided(pod, a_rule(action=Action.IGNORE), phase)
    assert (decision.outcome, decision.reasons) == (Outcome.SKIPPED, ("RuleIgnores",))
    assert (decision.allowed, decision.patch, decision.findings) == (True, (), ())


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
def test_a_pod_without_fault_is_mutated_whatever_the_action(action):
    assert decided(a_full_pod(), a_rule(action=action)).outcome is Outcome.MUTATED


@pytest.mark.parametrize("action", [Action.WARN, Action.AUDIT])
def test_a_pod_that_was_allowed_in_spite_of_a_fault_is_stored(action):
    rule = a_rule(action=action)
    pod = a_full_pod(hostPID=True)
    assert decided(decided(pod, rule).obj, rule, Phase.VALIDATE).allowed


# --- whether a sidecar can enforce at all

RESTRICTED = {
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}


class Row(NamedTuple):
    """A row of the table in `enforcer_user`'s docstring, with `any` written out."""

    run_as: RunAs
    restricted: bool
    one_user: bool
    sidecar: str


def rows() -> list[Row]:
    lines = re.findall(r"^ *\| (.+) \|$", enforcer_user.__doc__ or "", re.MULTILINE)[2:]
    words = {"any": (True, False), "yes": (True,), "no": (False,)}
    return [
        Row(RunAs(cells[0]), restricted, one_user, cells[3])
        for cells in ([cell.strip() for cell in line.split("|")] for line in lines)
        for restricted in words[cells[1]]
        for one_user in words[cells[2]]
    ]


def test_the_table_of_users_says_each_case_once():
    cases = [row[:3] for row in rows()]
    assert len(cases) == len(set(cases)) == len(RunAs) * 4


def a_hardened_pod(*, restricted: bool, users: tuple[int | None, int | None], pod_user=None):
    pod = a_full_pod("main=4Gi,second=4Gi")
    for name in EVERYWHERE:
        put_in(pod, name, RESTRICTED if restricted else {})
    for name, user in zip(("main", "second"), users, strict=True):
        if user is not None:
            put_in(pod, name, {"securityContext": {"runAsUser": user}})
    if pod_user is not None:
        pod["spec"]["securityContext"] = {"runAsUser": pod_user}
    return pod


@pytest.mark.parametrize("row", rows(), ids=lambda row: "-".join(map(str, row)))
def test_the_sidecar_runs_as_the_table_says(row):
    rule = a_rule(enforcement={"run_as": row.run_as})
    known = [((1000, 1000), None), ((None, None), 1000), ((1000, None), 1000), ((1000, 1000), 5)]
    unknown = [((None, None), None), ((1000, None), None), ((1000, 1001), None), ((7, None), 8)]
    for users, pod_user in known if row.one_user else unknown:
        pod = a_hardened_pod(restricted=row.restricted, users=users, pod_user=pod_user)
        decision = decided(pod, rule)
        if row.sidecar == "EnforcementImpossible":
            assert decision.outcome is Outcome.DENIED
            assert decision.reasons == ("EnforcementImpossible",)
            continue
        context = container_of(decision.obj, "vram-enforcer")["securityContext"]
        root = row.sidecar == "root with KILL"
        assert root or row.sidecar == "that user"
        assert context["runAsUser"] == (0 if root else 1000)
        assert context["runAsNonRoot"] is not root
        assert context["capabilities"] == ({"drop": ["ALL"]} | ({"add": ["KILL"]} if root else {}))
        assert_fine(pod, rule)


@pytest.mark.parametrize(
    ("users", "pod_user", "path"),
    [
        ((None, None), None, "spec.containers[0]"),
        ((1000, None), None, "spec.containers[1]"),
        ((1000, 1001), None, "spec.containers[1]"),
        ((None, 8), 7, "spec.containers[1]"),
    ],
)
@pytest.mark.parametrize("run_as", [RunAs.AUTO, RunAs.WORKLOAD])
def test_an_impossible_enforcement_names_the_container(users, pod_user, path, run_as):
    rule = a_rule(enforcement={"run_as": run_as})
    pod = a_hardened_pod(restricted=True, users=users, pod_user=pod_user)
    for phase in Phase:
        decision = decided(pod, rule, phase)
        where = f"{path}.securityContext.runAsUser"
        assert_refused(decision, "EnforcementImpossible", where)
        assert "runAsUser" in decision.findings[0].detail


def test_users_of_containers_without_vram_do_not_matter():
    rule = a_rule(enforcement={"run_as": RunAs.WORKLOAD})
    pod = a_full_pod("second=8Gi")
    put_in(pod, "second", {"securityContext": {"runAsUser": 1000}})
    put_in(pod, "main", {"securityContext": {"runAsUser": 0}})
    context = container_of(translated(pod, rule), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000


def test_a_container_as_root_overrides_the_user_of_its_pod():
    rule = a_rule(enforcement={"run_as": RunAs.WORKLOAD})
    pod = a_hardened_pod(restricted=False, users=(0, 0), pod_user=1000)
    context = container_of(translated(pod, rule), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 0
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_without_a_sidecar_no_user_is_needed():
    assert_fine(a_hardened_pod(restricted=True, users=(None, None)), WITHOUT_SIDECAR)


@pytest.mark.parametrize(
    "loosen",
    [
        lambda pod: put_in(pod, "init", {"securityContext": {"allowPrivilegeEscalation": None}}),
        lambda pod: put_in(pod, "main", {"securityContext": {"runAsNonRoot": False}}),
        lambda pod: put_in(pod, "main", {"securityContext": {"seccompProfile": None}}),
        lambda pod: put_in(
            pod, "side", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}
        ),
        lambda pod: container_of(pod, "second")["securityContext"].pop("capabilities"),
        lambda pod: put_in(pod, "second", capability("NET_ADMIN")),
        lambda pod: put(pod["spec"], {"hostNetwork": True}),
        lambda pod: put(pod["spec"], {"hostIPC": True}),
        lambda pod: put(pod["spec"], host_path("/data")),
    ],
    ids=[
        "may escalate",
        "may be root",
        "no seccomp",
        "seccomp unconfined",
        "keeps capabilities",
        "adds NET_ADMIN",
        "hostNetwork",
        "hostIPC",
        "hostPath",
    ],
)
def test_a_pod_that_restricted_would_refuse_gets_a_sidecar_as_root(loosen):
    pod = a_hardened_pod(restricted=True, users=(None, None))
    loosen(pod)
    decision = decided(pod)
    assert decision.outcome is Outcome.MUTATED, decision.message
    assert container_of(decision.obj, "vram-enforcer")["securityContext"]["runAsUser"] == 0


def test_what_the_pod_says_for_all_its_containers_counts_as_theirs():
    pod = a_full_pod("8Gi")
    for name in EVERYWHERE:
        put_in(
            pod,
            name,
            {
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                }
            },
        )
    pod["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    context = container_of(translated(pod), "vram-enforcer")["securityContext"]
    assert context["runAsUser"] == 1000


# --- the reserved name

FORGERIES = [
    {"image": "example"},
    {"image": "evil/vramwarden/enforcer:1"},
    {"image": "vramwarden/enforcer2:1"},
    {"image": "registry:5000/vramwarden/enforcer"},
    {"image": None},
    {"command": ["sleep", "inf"]},
    {"command": []},
    {"command": ["python3", "-I", "-m", "webhook.sidecar", "--version"]},
    {"args": ["--help"]},
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("forged", FORGERIES, ids=str)
def test_a_sidecar_that_runs_something_else_is_refused(forged, phase):
    pod = translated(a_full_pod())
    put(container_of(pod, "vram-enforcer"), dict.fromkeys(forged))
    holder = put_in(pod, "vram-enforcer", forged)
    decision = decided(pod, phase=phase)
    assert_refused(decision, "ReservedName", f"{holder}.name")
    assert "give the container another name" in decision.message


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("annotations", [{}, {"vramwarden.io/admitted": "v1 default 0123456789ab"}])
def test_a_container_of_the_reserved_name_is_refused_whatever_the_annotations(field, annotations):
    pod = a_full_pod(annotations=annotations, labels={"vramwarden.io/managed": "true"})
    pod["spec"][field].append(a_container("vram-enforcer"))
    index = len(pod["spec"][field]) - 1
    assert_refused(decided(pod), "ReservedName", f"spec.{field}[{index}].name")


HARMLESS = {
    "defaults of the API server": {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "startupProbe": {"successThreshold": 1},
        "livenessProbe": {"successThreshold": 1},
    },
    "AlwaysPullImages": {"imagePullPolicy": "Always"},
    "variables of others": {
        "env": [
            {"name": "AWS_ROLE_ARN", "value": "x"},
            {"name": "HTTP_PROXY", "value": "http://proxy"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ]
    },
    "credentials of a cloud": {
        "volumeMounts": [
            {"name": "aws", "mountPath": "/var/run/secrets/eks.amazonaws.com/serviceaccount"}
        ]
    },
    "a limit from a LimitRange": {
        "resources": {
            "limits": {"ephemeral-storage": "1Gi"},
            "requests": {"ephemeral-storage": "1Gi"},
        }
    },
}


@pytest.mark.parametrize("fields", HARMLESS.values(), ids=HARMLESS)
@pytest.mark.parametrize("style", Style)
def test_our_sidecar_is_ours_with_what_others_add_in_good_faith(fields, style):
    rule = a_rule(enforcement={"style": style})
    pod = translated(a_full_pod(), rule)
    put_in(pod, "vram-enforcer", fields)
    again = decided(pod, rule)
    assert (again.outcome, again.patch) == (Outcome.ALLOWED, ())
    stored = decided(pod, rule, Phase.VALIDATE)
    assert stored.outcome is Outcome.ALLOWED, stored.message


@pytest.mark.parametrize(
    "image", ["vramwarden/enforcer:0", "vramwarden/enforcer", "vramwarden/enforcer@sha256:ab"]
)
def test_our_sidecar_of_another_release_is_ours_and_brought_up_to_date(image):
    pod = translated(a_full_pod())
    container_of(pod, "vram-enforcer")["image"] = image
    decision = decided(pod)
    assert decision.outcome is Outcome.MUTATED
    assert decision.obj == translated(a_full_pod())


HARMFUL = {
    "LD_PRELOAD": {"env": [{"name": "LD_PRELOAD", "value": "/x.so"}]},
    "LD_LIBRARY_PATH": {"env": [{"name": "LD_LIBRARY_PATH", "value": "/x"}]},
    "PYTHONPATH": {"env": [{"name": "PYTHONPATH", "value": "/x"}]},
    "PATH": {"env": [{"name": "PATH", "value": "/x"}]},
    "a second cap": {"env": [{"name": "VRAM_CAP_BYTES", "value": "999999999999"}]},
    "another setting": {"env": [{"name": "VRAM_UNHEARD_OF", "value": "1"}]},
    "another GPU": {"env": [{"name": VISIBLE, "value": "void"}]},
    "variables from a map": {"envFrom": [{"configMapRef": {"name": "m"}}]},
    "mount over /usr": {"volumeMounts": [{"name": "v", "mountPath": "/usr"}]},
    "mount over /usr by a detour": {
        "volumeMounts": [{"name": "v", "mountPath": "/var/run/secrets/../../../usr"}]
    },
    "mount over the heartbeat by a detour": {
        "volumeMounts": [{"name": "v", "mountPath": "/run/secrets/../vram-enforcer"}]
    },
    "hook": {"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}},
    "other user": {"securityContext": {"runAsUser": 65534}},
    "writable root": {"securityContext": {"readOnlyRootFilesystem": False}},
    "a probe less": {"livenessProbe": None},
    "easier probe": {"startupProbe": {"exec": {"command": ["true"]}}},
    "no restart": {"restartPolicy": None},
    "more memory": {"resources": {"limits": {"memory": "1Gi"}}},
    "working directory": {"workingDir": "/x"},
    "VRAM of its own": {
        "resources": {"requests": {VRAM: "1Gi"}, "limits": {VRAM: "1Gi"}},
    },
}


@pytest.mark.parametrize("fields", HARMFUL.values(), ids=HARMFUL)
def test_a_sidecar_that_was_tampered_with_is_repaired_or_else_refused(fields):
    clean = translated(a_full_pod())
    pod = copy.deepcopy(clean)
    put_in(pod, "vram-enforcer", fields)
    stored = decided(pod, phase=Phase.VALIDATE)
    assert stored.reasons == ("Unmutated",)
    assert stored.findings[0].path.startswith("spec.initContainers")
    repaired = decided(pod)
    assert repaired.outcome is Outcome.MUTATED
    assert repaired.obj == clean


def test_a_sidecar_behind_an_init_container_with_vram_is_moved_before_it():
    clean = translated(a_full_pod("init=8Gi"))
    pod = copy.deepcopy(clean)
    inits = pod["spec"]["initContainers"]
    inits.append(inits.pop(0))
    assert decided(pod).obj == clean
    stored = decided(pod, phase=Phase.VALIDATE)
    assert stored.reasons == ("Unmutated",)


@pytest.mark.parametrize("memory", ["main=8Gi", "side=8Gi"])
def test_a_sidecar_behind_an_init_container_without_vram_stays(memory):
    pod = translated(a_full_pod(memory))
    pod["spec"]["initContainers"].insert(0, pod["spec"]["initContainers"].pop(1))
    assert decided(pod).patch == ()
    assert decided(pod, phase=Phase.VALIDATE).allowed


def test_a_second_sidecar_is_removed():
    clean = translated(a_full_pod())
    pod = copy.deepcopy(clean)
    pod["spec"]["containers"].append(container_of(pod, "vram-enforcer") | {"restartPolicy": None})
    assert decided(pod).obj == clean
    assert decided(pod, phase=Phase.VALIDATE).reasons == ("Unmutated",)


GPU_BY_NAME = [
    pytest.param(None, RULE, variable(VISIBLE, "all"), id="no demand, sees all"),
    pytest.param(None, RULE, limits("nvidia.com/gpu", "500m"), id="no demand, half a GPU"),
    pytest.param(None, RULE, limits(VRAM, "8Gi"), id="no demand but its own"),
    pytest.param("main=8Gi", WITHOUT_SIDECAR, variable(VISIBLE, "all"), id="no sidecar, sees all"),
    pytest.param(
        "main=8Gi", WITHOUT_SIDECAR, limits("nvidia.com/gpu", "1"), id="no sidecar, whole"
    ),
    pytest.param(
        "main=8Gi",
        WITHOUT_SIDECAR,
        {"securityContext": {"privileged": True}},
        id="no sidecar, privileged",
    ),
]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("memory", "rule", "fields"), GPU_BY_NAME)
def test_the_reserved_name_hides_no_fault(memory, rule, fields, phase, field):
    pod = (
        a_full_pod(memory)
        if phase is Phase.MUTATE or memory is None
        else translated(a_full_pod(memory), rule)
    )
    pod["spec"][field].append(a_container("vram-enforcer", **copy.deepcopy(fields)))
    decision = decided(pod, rule, phase)
    assert decision.outcome is Outcome.DENIED


def test_where_no_sidecar_is_wanted_not_even_ours_may_bear_its_name():
    pod = a_full_pod()
    ours = container_of(translated(pod), "vram-enforcer")
    pod["spec"]["containers"].append(ours | variable(VISIBLE, "all"))
    path = "spec.containers[2].name"
    assert_refused(decided(pod, WITHOUT_SIDECAR), "ReservedName", path)


@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize(
    "fields",
    [
        limits("nvidia.com/gpu", "1"),
        {"resources": {kind: {"nvidia.com/gpu": "1"} for kind in ("requests", "limits")}},
        limits("amd.com/gpu", "1"),
        {"resources": {"claims": [{"name": "gpu"}]}},
    ],
    ids=str,
)
def test_the_sidecar_gets_no_gpu_of_its_own(fields, style):
    rule = a_rule(enforcement={"style": style})
    clean = translated(a_full_pod(), rule)
    pod = copy.deepcopy(clean)
    put_in(pod, "vram-enforcer", fields)
    assert not decided(pod, rule, Phase.VALIDATE).allowed
    again = decided(pod, rule)
    assert not again.allowed or again.obj == clean


def test_a_rule_that_voids_does_so_under_the_reserved_name_too():
    pod = a_full_pod(None)
    pod["spec"]["containers"].append(a_container("vram-enforcer", **variable(VISIBLE, "all")))
    decision = decided(pod, a_rule(visible_devices=VisibleDevices.VOID))
    seen = container_of(decision.obj, "vram-enforcer")["env"]
    assert not decision.allowed or seen == [{"name": VISIBLE, "value": "void"}]


# --- mirror pods

MIRROR = {"kubernetes.io/config.mirror": "hash"}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("annotations", "groups", "skipped"),
    [
        (MIRROR, ("system:nodes", "system:authenticated"), True),
        ({"kubernetes.io/config.mirror": ""}, ("system:nodes",), True),
        (MIRROR, ("system:authenticated",), False),
        (MIRROR, (), False),
        (MIRROR, ("system:nodes:x",), False),
        ({}, ("system:nodes",), False),
    ],
)
def test_only_a_pod_that_a_kubelet_mirrors_is_left_alone(annotations, groups, skipped, phase):
    pod = a_full_pod(hostPID=True, nodeName="node-1", annotations=annotations)
    decision = decided(pod, phase=phase, groups=groups)
    if skipped:
        assert (decision.allowed, decision.patch) == (True, ())
        assert decision.reasons == ("MirrorPod",)
    else:
        assert not decision.allowed
        assert decision.reasons == ("NodeNamePreset", "HostPID")


# --- all at once


def test_six_faults_are_reported_at_once():
    pod = a_full_pod(
        "main=80Gi",
        annotations={"vramwarden.io/gpu-class": "h100"},
        hostPID=True,
        nodeName="node-1",
    )
    put_in(pod, "init", {"securityContext": {"privileged": True}})
    put_in(pod, "second", variable(VISIBLE, "all"))
    rule = a_rule(memory=Bounds(max_bytes=40 * GI))
    decision = decided(pod, rule)
    assert sorted(decision.reasons) == [
        "HostPID",
        "NodeNamePreset",
        "PrivilegedContainer",
        "TooLarge",
        "UnknownClass",
        "VisibleDevicesOverride",
    ]
    assert decision.message == "; ".join(
        f"{found.reason}: {found.path}: {found.detail}" for found in decision.findings
    )


def test_the_same_fault_in_every_container_is_reported_for_each():
    pod = a_full_pod()
    paths = [put_in(pod, name, variable(VISIBLE, "all")) + ".env[0]" for name in EVERYWHERE]
    assert findings_of(pod) == [("VisibleDevicesOverride", path) for path in paths]


def test_faults_beside_a_demand_that_cannot_be_read_are_reported_with_it():
    pod = a_full_pod("8GB", hostPID=True, nodeName="node-1")
    put_in(pod, "init", limits("nvidia.com/gpu", "500m"))
    assert sorted({reason for reason, _ in findings_of(pod)}) == [
        "FractionalWholeGPU",
        "HostPID",
        "InvalidQuantity",
        "NodeNamePreset",
        "WholeGPUAndShare",
    ]


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("UnknownClass", {"annotations": {"vramwarden.io/gpu-class": "h100"}}),
        ("NodeSelectorConflict", {"nodeSelector": {"vramwarden.io/gpu": "false"}}),
        ("ReservedName", {"containers": [a_container(), a_container("vram-enforcer")]}),
    ],
)
def test_what_does_not_depend_on_the_amount_is_reported_beside_a_wrong_one(reason, more):
    decision = decided(a_pod("8GB", **more))
    assert set(decision.reasons) == {"InvalidQuantity", reason}


# --- the set of reasons is closed


def test_every_reason_is_reached_by_a_test():
    decisions = [
        *(decided(a_full_pod(**fields)) for _, fields, _ in SPEC_FAULTS),
        *(decided(a_full_pod(m, annotations=notes)) for _, m, notes, _ in DEMAND_FAULTS),
        decided(a_hardened_pod(restricted=True, users=(None, None))),
        *refused_after_creation(),
    ]
    for _, _, fields, _ in CONTAINER_FAULTS:
        pod = a_full_pod()
        put_in(pod, "main", fields)
        decisions.append(decided(pod))
    for name, fields in (
        ("main", limits(VRAM, "4Gi")),
        ("main", both(VRAM, "4Gi", None)),
        ("init", limits("nvidia.com/gpu", "500m")),
    ):
        pod = a_full_pod()
        put_in(pod, name, fields)
        decisions.append(decided(pod))
    seen = {found.reason for decision in decisions for found in decision.findings}
    assert set(Reason) - seen == set()
