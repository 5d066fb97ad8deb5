"""Every known attack by a tenant is prevented, or is a limit that the documents state.

A row of `TABLE` is one attempt against a real API server with everything the chart installs. Rows
that need real processes name the tests for them. `VECTORS` are the kinds of attack; each has
at least one row.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.chart.admission_policies import POLICY
from tests.chart.fenced import granted
from tests.chart.recorded_reviews import denial
from tests.cluster.attacked import (
    ASSIGNMENT,
    GATE,
    GATE_VARIABLE,
    GATE_VOLUME,
    NODE,
    STRATEGIC,
    WHOLE_GATE,
    Tenant,
    attacked,
)
from tests.support import charts
from tests.support.charts import NAMESPACE
from tests.support.control_planes import ApiError, needs, needs_pod_level_resources, wait_until
from tests.support.paths import ROOT
from tests.support.pods import a_container, a_pod
from webhook.core.placement.assignment_codec import (
    WholeGpuPods,
    config_map_name,
    read_whole_gpu_pods,
)

Json = dict[str, Any]

VISIBLE, VRAM = "NVIDIA_VISIBLE_DEVICES", "vramwarden.io/vram"
ALL = {"name": VISIBLE, "value": "all"}
CHOSEN = "metadata.annotations['vramwarden.io/visible-devices']"
VOID = {"name": VISIBLE, "value": "void"}
SIDECAR = "vram-enforcer"


@pytest.fixture(scope="module")
def mallory(control_plane, tmp_path_factory):
    """Return the tenant, in one cluster for the whole table."""
    if not charts.available():
        pytest.skip(charts.MISSING)
    helm = charts.Helm(tmp_path_factory.mktemp("helm"))
    with attacked(control_plane, helm, tmp_path_factory.mktemp("server")) as tenant:
        yield tenant


# Attempts: functions that return if the API server accepts the request, and raise its denial.


def creating(*arguments: Any, namespace: str = "team-a", **more: Any) -> Callable[[Tenant], Json]:
    return lambda tenant: tenant.create(a_pod(*arguments, **more), namespace)


def with_container(
    *arguments: Any, namespace: str = "team-a", spec: Json | None = None, **fields: Any
) -> Callable[[Tenant], Json]:
    return creating(
        *arguments, containers=[a_container(**fields)], namespace=namespace, **(spec or {})
    )


def with_security(memory: str | None, namespace: str = "team-a", **fields: Any):
    return with_container(memory, namespace=namespace, securityContext=fields)


def with_capability(name: str) -> Callable[[Tenant], Json]:
    return with_security("8Gi", capabilities={"add": [name]})


def with_host_path(path: str) -> Callable[[Tenant], Json]:
    volume = {"name": "v", "hostPath": {"path": path}}
    mounts = [{"name": "v", "mountPath": "/v"}]
    return with_container("8Gi", volumeMounts=mounts, spec={"volumes": [volume]})


def with_env(memory: str | None, *entries: Json, **fields: Any) -> Callable[[Tenant], Json]:
    return with_container(memory, env=list(entries), **fields)


def with_mount(memory: str | None, volume: str, path: str) -> Callable[[Tenant], Json]:
    mounts = [{"name": volume, "mountPath": path}]
    volumes = [{"name": volume, "emptyDir": {}}]
    return with_container(memory, volumeMounts=mounts, spec={"volumes": volumes})


def from_source(**source: Json) -> Json:
    return {"name": VISIBLE, "valueFrom": source}


def with_resource(memory: str | None, name: str, amount: str = "1") -> Callable[[Tenant], Json]:
    amounts = {name: amount}
    return with_container(memory, resources={"requests": amounts, "limits": amounts})


def on_node(name: str, amount: str = "1", *annotation: str) -> Callable[[Tenant], Json]:
    """Create a pod that bypasses the scheduler, with a resource that its node may lack."""
    amounts = {"limits": {name: amount}}
    notes = {"annotations": dict([annotation])} if annotation else {}
    return with_container(resources=amounts, spec={"nodeName": NODE, **notes})


def claiming(memory: str | None) -> Callable[[Tenant], Json]:
    claims = [{"name": "gpu", "resourceClaimName": "one"}]
    resources = {"claims": [{"name": "gpu"}]}
    return with_container(memory, resources=resources, spec={"resourceClaims": claims})


def debugging(memory: str | None, namespace: str = "team-a", **container: Any):

    def tries(tenant: Tenant) -> Json:
        pod = the_pod(tenant, memory, namespace)
        return tenant.debug(pod, **container)

    return tries


def the_pod(tenant: Tenant, memory: str | None, namespace: str = "team-a") -> Json:
    """Return one of the tenant's pods, created on first use."""
    if (memory, namespace) not in tenant.made:
        meets = namespace.startswith("strict-")
        spec = {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}} if meets else {}
        container = a_container(
            **({"securityContext": {"allowPrivilegeEscalation": False}} if meets else {})
        )
        tenant.made[memory, namespace] = tenant.has(
            memory, containers=[container], namespace=namespace, **spec
        )
    return tenant.made[memory, namespace]


def changing(memory: str | None, change: Json, part: str = "") -> Callable[[Tenant], Json]:
    return lambda tenant: tenant.patch(the_pod(tenant, memory), change, part)


def annotations(**notes: str | None) -> Json:
    return {"metadata": {"annotations": {f"vramwarden.io/{k}": v for k, v in notes.items()}}}


def entering(how: str) -> Callable[[Tenant], Json]:
    return lambda tenant: tenant.enter(the_pod(tenant, "8Gi"), how, SIDECAR)


def with_pod_level(tenant: Tenant) -> Json:
    """Limit the pod to resources that are enough only for the sidecar."""
    limits = {"cpu": "10m", "memory": "64Mi"}
    needs_pod_level_resources(tenant.admin)
    return tenant.create(a_pod("8Gi", resources={"requests": limits, "limits": limits}))


def resizing_the_pod(tenant: Tenant) -> Json:
    """Reduce the memory of a running pod on a node that supports resizing."""
    features = {"status": {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"]}}
    tenant.admin.request("PATCH", f"/api/v1/nodes/{NODE}/status", features, content_type=STRATEGIC)
    limits = {"cpu": "2", "memory": "1Gi"}
    needs_pod_level_resources(tenant.admin)
    pod = tenant.has("8Gi", resources={"requests": {"cpu": "20m"}, "limits": limits})
    bound_as(tenant, pod)
    less = {"limits": {**limits, "memory": "65Mi"}, "requests": {"memory": "65Mi"}}
    try:
        return tenant.patch(pod, {"spec": {"resources": less}}, "/resize")
    except ApiError as error:
        if "feature gate is disabled" in error.message:
            pytest.skip("needs an API server that resizes pod-level resources")
        raise
    finally:
        tenant.delete(pod)


def changing_the_sidecar(part: str, **fields: Any) -> Callable[[Tenant], Json]:
    change = {"spec": {"initContainers": [{"name": SIDECAR, **fields}]}}
    return changing("8Gi", change, part)


def writing_status(rights: str, **notes: str) -> Callable[[Tenant], Json]:
    """Write a pod's GPU into its status, with a permission that tenants rarely have."""
    notes = notes or {"gpu": "GPU-stolen"}

    def tries(tenant: Tenant) -> Json:
        pod = the_pod(tenant, "8Gi")
        if not rights:
            return tenant.annotate(pod, "/status", **notes)
        rule = {"apiGroups": [""], "resources": [rights], "verbs": ["patch"]}
        with granted(tenant.admin, "dave", rule):
            dave = tenant.admin.acting_as("dave", "system:authenticated")
            return tenant.annotate(pod, "/status", dave, **notes)

    return tries


def exempting(part: str) -> Callable[[Tenant], Json]:
    """Label a namespace, with the permissions on namespaces that `_wait_for_fences` granted."""

    def tries(tenant: Tenant) -> Json:
        label = {"metadata": {"labels": {"vramwarden.io/webhook": "disabled"}}}
        rule = {"apiGroups": [""], "resources": ["namespaces", f"namespaces{part}"]}
        with granted(tenant.admin, "erin", {**rule, "verbs": ["patch"]}):
            erin = tenant.admin.acting_as("erin", "system:authenticated")
            path = f"/api/v1/namespaces/{tenant.namespace('team-a')}{part}"
            return erin.request("PATCH", path, label, content_type=STRATEGIC, dryRun="All")

    return tries


def binding_herself(tenant: Tenant) -> None:
    tenant.bind(the_pod(tenant, "8Gi"), NODE, tenant.api, dry_run=True)


def posting_a_binding(tenant: Tenant) -> None:
    """Try to reserve GPUs without the API server; the path for bindings cannot be guessed."""
    client = tenant.server.client()
    client.request("POST", "/bind", b"{}", {"Content-Type": "application/json"})
    answer = client.getresponse()
    answer.read()
    client.close()
    raise ApiError({"code": answer.status, "message": f"{answer.status}"})


# Attempts that are accepted without effect: functions that verify this.


def brings_a_sidecar_along(tenant: Tenant) -> None:
    """Define a sidecar; vramwarden overwrites it with its own."""
    (ours,) = tenant.create(a_pod("8Gi"))["spec"]["initContainers"]
    hers = copy.deepcopy(ours)
    hers |= {"terminationMessagePath": "/run/x", "image": "evil.example/enforcer:1"}
    hers["resources"]["limits"]["ephemeral-storage"] = "1"
    for name in ("__NVML_DBG_FILE", "OPENSSL_CONF", "LD_PRELOAD", "TZ"):
        hers["env"].append({"name": name, "value": "/x"})
    hers["env"][0] = {"name": "VRAM_CAP_BYTES", "value": str(2**62)}
    del hers["livenessProbe"]
    (found,) = tenant.create(a_pod("8Gi", initContainers=[hers]))["spec"]["initContainers"]
    assert found == ours


def is_voided(*arguments: Any, **more: Any) -> Callable[[Tenant], None]:
    """Create a pod whose containers then see no GPU."""

    def check(tenant: Tenant) -> None:
        needs(tenant.admin, "MutatingAdmissionPolicy")
        for container in tenant.create(a_pod(*arguments, **more))["spec"]["containers"]:
            assert VOID in container["env"], container

    return check


def takes_nothing_from_a_map(tenant: Tenant) -> None:
    """Set NVIDIA's environment variables by a ConfigMap; the pod's own variables override them."""
    source = [{"prefix": "NVIDIA_", "configMapRef": {"name": "c"}}]
    pod = tenant.create(a_pod("1Gi", containers=[a_container(envFrom=source)]))
    (container,) = pod["spec"]["containers"]
    for name in ("IMEX_CHANNELS", "MIG_CONFIG_DEVICES", "MIG_MONITOR_DEVICES", "NVSWITCH"):
        assert {"name": f"NVIDIA_{name}"} in container["env"]  # an empty value is not stored


def whole_gpu_pods(tenant: Tenant, asked: str) -> tuple[str, ...]:
    """Return the pods with whole GPUs that a replica reports to the node's agent."""
    label = {"metadata": {"labels": {"vramwarden.io/whole-gpu-pods": asked}}}
    tenant.admin.request("PATCH", f"/api/v1/nodes/{NODE}", label, content_type=STRATEGIC)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config_map_name(NODE)}"

    def answer() -> WholeGpuPods | None:
        if denial(lambda: tenant.admin.request("GET", path)):
            return None  # the node has no assignments yet
        found = read_whole_gpu_pods(tenant.admin.request("GET", path)["data"])
        return found if found and found.asked == asked else None

    return wait_until("a replica answers", answer).pods


def keeps_no_node(tenant: Tenant) -> None:
    """Name a node in pods that no kubelet admits; only pods bound by a scheduler count."""
    tenant.namespace("opted-out", {"vramwarden.io/webhook": "disabled"})
    whole = [a_container(resources={"limits": {GPU: "1"}})]
    claims = [{"name": f"a{n}", "resourceClaimName": f"b{n}"} for n in range(17)]
    named = [
        tenant.create(a_pod(nodeName=NODE, **fields), "opted-out", tenant.admin, dry_run=False)
        for fields in ({"containers": whole}, {"resourceClaims": claims})
    ]
    bound = tenant.create(a_pod(containers=whole), "opted-out", tenant.admin, dry_run=False)
    assert whole_gpu_pods(tenant, "1") == ()
    tenant.bind(bound, NODE)
    assert whole_gpu_pods(tenant, "2") == (f"opted-out/{bound['metadata']['name']}",)
    tenant.delete(bound, *named)


def is_translated(generateName: str = "", **spec: Any) -> Callable[[Tenant], None]:  # noqa: N803 - as in a pod
    """Create a pod with a demand in an unusual way; it is mutated as usual."""

    def check(tenant: Tenant) -> None:
        pod = tenant.create(a_pod("8Gi", **spec), generate_name=generateName)
        assert pod["spec"]["initContainers"][0]["name"] == SIDECAR
        assert pod["metadata"]["labels"]["vramwarden.io/managed"] == "true"

    return check


def has_a_runtime_class(tenant: Tenant) -> None:
    """Set only NVIDIA's runtime class, by which containers see no GPU."""
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    named = {**kind, "metadata": {"name": "shows-gpus"}}
    tenant.admin.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", named)
    check = is_voided(runtimeClassName="shows-gpus")
    try:
        wait_until("the class is known", lambda: not denial(lambda: check(tenant)))
    finally:
        tenant.admin.request("DELETE", "/apis/node.k8s.io/v1/runtimeclasses/shows-gpus")


def stores_nothing(part: str) -> Callable[[Tenant], None]:
    """Write a pod's GPU by a subresource that stores no annotations."""

    def check(tenant: Tenant) -> None:
        pod = the_pod(tenant, "8Gi")
        try:
            changed = tenant.annotate(pod, part, gpu="GPU-stolen")
        except ApiError:
            return
        assert "vramwarden.io/gpu" not in changed["metadata"]["annotations"]

    return check


def binding_brings_marks(tenant: Tenant) -> None:
    """Forge marks in a Binding: even with permission to create one, vramwarden's marks win."""
    pod = tenant.has("1Gi")
    notes = {"gpu": "GPU-stolen", "gpu-memory": "1Mi", "admitted": "x", "gpu-memory-fraction": "9"}
    marks = {
        "annotations": {f"vramwarden.io/{key}": value for key, value in notes.items()},
        "labels": {"vramwarden.io/managed": "no"},
    }
    known = {**pod["metadata"]["annotations"]}
    bound_as(tenant, pod, **marks)
    found = tenant.stored(pod)["metadata"]
    tenant.delete(pod)
    assert found["labels"]["vramwarden.io/managed"] == "true"
    assert found["annotations"]["vramwarden.io/gpu"].startswith("GPU-g1")
    assert found["annotations"][ASSIGNMENT] != "9"
    for key in ("vramwarden.io/gpu-memory", "vramwarden.io/admitted"):
        assert found["annotations"][key] == known[key]


def keeps_the_gate(namespace: str, **more: Any) -> Callable[[Tenant], None]:
    """Create a pod; each container waiting for its GPU has a variable and a mount for the gate."""
    waiting = {"vram-enforcer"} if namespace.startswith("team-") else {"main"}

    def check(tenant: Tenant) -> None:
        pod = tenant.create(a_pod("8Gi", **more), namespace)
        assert ASSIGNMENT not in pod["metadata"]["annotations"]
        spec = pod["spec"]
        assert [volume for volume in spec["volumes"] if volume["name"] == "vram-gate"] == [
            GATE_VOLUME
        ]
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            found = (
                [
                    variable
                    for variable in container["env"]
                    if variable["name"] == GATE_VARIABLE["name"]
                ],
                [
                    found_mount
                    for found_mount in container["volumeMounts"]
                    if found_mount["name"] == "vram-gate"
                ],
            )
            waits = container["name"] in waiting
            assert found == (([GATE_VARIABLE], [GATE]) if waits else ([], []))

    return check


def mounting_the_gate(namespace: str, field: str, **mount: Any) -> Callable[[Tenant], Json]:
    """Create a pod in which a container mounts the gate's volume in another way."""
    mounting = a_container("mounting", volumeMounts=[{**GATE, **mount}])
    more = {"initContainers": [mounting]} if field == "initContainers" else {}
    containers = [a_container(), *([] if more else [mounting])]
    return creating(
        "main=8Gi", containers=containers, volumes=[GATE_VOLUME], namespace=namespace, **more
    )


def bound_as(tenant: Tenant, pod: Json, **marks: Json) -> None:
    """Bind a pod to the node once its replica knows free memory there, as the scheduler retries."""

    def bound() -> bool:
        try:
            tenant.bind(pod, NODE, **marks)
        except ApiError as error:
            if error.code == 409:
                return True
            assert "is not known" in error.message or "no GPU" in error.message, error.message
            return False
        return True

    wait_until("the pod is bound", bound)


def poison_takes_nothing(tenant: Tenant) -> None:
    """Forge a demand on the node in an exempt namespace; other pods still fit on the node.

    A pod that the kubelet admits counts only once, even if it names both GPUs.
    """
    tenant.namespace("opted-out", {"vramwarden.io/webhook": "disabled"})
    shown = {"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": CHOSEN}}}
    amount = a_container(env=[shown], resources={"limits": {VRAM: "70Gi"}})
    both = {"vramwarden.io/gpu": "GPU-g1-0,GPU-g1-1"}
    labels = {"vramwarden.io/managed": "true"}
    for made, room in (
        (a_pod("8GB", labels=labels, nodeName=NODE), "78Gi"),
        (a_pod(containers=[amount], labels=labels, annotations=both, nodeName=NODE), "45Gi"),
    ):
        forged = tenant.create(made, "opted-out", tenant.admin, dry_run=False)
        pod = tenant.has(room)
        bound_as(tenant, pod)
        uuids = tenant.stored(pod)["metadata"]["annotations"]["vramwarden.io/gpu"]
        tenant.delete(pod, forged)
        assert uuids.startswith("GPU-g1")


def a_dry_run_reserves_nothing(tenant: Tenant) -> None:
    """Request both GPUs repeatedly in dry runs; other pods still fit."""
    pods = [tenant.has("78Gi") for _ in range(2)]
    for pod in (*pods, *pods):
        tenant.bind(pod, NODE, dry_run=True)
    last = tenant.has("70Gi", annotations={"vramwarden.io/gpu-count": "2"})
    bound_as(tenant, last)
    tenant.delete(*pods, last)


@dataclass(frozen=True)
class Row:
    """An attempt and its expected result."""

    vector: str
    """One of `VECTORS`, and the variant."""
    tries: Callable[[Tenant], Any] | None = None
    """The attempt, as an actual request or a dry run."""
    why: str = ""
    """Regular expression for the denial's message; empty if the attempt is not denied."""
    path: str = ""
    """Document that states the limit, or the tests with real processes."""
    says: str = ""
    """Text in the document or test."""


def closed(vector: str, tries: Callable[[Tenant], Any], why: str) -> Row:
    """Return a row for an attempt that is denied."""
    return Row(vector, tries, why)


def harmless(vector: str, tries: Callable[[Tenant], None]) -> Row:
    """Return a row for an attempt that is accepted without effect, as `tries` verifies."""
    return Row(vector, tries)


def limit(vector: str, path: str, says: str, tries: Callable[[Tenant], Any] | None = None) -> Row:
    """Return a row for an attempt that succeeds, as a document states and `tries` shows."""
    return Row(vector, tries, "", path, says)


def shown(vector: str, path: str, says: str) -> Row:
    """Return a row for an attempt that needs real processes and therefore has its own tests."""
    return Row(vector, None, "", path, says)


def by(names: str, says: str) -> str:
    """Return a pattern for a denial by the fence; any of its policies may respond first."""
    return f"{POLICY} 'vramwarden-({names})' with binding .* denied request: vramwarden: {says}"


KEPT = by("sidecar", "the container vram-enforcer holds the pod's VRAM cap and stays as it was ")
ENTERED = by("enforcer", "the container vram-enforcer holds the pod's VRAM cap; only who may ")
MARKED = by(
    "accounts|second-line|sidecar",
    "the annotations vramwarden.io/gpu, visible-devices, .* are changed by vramwarden alone",
)
INJECTED = by(
    "second-line", "remove the annotation by which devices are injected .*; it shows GPUs that "
)
EXEMPTED = by("exemption", "the label vramwarden.io/webhook is set and removed by who may ")

PRIVILEGED, DEBUGGING = "PrivilegedContainer: ", "EphemeralContainer: "
BY_HAND, FIXED = "VisibleDevicesOverride: ", "Immutable: "
CAPABILITY, HOST_PATH, IPC = "Capability: ", "HostPath: ", "HostIPC: "
OF_DRIVER, INJECTION, USERS = "DriverVariable: ", "DeviceInjection: ", "UserNamespace: "
FIELDS_MD, SECURITY_MD = "policies/fields.md", "SECURITY.md"
SIDECARS = "tests/sidecar/test_incident_tenant.py"
LESS = {"requests": {"cpu": "1m"}, "limits": {"cpu": "1m"}}
HOST_PATHS = (
    *("/", "/dev", "//dev/./", "/dev/../dev/nvidia0", "/dev/./shm/../nvidia0", "/run"),
    *("/run/nvidia/driver", "/var/run/containerd/containerd.sock", "/var/lib/kubelet"),
    *("/var/lib/kubelet/device-plugins", "/proc", "/etc", "/proc/1/root/dev"),
)
CAPABILITIES = (
    *("SYS_RESOURCE", "SYS_NICE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "PERFMON"),
    *("MAC_OVERRIDE", "SYS_ADMIN", "SYS_PTRACE", "BPF", "SYS_MODULE", "ALL", "cap_sys_admin"),
)
WHOLE = (
    *("deviceclass.resource.kubernetes.io/gpu.nvidia.com", "nvidia.com/pgpu", "nvidia.com/gpu"),
    *("nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "nvidia.com/a100"),
    "deviceclass.resource.kubernetes.io/mig.nvidia.com",
)
CDI = (
    ("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=all"),
    ("nvidia.cdi.k8s.io", "nvidia.com/gpu=0"),
    ("devices.gke.io/container.main", "- path: /dev/nvidia0"),
    ("cdi-devices.nri.io", '- "\\x6evidia.com/gpu=all"'),
    ("devices.nri.io/pod", "- {path: /dev/x, type: c, major: 0xC3, minor: 0}"),
    ("io.kubernetes.cri-o.Devices", "/dev/nvidia0"),
    ("mounts.noderesource.dev", "- destination: /var/run/nvidia-container-devices/all"),
    ("cdi.k8s.io/x", "nvidia.com/gpu=all"),
    ("cdi.k8s.io/x", "runtime.nvidia.com/gpu=all"),
)
UNNAMED = {
    "envFrom": {"envFrom": [{"configMapRef": {"name": "gpus"}}]},
    "CUDA_VERSION": {"env": [{"name": "CUDA_VERSION", "value": "12.4"}]},
    "an image's own": {"image": "nvidia/cuda:12.4.0-base"},
    **{
        f"beside {card}": {
            "envFrom": [{"configMapRef": {"name": "gpus"}}],
            "resources": {"limits": {card: "1"}},
        }
        for card in ("rdma/hca", "nvidia.com/hostdev")
    },
    "other case": {"env": [{"name": "nvidia_visible_devices", "value": "all"}]},
    "DOCKER_RESOURCE_GPU": {"env": [{"name": "DOCKER_RESOURCE_GPU", "value": "0"}]},
}
NAMED = {
    "by value": [ALL],
    "twice": [VOID, ALL],
    "by a variable": [{"name": "X", "value": "all"}, {"name": VISIBLE, "value": "$(X)"}],
    "by a field": [from_source(fieldRef={"fieldPath": "metadata.annotations['x']"})],
    "by a ConfigMap": [from_source(configMapKeyRef={"name": "c", "key": "k"})],
}
CHANGES = (
    ("its GPU", annotations(gpu="GPU-stolen"), MARKED),
    ("the names of its devices", annotations(**{"visible-devices": "all"}), MARKED),
    ("its gate", annotations(**{"gpu-memory-fraction": "0.5"}), MARKED),
    ("its amount", annotations(**{"gpu-memory": "80Gi"}), FIXED),
    ("its mark", annotations(admitted="x"), MARKED),
    ("its label", {"metadata": {"labels": {"vramwarden.io/managed": None}}}, MARKED),
)
GPU = "nvidia.com/gpu"
TWO_CARDS = ("devices.gke.io/pod", "- path: /dev/nvidia0\n- path: /dev/nvidia1\n")
MOUNT = "- {source: /home/x/py, destination: /usr/lib/python3.11, type: bind}"
OF_SIDECAR = (
    *("mounts.nri.io/container.vram-enforcer", "io.kubernetes.cri-o.UnifiedCgroup.vram-enforcer"),
    "ulimits.nri.containerd.io/container.vram-enforcer",
)
OPEN = {"name": GATE_VARIABLE["name"], "value": "0.5"}
OPENING = {
    "the variable by hand": {"containers": [a_container(env=[OPEN])]},
    "the variable twice": {"containers": [a_container(env=[OPEN, GATE_VARIABLE, OPEN])]},
    "the variable from a map": {
        "containers": [a_container(envFrom=[{"configMapRef": {"name": "c"}}])]
    },
    "a volume of hers": {"volumes": [{"name": "vram-gate", "configMap": {"name": "c"}}]},
    "the annotation": {"annotations": {ASSIGNMENT: "0.5"}},
}
DEVICES = "/var/run/nvidia-container-devices/all"
MIRROR = {"kubernetes.io/config.mirror": "x"}
FORGED = {
    "labels": {"vramwarden.io/managed": "true"},
    "annotations": {"vramwarden.io/admitted": "v1 a 0123456789ab", "vramwarden.io/gpu": "GPU-x"},
}
TABLE = [
    # B: the sidecar. A process with the sidecar's user ID may signal it; under NonRoot the pod has
    # none.
    closed("B1 root under NonRoot", with_security("8Gi", "strict-a", runAsUser=0), PRIVILEGED),
    closed("B1 no user named under NonRoot", with_security("8Gi", "strict-a"), PRIVILEGED),
    limit(
        "B1 root otherwise",
        FIELDS_MD,
        "container that runs as root can therefore stop a sidecar that runs as root",
        with_security("8Gi", runAsUser=0),
    ),
    shown(
        "B1 stopped, its heartbeat forged: by its probe",
        "tests/sidecar/test_incident_paused.py",
        "def test_a_pause_fails_the_probe_and_is_told_and_then_the_cap_holds_again(",
    ),
    shown(
        "B1 a process that poses as it",
        SIDECARS,
        "def test_a_process_of_the_tenants_own_is_not_taken_for_the_enforcer(",
    ),
    shown(
        "B1 without descriptors",
        SIDECARS,
        "def test_an_enforcer_without_descriptors_ends_and_says_why(",
    ),
    *(
        shown(f"{vector} {name}: from outside", "tests/sentry/scenarios.py", f'"{name}": (')
        for vector, name in (
            *(("B1", name) for name in ("stop", "stop-as-user", "kill", "starve", "rename")),
            *(("B1", "fork"), ("B4", "supervisor"), ("B5", "ghost"), ("B9", "crowd")),
            ("B10", "nested"),
        )
    ),
    *(
        shown(f"{vector} all of these", "tests/sentry/test_attacks.py", f"def {name}(")
        for vector, name in (
            ("B1", "test_the_excess_ends"),
            ("B5", "test_memory_whose_owner_ended_is_found_by_whom_it_belonged_to"),
            ("B10", "test_bystanders_live"),
        )
    ),
    shown(
        "B4 a supervisor without GPU memory",
        "tests/sidecar/test_incident_repeated.py",
        "def test_a_supervisor_that_starts_what_is_stopped_again_and_holds_nothing_ends_for_good(",
    ),
    shown(
        "B5 in the sidecar, once it was seen on a GPU",
        "tests/sidecar/test_observer_processes.py",
        "def test_a_stranger_counts_after_a_while_where_it_is_surely_ours(",
    ),
    limit(
        "B5 in the sidecar",
        SECURITY_MD,
        "with other drivers it is reported and not counted",
    ),
    shown(
        "B9 a crowd",
        "tests/sidecar/test_observer_processes.py",
        'id="a crowd within the ceiling is added up"',
    ),
    shown(
        "B10 a SIGTERM to the sidecar while the workload runs",
        "tests/sidecar/test_incident_paused.py",
        "def test_told_to_end_it_guards_on_while_a_container_that_held_memory_runs_anything(",
    ),
    shown(
        "B9 a list longer than the buffer",
        "tests/sidecar/test_incident_figures.py",
        "def test_a_list_that_outgrows_its_buffer_hides_nobody(",
    ),
    *(closed(f"B2 {how}", entering(how), ENTERED) for how in ("exec", "attach")),
    closed(
        "B3 a debugging container as root under NonRoot",
        debugging("8Gi", "strict-a", securityContext={"runAsUser": 0}),
        DEBUGGING,
    ),
    *(
        closed(
            f"B3 a debugging container with {name}",
            debugging("8Gi", securityContext={"capabilities": {"add": [name]}}),
            DEBUGGING,
        )
        for name in ("SYS_RESOURCE", "SYS_NICE", "SYS_PTRACE", "KILL")
    ),
    closed(
        "B3 a debugging container of the sidecar",
        debugging("8Gi", targetContainerName=SIDECAR),
        DEBUGGING,
    ),
    limit(
        "B3 a debugging container as root otherwise",
        FIELDS_MD,
        "a process may signal every process of its own user",
        debugging("8Gi", securityContext={"runAsUser": 0}),
    ),
    closed("B6 limits of the pod", with_pod_level, "EnforcementImpossible: spec.resources"),
    closed("B6 limits of the pod, later", resizing_the_pod, "EnforcementImpossible: spec"),
    harmless("B7 a sidecar brought along", brings_a_sidecar_along),
    *(closed(f"B8 {name}", with_capability(name), CAPABILITY) for name in CAPABILITIES),
    closed("B10 the node's PIDs", creating("8Gi", hostPID=True), "HostPID: "),
    closed("B10 the node's IPC", creating("8Gi", hostIPC=True), IPC),
    closed(
        "B10 PIDs of its own",
        creating("8Gi", shareProcessNamespace=False),
        "ProcessNamespaceNotShared: ",
    ),
    closed("B10 users of its own", creating("8Gi", hostUsers=False), USERS),
    shown(
        "B10 the next owner of a number",
        "tests/sidecar/test_incident_identity.py",
        "def test_the_next_owner_of_a_number_is_not_killed",
    ),
    closed(
        "B11 MPS by hand",
        with_env("8Gi", {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/x"}),
        OF_DRIVER,
    ),
    *(
        closed(f"B11 {key}", creating("8Gi", annotations={key: MOUNT}), "ReservedName: ")
        for key in OF_SIDECAR
    ),
    *(
        closed(
            f"B11 {key}, later",
            changing("8Gi", {"metadata": {"annotations": {key: MOUNT}}}),
            "ReservedName: ",
        )
        for key in OF_SIDECAR
    ),
    closed("B11 our volume", with_mount("8Gi", "vram-enforcer-run", "/x"), "ReservedName: "),
    closed("B11 the sidecar's image", changing_the_sidecar("", image="evil.example/x"), KEPT),
    closed("B11 the sidecar's amounts", changing_the_sidecar("/resize", resources=LESS), KEPT),
    *(
        harmless(f"B13 {what}, {namespace}", keeps_the_gate(namespace, **fields))
        for namespace in ("team-a", "sentry-a")
        for what, fields in OPENING.items()
    ),
    *(
        closed(
            f"B13 {what} in {field}, {namespace}",
            mounting_the_gate(namespace, field, **mount),
            "ReservedName: ",
        )
        for namespace in ("team-a", "sentry-a")
        for field in ("containers", "initContainers")
        for what, mount in (
            ("a writable mount", {"readOnly": False}),
            ("a mount of all", {"subPathExpr": "", "mountPath": "/x"}),
        )
    ),
    *(
        closed(
            f"B13 a debugging container with {what}, {namespace}",
            debugging("8Gi", namespace, volumeMounts=[{**WHOLE_GATE, **mount}]),
            "ReservedName: ",
        )
        for namespace in ("team-a", "sentry-a")
        for what, mount in (("the gate", {"readOnly": True}), ("a writable mount", {}))
    ),
    limit("B12 managed memory", "SECURITY.md", "`cudaMallocManaged` is never seen"),
    limit(
        "B12 between two measurements",
        "SECURITY.md",
        "a burst can take what is free",
    ),
    # C: containers that see a GPU but are not counted.
    closed("C1 a debugging container that shows GPUs", debugging(None, env=[ALL]), DEBUGGING),
    closed("C1 the same beside a share", debugging("8Gi", env=[ALL]), DEBUGGING),
    closed("C1 one of our name", debugging(None, name=SIDECAR), "ReservedName: "),
    *(
        closed(f"C2 {key}: {value}, {how}", creating(memory, annotations={key: value}), INJECTION)
        for how, memory in (("without a share", None), ("with a share", "64Mi"))
        for key, value in CDI
    ),
    *(
        closed(
            f"C2 {key}: {value}, later",
            changing("8Gi", {"metadata": {"annotations": {key: value}}}),
            INJECTED,
        )
        for key, value in CDI
    ),
    closed(
        "C2 all for a slice",
        with_container(
            resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}},
            spec={"annotations": {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}},
        ),
        INJECTION,
    ),
    *(
        closed(f"B11 {name}", with_env("8Gi", {"name": name, "value": "0"}), OF_DRIVER)
        for name in ("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH")
    ),
    limit(
        "C2 a plug-in that nobody knows",
        SECURITY_MD,
        "one that reads other keys gives devices past",
        creating(annotations={"devices.example.com/pod": "- path: /dev/nvidia0"}),
    ),
    limit(
        "C2 other whole GPUs than its own",
        SECURITY_MD,
        "Who has whole GPUs may name",
        with_container(
            resources={"limits": {"nvidia.com/gpu": "1"}},
            spec={"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=7"}},
        ),
    ),
    limit("C3 a claim excuses", SECURITY_MD, "without a claim; network cards excuse nobody"),
    *(
        harmless(f"C3 {name}", is_voided(containers=[a_container(**fields)]))
        for name, fields in UNNAMED.items()
    ),
    harmless("C3 a RuntimeClass alone", has_a_runtime_class),
    harmless("C3 a variable of NVIDIA's from a map", takes_nothing_from_a_map),
    limit(
        "C3 without fence.void",
        "deploy/nodes.md",
        "an image with `NVIDIA_VISIBLE_DEVICES=all` built in",
    ),
    *(closed(f"C4 {path}", with_host_path(path), HOST_PATH) for path in HOST_PATHS),
    limit(
        "C4 a path whose name says little",
        SECURITY_MD,
        "or put a symbolic link there that leads anywhere",
        with_host_path("/usr/local"),
    ),
    *(closed(f"C5 {name}", with_resource("8Gi", name), "WholeGPUAndShare: ") for name in WHOLE),
    closed("C5 a claim", claiming("8Gi"), "WholeGPUAndShare: "),
    *(
        closed(f"C5 {name} on a node of her choice", on_node(name), "NodeNamePreset: ")
        for name in (*WHOLE[1:], "tencent.com/vcuda-core", "amd.com/gpu")
    ),
    *(
        closed(f"C5 cards that she has not: {key}", on_node(GPU, "8", key, value), INJECTION)
        for key, value in (("cdi.k8s.io/x", "nvidia.com/gpu=0"), TWO_CARDS)
    ),
    harmless("C5 a node that is to be shared", keeps_no_node),
    limit(
        "C5 a claim without a share",
        "deploy/take-the-plugin-off.md",
        "a DRA driver gives them away by resource claims",
        claiming(None),
    ),
    closed("C6 namespaces", exempting(""), EXEMPTED),
    closed("C6 namespaces/status", exempting("/status"), EXEMPTED),
    limit(
        "C6 names that are exempt",
        "policies/default.yaml",
        "strike out the patterns that your cluster does not need",
    ),
    limit(
        "C6 what a label buys without the fence",
        SECURITY_MD,
        "The namespace label `vramwarden.io/webhook: disabled`** without `fence.exemption`",
    ),
    *(
        closed(f"C7 NVIDIA_VISIBLE_DEVICES {how}", with_env(None, *entries), BY_HAND)
        for how, entries in NAMED.items()
    ),
    *(
        closed(f"C7 a mount, {how}", with_mount(memory, "gpus", DEVICES), BY_HAND)
        for how, memory in (("without a share", None), ("with a share", "64Mi"))
    ),
    limit(
        "C7 privileged without a share",
        SECURITY_MD,
        "**Privileged pods that ask for no VRAM**",
        with_security(None, privileged=True),
    ),
    limit(
        "C7 the node's PIDs without a share",
        SECURITY_MD,
        "host PIDs or capabilities, are Pod Security's business",
        creating(hostPID=True),
    ),
    closed("C7 Windows", creating("8Gi", os={"name": "windows"}), "UnsupportedOS: "),
    closed("C7 a node of her choice", creating("8Gi", nodeName=NODE), "NodeNamePreset: "),
    closed("C7 a mirror's annotation", creating("8GB", annotations=MIRROR), "InvalidQuantity: "),
    closed("C7 an amount of 0", with_resource(None, VRAM, "0"), "InvalidQuantity: "),
    harmless("C7 generateName", is_translated(generateName="x-")),
    harmless("C7 gates", is_translated(schedulingGates=[{"name": "a/b"}])),
    limit(
        "C8 labels that choose a rule",
        "policies/README.md",
        "`podLabels` are written by the author of the pod",
    ),
    # D and E: marks, bindings, GPUs of other pods.
    *(closed(f"D0 {what}", changing("8Gi", change), why) for what, change, why in CHANGES),
    *(
        harmless(f"D0 its GPU by {part}", stores_nothing(part))
        for part in ("/resize", "/ephemeralcontainers")
    ),
    closed("D0 its GPU by its status", writing_status(""), "cannot patch resource"),
    closed(
        "D0 a demand that comes later",
        changing(None, annotations(**{"gpu-memory": "8Gi"})),
        FIXED,
    ),
    closed("D0 marks without a demand", creating(**FORGED), "ReservedName: "),
    closed("D0 a binding of her own", binding_herself, "cannot create resource"),
    closed("D1 a binding past the API server", posting_a_binding, "404"),
    limit(
        "D1 reviews past the API server",
        "deploy/values.md",
        "Who reaches it can send reviews of pods, which cost time",
    ),
    harmless("D2 marks in a Binding", binding_brings_marks),
    closed("D3 its GPU by pods/status", writing_status("pods/status"), MARKED),
    closed(
        "D3 its gate by pods/status",
        writing_status("pods/status", gpu_memory_fraction="0.5"),
        MARKED,
    ),
    limit(
        "D4 priority",
        SECURITY_MD,
        "a ResourceQuota by priority class holds that",
        creating("8Gi", priorityClassName="system-node-critical"),
    ),
    harmless("D5 dry runs", a_dry_run_reserves_nothing),
    harmless("E1 pods that nobody judged", poison_takes_nothing),
    limit(
        "E2 forged content while the webhook is gone",
        "deploy/fence.md",
        "it checks that a pod was translated, not how well",
    ),
]
VECTORS = {
    "B1": "stop the sidecar, blind it, forge its heartbeat",
    "B2": "exec and attach into it",
    "B3": "debugging containers",
    "B4": "supervisors that start processes anew",
    "B5": "memory of a process that is over",
    "B6": "limits as small as the sidecar's own",
    "B7": "a sidecar brought along",
    "B8": "capabilities",
    "B9": "hundreds of processes",
    "B10": "namespaces and numbers",
    "B11": "what is ours in the pod",
    "B12": "what no sidecar sees",
    "B13": "the gate, open before there is a GPU",
    "C1": "debugging containers that show GPUs",
    "C2": "annotations by which runtimes inject devices",
    "C3": "variables that nobody names",
    "C4": "paths of the node",
    "C5": "amounts that stand for GPUs",
    "C6": "namespaces that are left alone",
    "C7": "by hand, and by other doors",
    "C8": "labels that choose the rule",
    "D0": "marks of a pod",
    "D1": "bindings past the API server",
    "D2": "a Binding's own metadata",
    "D3": "the status of pods",
    "D4": "priority",
    "D5": "dry runs",
    "E1": "pods that nobody judged",
    "E2": "while the webhook is gone",
}


def among(chosen: list[Row]) -> Any:
    return pytest.mark.parametrize("row", chosen, ids=[row.vector for row in chosen])


DENIED = [row for row in TABLE if row.why]
ALLOWED = [row for row in TABLE if row.tries and not row.why]
WRITTEN = [row for row in TABLE if row.path]


@among(DENIED)
def test_what_a_tenant_tries_is_denied(mallory, row):
    with pytest.raises(ApiError) as denied:
        row.tries(mallory)
    assert re.search(row.why, denied.value.message)


@among(ALLOWED)
def test_what_she_is_allowed_gains_nothing_or_is_said_to_be_a_limit(mallory, row):
    row.tries(mallory)


@among(WRITTEN)
def test_what_is_a_limit_is_said_and_what_takes_processes_is_tested(row):
    text = re.sub(r"\s+(# )?", " ", (ROOT / row.path).read_text())
    assert row.says in text


HONEST = {
    "a mesh's init container": with_capability("NET_ADMIN"),
    "RDMA": with_capability("IPC_LOCK"),
    "a packet socket": with_capability("NET_RAW"),
    "what runtimes give all": with_capability("CHOWN"),
    "a cache of models": with_host_path("/mnt/models"),
    "shared memory": with_host_path("/dev/./shm"),
    "huge pages": with_host_path("/dev/hugepages"),
    "the node's time zone": with_host_path("/etc/localtime"),
    "the node's network": creating("8Gi", hostNetwork=True),
    "a debugging container": debugging("8Gi", securityContext={"runAsUser": 1000}),
    "no GPU by hand": with_env(None, VOID),
}


@pytest.mark.parametrize("tries", HONEST.values(), ids=HONEST)
def test_what_honest_pods_do_is_allowed(mallory, tries):
    tries(mallory)


def test_every_way_has_a_row_and_every_row_holds_something():
    assert {row.vector.split()[0] for row in TABLE} == set(VECTORS)
    assert len({row.vector for row in TABLE}) == len(TABLE)
    assert len(DENIED) + len(ALLOWED) + len([row for row in WRITTEN if not row.tries]) == len(TABLE)
