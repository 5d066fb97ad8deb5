"""Cost of a release for pods that do not use it, compared with no release.

Each side is an API server with its own etcd. The sides alternate within a round, and a figure is
compared only with the figure for no release in the same round.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from tests.bench import peers, settings
from tests.bench.baseline import OURS, Side, sides
from tests.bench.creations import NONE, target
from tests.bench.figures import against, cpu_s, times
from tests.bench.load import NUMBER, Target, load
from tests.bench.servers import on_core, replica, temporary_folder, wait_until_ready
from tests.chart.admission_policies import BINDING, PLURALS, POLICY, Line
from tests.chart.fenced import MERGE, STRATEGIC
from tests.cluster.attacked import called_here
from tests.support import charts
from tests.support.api_client import account_kubeconfig
from tests.support.control_planes import MISSING, ControlPlane, available
from tests.support.server_process import Server
from tests.support.webhook_configurations import apply

NAMESPACE, NODE = "team-a", "n1"
NAME = f"web-{NUMBER.decode()}"
ROUNDS, PODS = settings.ROUNDS * 8, settings.PODS // 4
"""Numbers of rounds and pods; rounds are short, so that a busy machine affects all sides
equally."""
WEBHOOKS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
HALVES = {"ours, webhooks": PLURALS.keys(), "ours, policies": WEBHOOKS,
          "ours, neither": {*PLURALS, *WEBHOOKS}}  # fmt: skip
"""Parts of a release to remove, keyed by side, with BENCH_ATTRIBUTE."""
REVIEWS = re.compile(r"^vramwarden_admission_duration_seconds_count\S* (\S+)", re.MULTILINE)
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True,
         "uid": "00000000-0000-4000-8000-000000000000", "blockOwnerDeletion": True}  # fmt: skip
LABELS = {"app.kubernetes.io/name": "web", "app.kubernetes.io/part-of": "shop", "tier": "front"}
CONTAINER = {
    "name": "main", "image": "registry.example/team/web:1.2.3", "ports": [{"containerPort": 8080}],
    "env": [{"name": name, "value": name.lower()} for name in ("LEVEL", "PORT", "MODE", "ZONE")],
    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
    "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("config", "cache")],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}  # fmt: skip
VOLUMES = [{"name": "config", "configMap": {"name": "web"}}, {"name": "cache", "emptyDir": {}}]
POD = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": NAME, "labels": LABELS, "ownerReferences": [OWNER]},
    "spec": {"containers": [CONTAINER], "volumes": VOLUMES},
}  # fmt: skip
STATUS = {
    "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.0.0.2",
    "conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
                   for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
    "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "imageID": "sha256:1",
                           "image": CONTAINER["image"], "containerID": "containerd://1",
                           "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
}  # fmt: skip
BOUND = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": NAME},
         "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}  # fmt: skip
REQUESTS = {
    "create": ("POST", "", POD, "application/json"),
    "label": ("PATCH", f"/{NAME}", {"metadata": {"labels": {"tier": "back"}}}, MERGE),
    "bind": ("POST", f"/{NAME}/binding", BOUND, "application/json"),
    "status": ("PATCH", f"/{NAME}/status", {"status": STATUS}, STRATEGIC),
    "delete": ("DELETE", f"/{NAME}", {"gracePeriodSeconds": 0}, "application/json"),
}
"""Requests about each pod, in this order; a kubelet sends the status."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """API server of one side."""

    label: str
    pid: int
    server: Server | None
    targets: dict[str, Target]

    def reviews(self) -> float:
        """Return the number of reviews that vramwarden's server has answered."""
        text = self.server.get("/metrics")[1] if self.server else ""
        return sum(map(float, REVIEWS.findall(text)))


def bench_strangers():
    if not (available() and charts.available()):
        print(f"strangers: skipped: {MISSING}; {charts.MISSING}")
        return
    with temporary_folder() as root, ExitStack() as stack:
        scenes = [scene(NONE, prepared(stack))]
        for label, side, removed in releases():
            folder, plane = root / str(len(scenes)), prepared(stack)
            folder.mkdir()
            server = release(stack, plane, folder, side, removed)
            scenes.append(scene(label, plane, server))
        for peer in peers.named():
            plane = prepared(stack)
            server = stack.enter_context(peers.running(peer, root / peer.label, plane))
            for configuration in peers.configurations(peer, server):
                apply(plane.api, configuration | {"metadata": {"name": peer.label.lower()}})
            scenes.append(scene(peer.label, plane))
        show(scenes, measured(scenes))


def releases():
    """Return the sides: label, checkout for chart and server, and removed kinds."""
    found = [(side.label, side, set()) for side in sides()]
    if settings.CHART:
        root = Path(settings.CHART).resolve().parents[2]
        found.append(("BENCH_CHART", Side("other", OURS.python, root), set()))
    if settings.ATTRIBUTE:
        found += [(label, OURS, kinds) for label, kinds in HALVES.items()]
    return found


def release(stack, plane: ControlPlane, folder, side, removed) -> Server:
    """Install the release of a side with the chart's defaults and webhooks on loopback."""
    helm = charts.Helm(folder, plane.kubeconfig)
    with mock.patch.object(charts, "CHART", side.root / "deploy/chart/vramwarden"):
        objects = helm.render()
        charts.Release(helm).install()
    account, own = "vramwarden-webhook", folder / "kubeconfig"
    environment = {
        "KUBECONFIG": account_kubeconfig(
            plane.api, plane.kubeconfig, charts.NAMESPACE, account, own
        ),
        "VRAMWARDEN_PLACEMENT_NAMESPACE": charts.NAMESPACE,
    }
    process, *ports = stack.enter_context(replica(side, folder, **environment))
    wait_until_ready(side.label, process, ports[1])
    server = Server(process, *ports, folder / "certs", folder, folder / f"{side.label}.log")
    for configuration in called_here(objects, server):
        plane.api.delete(configuration)  # it has the address of a Service
        if configuration["kind"] not in removed:
            apply(plane.api, configuration)
    for thing in objects:
        if thing["kind"] in removed & PLURALS.keys():
            plane.api.delete(thing)
    wait_for_policies(plane.api)
    return server


def prepared(stack) -> ControlPlane:
    """Start an API server with a namespace for the pods."""
    plane = peers.control_plane(stack)
    plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plane.ensure_service_account(NAMESPACE)
    return plane


def wait_for_policies(api) -> None:
    """Wait until a policy created after all others takes effect, then delete it."""

    def create(mark):
        metadata = {"name": "probe", "namespace": NAMESPACE, "labels": {"probe": mark}}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, dry_run=True)

    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    constraints = {"resourceRules": [{**rule, "resources": ["configmaps"]}]}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "probe"}}
    policy = {"matchConstraints": constraints, "validations": []}
    binding = {"policyName": "probe", "validationActions": ["Deny"]}
    line = Line(api, "probe", create)
    line.use(
        [
            {**head, "kind": kind, "spec": spec}
            for kind, spec in ((POLICY, policy), (BINDING, binding))
        ]
    )
    line.remove()


def scene(label, plane, server=None) -> Scene:
    """Send the requests, each with the name of the next pod."""
    kubelet = plane._authority.issue_client(plane.state, f"system:node:{NODE}", "system:nodes")
    targets = {
        name: target(
            plane, NAMESPACE, body, path, method=method, content_type=kind,
            client_certificate=kubelet if name == "status" else plane._admin,
        )
        for name, (method, path, body, kind) in REQUESTS.items()
    }  # fmt: skip
    return Scene(label, plane._processes["kube-apiserver"].pid, server, targets)


def measured(scenes):
    """Return p50, mean and API server CPU time per request in ms, and reviews, by round."""
    figures = {}
    with on_core(-1):
        for number in range(ROUNDS):
            for name, side in itertools.product(REQUESTS, scenes[:: number % 2 * 2 - 1]):
                before_s, reviews = cpu_s(side.pid), side.reviews()
                run = load(side.targets[name], 1, requests=PODS)
                taken_s = (cpu_s(side.pid) - before_s) / run.answers
                latencies = run.latencies_s
                seconds = (statistics.median(latencies), statistics.mean(latencies), taken_s)
                reached = (side.reviews() - reviews) / run.answers
                figures.setdefault((name, side.label), []).append(
                    (*(each * 1e3 for each in seconds), reached)
                )
    return figures


def show(scenes, figures):
    print(
        f"requests about a plain pod, {ROUNDS} rounds of {PODS} pods, one client; reviews: of ours,"
        " per request\nx: this / no release; of p50 and mean the median of the rounds, of the API "
        "server's CPU\nthat of all rounds together, since a round has only a few ticks of 10 ms"
    )
    heads = "".join(f"{head:>9}{'x':>7}" for head in ("p50 ms", "mean ms", "API ms"))
    print(f"  {'':<8}{'':<16}{heads}{'reviews':>9}")
    for name, side in itertools.product(REQUESTS, scenes):
        none, own = (list(zip(*figures[name, label], strict=True)) for label in (NONE, side.label))
        cells = "".join(
            f"{statistics.median(own[kind]):9.2f}{against(own[kind], none[kind])}"
            for kind in (0, 1)
        )
        api_ms, reached = map(statistics.mean, own[2:])
        api = f"{api_ms:9.2f}{times(api_ms / statistics.mean(none[2])):>7}"
        print(f"  {name:<8}{side.label:<16}{cells}{api}{reached:9.2f}")
