"""Pods with VRAM under a rule's isolation, hostPaths, capabilities and resourceClaims."""

from __future__ import annotations

import pytest

from tests.core.admission.decisions import (
    EVERYWHERE,
    a_full_pod,
    assert_admitted,
    assert_denied,
    assert_unchanged,
    capability,
    decide_pod,
    decide_reasons,
    find_container,
    host_path,
    limits,
    merge_fields,
    merge_into_container,
    translate,
)
from tests.core.admission.faults import SHM
from tests.support.pods import a_container, a_pod, a_policy, a_rule
from webhook.core.admission.decision import Phase
from webhook.core.policy.gpu_resources import WHOLE_GPU_RESOURCES
from webhook.core.policy.model import CAPABILITIES, EnforceBy, Isolation, ResourceClaims

NON_ROOT = a_rule(isolation=Isolation.NON_ROOT)
HARDENED = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "runAsUser": 1000}


def a_non_root_pod():
    pod = a_full_pod()
    for name in EVERYWHERE:
        merge_into_container(pod, name, {"securityContext": HARDENED})
    return pod


# --- hostPaths


ANOTHER = "if you did not write it, another webhook did"
LISTED = ("/data", "/mnt/models")
CHOOSE = "mount one of /data, /mnt/models, or remove the volume and its mounts"
NOT_LISTED = (
    *("/", "/mnt", "/database", "/data/..", "/data/../dev", "/mnt/modelsx", "/dev", SHM),
    *("/etc/localtime", "/home", "."),
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    ("paths", "path", "says"),
    [
        *((LISTED, path, CHOOSE) for path in NOT_LISTED),
        ((), "/data", "hostPath.path: remove the volume and its mounts, or ask"),
    ],
)
def test_a_list_allows_its_paths_and_no_parent_or_neighbour_of_them(paths, path, says, phase):
    decision = decide_pod(a_full_pod(**host_path(path)), a_rule(host_paths=paths), phase)
    assert_denied(decision, "HostPath", "spec.volumes[0].hostPath.path")
    assert says in decision.message
    why = f'for a rule whose hostPaths name it; rule "default" does not allow "{path}"; {ANOTHER}'
    assert decision.message.endswith(why)


@pytest.mark.parametrize(
    ("paths", "path"),
    [
        *((LISTED, path) for path in ("/data", "/data/", "//data/./x", "/mnt/models/a/b")),
        (LISTED, "/x/../data"),
        *((("/",), path) for path in ("/", "/dev/nvidia0", "/run")),
    ],
)
def test_a_list_allows_what_is_below_its_paths(paths, path):
    assert_admitted(a_full_pod(**host_path(path)), a_rule(host_paths=paths))


def test_of_a_long_list_of_paths_a_denial_shows_some():
    rule = a_rule(host_paths=tuple(f"/data/{number}" for number in range(1000)))
    message = decide_pod(a_full_pod(**host_path("/mnt")), rule).message
    assert "mount one of /data/0, /data/1, " in message
    assert len(message) < 500


def test_of_a_pod_without_a_demand_no_path_is_judged():
    pod = a_full_pod(None, **host_path("/run"))
    assert_unchanged(decide_pod(pod, a_rule(host_paths=())))


# --- typical pods


ISTIO = {
    "initContainers": [
        a_container(
            "istio-init",
            securityContext={
                "capabilities": {"add": ["NET_ADMIN", "NET_RAW"], "drop": ["ALL"]},
                "privileged": False,
                "runAsUser": 0,
                "runAsNonRoot": False,
                "allowPrivilegeEscalation": False,
            },
        ),
        a_container("istio-proxy", restartPolicy="Always", securityContext={"runAsUser": 1337}),
    ],
    "volumes": [
        {"name": "istio-envoy", "emptyDir": {"medium": "Memory"}},
        {"name": "istio-podinfo", "downwardAPI": {"items": []}},
    ],
}
RDMA = {
    "containers": [
        a_container(
            securityContext={"capabilities": {"add": ["IPC_LOCK"]}},
            resources={"limits": {"rdma/hca_shared_devices_a": "1"}},
        )
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
}
MODELS = {
    "volumes": [
        {"name": "models", "hostPath": {"path": "/mnt/models", "type": "Directory"}},
        {"name": "data", "hostPath": {"path": "/data", "type": "DirectoryOrCreate"}},
        {"name": "shm", "hostPath": {"path": SHM}},
        {"name": "huge", "hostPath": {"path": "/dev/hugepages"}},
        {"name": "time", "hostPath": {"path": "/etc/localtime", "type": "File"}},
    ]
}


@pytest.mark.parametrize("fields", [ISTIO, RDMA, MODELS], ids=["Istio", "RDMA", "models"])
def test_usual_pods_pass_the_defaults(fields):
    assert_admitted(a_pod("main=8Gi", **fields))


# --- capabilities


@pytest.mark.parametrize("name", ["SYS_PTRACE", "CAP_SYS_PTRACE", "sys_ptrace"])
def test_a_rule_may_allow_a_capability_however_a_pod_spells_it(name):
    pod = a_full_pod()
    merge_into_container(pod, "main", capability(name))
    assert_admitted(pod, a_rule(capabilities=frozenset({"SYS_PTRACE"})))
    path = "spec.containers[0].securityContext.capabilities.add[0]"
    assert_denied(decide_pod(pod), "Capability", path)


@pytest.mark.parametrize("name", sorted({*CAPABILITIES} - {"NET_RAW"}))
def test_a_rule_may_allow_fewer_than_the_default(name):
    pod = a_full_pod()
    merge_into_container(pod, "init", capability(name))
    path = "spec.initContainers[0].securityContext.capabilities.add[0]"
    assert_denied(decide_pod(pod, a_rule(capabilities=frozenset())), "Capability", path)


ASK = "or ask your platform team for a rule"
BASELINE = "or use kubectl debug --profile=baseline"
PRIVILEGED = {"securityContext": {"privileged": True}}


@pytest.mark.parametrize(
    ("fields", "spec", "says"),
    [
        (
            *(capability("SYS_NICE"), {}),
            (
                f"remove it, {ASK} whose capabilities name it; container "
                '"main" adds the capability SYS_NICE, which rule "default" does not allow'
            ),
        ),
        (
            *(capability("SYS_PTRACE"), {}),
            (
                f"remove it, {BASELINE}, {ASK} whose capabilities name it; container "
                '"main" adds the capability SYS_PTRACE, which rule "default" does not allow'
            ),
        ),
        (
            *(capability("ALL"), {}),
            (
                'remove it; container "main" adds the capability ALL, which rule "default" does '
                "not allow"
            ),
        ),
        (
            *(PRIVILEGED, {}),
            'remove it; container "main" is privileged, and so reaches every GPU of its node',
        ),
        (
            *({}, host_path("/var/run/datadog")),
            (
                f"remove the volume and its mounts, {ASK} whose hostPaths name it; "
                '"/var/run/datadog" may lead to the node\'s devices, container runtime or kubelet'
            ),
        ),
    ],
)
@pytest.mark.parametrize("by", EnforceBy)
def test_what_others_write_too_is_denied_with_what_helps(fields, spec, says, by):
    pod = a_full_pod(**spec)
    merge_into_container(pod, "main", fields)
    (found,) = decide_pod(pod, a_rule(enforcement={"by": by})).findings
    assert found.detail == f"{says}; {ANOTHER}"


@pytest.mark.parametrize("by", EnforceBy)
@pytest.mark.parametrize("key", ["io.kubernetes.cri-o.userns-mode", "userns-mode.crio.io"])
def test_a_user_namespace_of_cri_o_is_denied_beside_a_demand(key, by):
    rule = a_rule(enforcement={"by": by})
    path = f"metadata.annotations[{key}]"
    asks = a_pod("8Gi", annotations={key: "auto:size=65536"})
    assert_denied(decide_pod(asks, rule), "UserNamespace", path)
    assert_admitted(a_pod("8Gi", annotations={key: ""}, hostUsers=True), rule)
    assert_unchanged(decide_pod(a_pod(annotations={key: "auto"}, hostUsers=False), rule))


def test_all_capabilities_are_never_allowed():
    pod = a_full_pod()
    merge_into_container(pod, "main", capability("ALL"))
    rule = a_rule(capabilities=frozenset({"SYS_ADMIN", *CAPABILITIES}))
    assert decide_pod(pod, rule).reasons == ("Capability",)


# --- resourceClaims and whole GPUs


@pytest.mark.parametrize("claims", ResourceClaims)
def test_a_claim_beside_a_share_is_the_rules_to_judge(claims):
    pod = a_full_pod(resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "t"}])
    merge_into_container(pod, "side", {"resources": {"claims": [{"name": "nic"}]}})
    rule = a_rule(resource_claims=claims)
    if claims is ResourceClaims.IGNORE:
        assert_admitted(pod, rule)
    else:
        assert decide_reasons(pod, rule) == [
            ("WholeGPUAndShare", "spec.initContainers[1].resources.claims"),
            ("WholeGPUAndShare", "spec.resourceClaims"),
        ]


@pytest.mark.parametrize(
    ("resource", "reasons"),
    [
        ("nvidia.com/gpu", ["WholeGPUAndShare"]),
        *((f"nvidia.com/{name}", []) for name in ("hostdev", "sriov_resource")),
        *((name, []) for name in ("rdma/hca", "example.com/fpga")),
    ],
)
@pytest.mark.parametrize("claims", ResourceClaims)
def test_network_cards_go_beside_a_share_and_whole_gpus_never(resource, reasons, claims):
    pod = a_full_pod()
    merge_into_container(pod, "main", limits(resource, "1"))
    assert [*decide_pod(pod, a_rule(resource_claims=claims)).reasons] == reasons


@pytest.mark.parametrize(
    ("resource", "whole"),
    [
        *((name, True) for name in WHOLE_GPU_RESOURCES if "*" not in name),
        *((f"nvidia.com/mig-{name}", True) for name in ("1g.10gb", "3g.40gb.me")),
        *((f"nvidia.com/{name}", True) for name in ("gpumem", "gpumem-percentage")),
        *((f"volcano.sh/vgpu-{name}", True) for name in ("number", "memory", "cores")),
        *((f"aliyun.com/gpu-{name}", True) for name in ("mem", "count", "core.percentage")),
        ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", True),
        ("deviceclass.resource.kubernetes.io/mig-gpu", True),
        ("deviceclass.resource.kubernetes.io/nvidia-h100", True),
        ("deviceclass.resource.kubernetes.io/nic.example.com", False),
        *(
            (f"deviceclass.resource.kubernetes.io/compute-domain-{name}.nvidia.com", False)
            for name in ("daemon", "default-channel")
        ),
        ("amd.com/gpumem", True),
        ("amd.com/gpu-percentage", True),
        ("amd.com/spx_nps1", True),
        ("amd.com/cpx_nps4", True),
        ("amd.com/nic", False),
        ("amd.com/nps4", False),
        ("nvidia.com/gpux", False),
        ("nvidia.com/gpucoresx", False),
        ("nvidia.com/migs", False),
        ("xnvidia.com/gpu", False),
        ("nvidia.com/hostdev", False),
        ("rdma/hca", False),
        ("vramwarden.io/vram", False),
    ],
)
def test_what_stands_for_whole_gpus_where_a_policy_names_nothing(resource, whole):
    assert a_policy(whole_gpu_resources=WHOLE_GPU_RESOURCES).is_whole_gpu(resource) is whole


# --- isolation


def test_under_any_nobodys_user_matters():
    pod = a_full_pod()
    merge_into_container(
        pod, "main", {"securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": True}}
    )
    assert_admitted(pod)


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("runAsNonRoot", value) for value in (None, False)),
        *(("runAsUser", value) for value in (None, 0)),
        *(("allowPrivilegeEscalation", value) for value in (None, True)),
    ],
)
@pytest.mark.parametrize("phase", Phase)
def test_under_non_root_a_container_that_may_be_root_is_denied(field, value, name, phase):
    pod = a_non_root_pod()
    holder = merge_into_container(pod, name, {"securityContext": {field: value}})
    path = f"{holder}.securityContext.{field}"
    assert_denied(decide_pod(pod, NON_ROOT, phase), "PrivilegedContainer", path)


def test_all_that_a_plain_container_lacks_is_reported_at_once():
    holder = "spec.containers[0].securityContext"
    assert decide_reasons(a_pod("8Gi"), NON_ROOT) == [
        ("PrivilegedContainer", f"{holder}.{field}")
        for field in ("runAsNonRoot", "runAsUser", "allowPrivilegeEscalation")
    ]


@pytest.mark.parametrize("field", ["runAsNonRoot", "runAsUser"])
def test_what_the_pod_says_counts_for_containers_that_say_nothing(field):
    pod = a_non_root_pod()
    for name in EVERYWHERE:
        del find_container(pod, name)["securityContext"][field]
    pod["spec"]["securityContext"] = {field: HARDENED[field]}
    assert_admitted(pod, NON_ROOT)
    own = {"securityContext": {field: type(HARDENED[field])(0)}}
    holder = merge_into_container(pod, "second", own)
    path = f"{holder}.securityContext.{field}"
    assert_denied(decide_pod(pod, NON_ROOT), "PrivilegedContainer", path)


@pytest.mark.parametrize("pod_context", [{}, {"seccompProfile": {"type": "RuntimeDefault"}}])
def test_under_non_root_the_sidecar_is_root_also_beside_a_pod_that_meets_restricted(pod_context):
    pod = a_non_root_pod()
    pod["spec"]["securityContext"] = pod_context
    for name in EVERYWHERE:
        merge_into_container(pod, name, {"securityContext": {"capabilities": {"drop": ["ALL"]}}})
    context = find_container(translate(pod, NON_ROOT), "vram-enforcer")["securityContext"]
    assert (context["runAsUser"], context["capabilities"]["add"]) == (0, ["KILL"])
    assert_admitted(pod, NON_ROOT)


def test_a_pod_without_a_demand_may_be_root_under_non_root():
    pod = a_full_pod(None)
    merge_fields(pod["spec"], {"securityContext": {"runAsUser": 0}})
    assert_unchanged(decide_pod(pod, NON_ROOT))
