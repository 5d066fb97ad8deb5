"""Each alert of the chart fires on a real node for its actual cause, and ends.

Prometheus scrapes the webhook, the sentry, the API server and kube-state-metrics, and evaluates the
chart's own rules with every duration divided by `FASTER`; thresholds in seconds are unchanged.

Only tests/chart/test_alerts.py covers Fails and PatchWrong, which need a bug, CertificateExpires
and CAExpires, since replicas renew certificates, and PoliciesDiffer.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.e2e.agent import DAEMON_SET
from tests.e2e.cluster import SYSTEM
from tests.e2e.conftest import needs
from tests.e2e.nvidia_driver import UNLOADED
from tests.e2e.nvidia_runtime import UUIDS
from tests.e2e.pods import GIB, MIB, container, holding, pod, statuses
from tests.e2e.sentry import NAMESPACE
from tests.e2e.test_08_outage import GATE, MERGE, WEBHOOK, gpu_of, remove_gate, scale
from tests.e2e.test_10_attacks import ATTACKS, STOPS
from tests.support import charts, other_programs
from tests.support.control_planes import ApiError, wait_until

FASTER = 100
PORTS = {"prometheus": 19090, "kube-state-metrics": 19091, "telemetry": 19092}
PATCH = "application/json-patch+json"
CONFIG_MAP = f"/api/v1/namespaces/{SYSTEM}/configmaps/vramwarden-policies"
CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/vramwarden-webhook"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-vramwarden"
LIMITER = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/vramwarden-limiter"
ARGS = "/spec/template/spec/containers/0/args"
SCRAPED = {
    "webhook": ("vramwarden-webhook", SYSTEM, 8080),
    "sentry": (f"{NAMESPACE}/vramwarden-sentry", NAMESPACE, 8081),
}
"""Job, namespace and port, keyed by component."""
SECONDS = {"m": 60, "h": 3600}
EVERY_GPU = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: every-gpu}
spec:
  rules:
  - name: every-gpu
    match: {namespaceLabels: {gpus: every}}
    placement: None
"""
LATE = ("late-1", "late-2", "late-3")
PLATEAU = "plateau"
PODS = {
    "idle": ("8Gi", f"hold {64 * MIB}; wait_for more; hold {2 * GIB}; forever"),
    "wide": ("60Gi", f"hold {10 * GIB}; forever"),
    "attacker": ("2Gi", None),
    PLATEAU: ("4Gi", f"hold {4 * GIB // 100 * 97}; forever"),
    "near": (
        "4Gi",
        f"""n={4 * GIB // 100 * 96}
        until [ -e /scene/full ]; do hold $n; n=$((n + {MIB // 2})); sleep 1; done; forever""",
    ),
}
"""Amount and program of each pod; None for the pod that stops its sidecar."""


class Row(NamedTuple):
    """An action and the alerts that it causes."""

    alerts: str
    cause: Callable[[Story], object] = lambda _: None
    end: Callable[[Story], object] = lambda _: None
    meanwhile: Callable[[Story], object] = lambda _: None
    """Action repeated until the alerts fire."""


class Story:
    """A team on the node, and the state of its alerts in Prometheus."""

    def __init__(self, node: Any, system: Any, make_team: Any, url: str, folder: Path) -> None:
        self.node, self.system, self.api = node, system, node.api
        self.team, self.others = make_team(), make_team(gpus="every")
        self._url, self._folder = url, folder
        self.kept: dict[str, Any] = {}

    def discover(self) -> None:
        """Write pods to a file, since some builds of Prometheus cannot query API servers."""
        for component, (_, namespace, port) in SCRAPED.items():
            labels = {"labelSelector": f"app.kubernetes.io/component={component}"}
            found = self.api.list(f"/api/v1/namespaces/{namespace}/pods", **labels)
            targets = [
                {
                    "targets": [f"{item['status']['podIP']}:{port}"],
                    "labels": {"namespace": namespace, "pod": item["metadata"]["name"]},
                }
                for item in found
                if item["status"].get("podIP")
            ]
            path = self._folder / f"{component}.json"
            path.with_suffix(".new").write_text(json.dumps(targets))
            path.with_suffix(".new").rename(path)

    def alerts(self) -> list[dict[str, Any]]:
        """Return the pending and firing alerts."""
        return self._get("alerts")["alerts"]

    def ever_fired(self, alert: str, pod: str) -> bool:
        """Return True if an alert about a pod has fired before."""
        query = f'ALERTS{{alertname="{alert}",pod="{pod}",alertstate="firing"}}[1h]'
        return bool(self._get(f"query?query={urllib.parse.quote(query)}")["result"])

    def firing(self) -> set[str]:
        """Return the firing alerts, except those about the pod with a plateau."""
        return {
            alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"
        }

    def delete_pods(self) -> None:
        """Delete the pods so that later stories can run."""
        for team in (self.team, self.others):
            for found in team.pods():
                team.delete_pod(found["metadata"]["name"])

    def is_ungated(self, manifest: dict[str, Any]) -> bool:
        """Return True if a pod would not wait for a GPU."""
        volumes = self.others.create(manifest, dry_run=True)["spec"].get("volumes", ())
        return all(volume["name"] != "vram-gate" for volume in volumes)

    def patch(self, path: str, change: Any, kind: str = MERGE) -> Any:
        return self.api.request("PATCH", path, change, content_type=kind)

    def send(self, signal: str, team: Any, name: str, which: str) -> None:
        """Send a signal to the first process of a container."""
        pid, _ = self.node.process_of(statuses(team.pod(name))[which]["containerID"])
        self.node.run("kill", f"-{signal}", str(pid))

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{what}", timeout=10) as answer:
            return json.load(answer)["data"]


def faster(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules with all durations divided by `FASTER`."""

    def divided(found: re.Match[str]) -> str:
        return f"{int(found[1]) * SECONDS[found[2]] * 1000 // FASTER}ms"

    for rule in (rule for group in groups for rule in group["rules"]):
        for key in {"expr", "for"} & rule.keys():
            rule[key] = re.sub(r"\b(\d+)([mh])\b", divided, rule[key])
    return groups


def scraping(node: Any, folder: Path) -> dict[str, Any]:
    """Return the configuration of Prometheus; jobs are named as by the Prometheus operator."""
    pods = [
        {
            "job_name": job,
            "honor_labels": component == "sentry",
            "file_sd_configs": [{"files": [str(folder / f"{component}.json")]}],
        }
        for component, (job, _, _) in SCRAPED.items()
    ]
    tls = {"insecure_skip_verify": True}
    tls |= {
        f"{kind}_file": str(node.state / f"admin.{end}")
        for kind, end in (("cert", "crt"), ("key", "key"))
    }
    ours = {
        "action": "keep",
        "source_labels": ["__name__"],
        "regex": "apiserver_admission_webhook_.*",
    }
    server = {
        "job_name": "apiserver",
        "scheme": "https",
        "tls_config": tls,
        "static_configs": [{"targets": [f"{node.address}:443"]}],
        "metric_relabel_configs": [ours],
    }
    states = {
        "job_name": "kube-state-metrics",
        "honor_labels": True,
        "static_configs": [{"targets": [f"{node.address}:{PORTS['kube-state-metrics']}"]}],
    }
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [*pods, server, states],
    }


@pytest.fixture(scope="module")
def story(gpu_node, sentry, release, values, system, make_team, tmp_path_factory):
    """Run Prometheus, which scrapes the node and the pods of the rows."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus, e.g. of Debian's package of that name")
    needs("KUBE_STATE_METRICS")
    files = {"05-every-gpu.yaml": EVERY_GPU}
    release.install(values | {"limiter": {"enabled": True}, "policies": {"files": files}})
    folder = tmp_path_factory.mktemp("prometheus")
    helm = charts.Helm(tmp_path_factory.mktemp("helm"))
    rules = charts.one(helm.render({"prometheusRule": {"enabled": True}}), "PrometheusRule")
    groups = faster(rules["spec"]["groups"])
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(scraping(gpu_node, folder)))
    address = f"{gpu_node.address}:{PORTS['prometheus']}"
    with contextlib.ExitStack() as ending:
        ending.enter_context(
            gpu_node.running(
                other_programs.find("KUBE_STATE_METRICS", "kube-state-metrics"),
                f"--kubeconfig={gpu_node.kubeconfig}",
                "--resources=daemonsets,nodes,pods",
                *(f"--{kind}host={gpu_node.address}" for kind in ("", "telemetry-")),
                f"--port={PORTS['kube-state-metrics']}",
                f"--telemetry-port={PORTS['telemetry']}",
            )
        )
        ending.enter_context(
            gpu_node.running(
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            )
        )
        found = Story(gpu_node, system, make_team, f"http://{address}", folder)
        ending.callback(release.install, values)
        ending.callback(found.delete_pods)
        found.discover()
        begin(found)
        yield found


def begin(story: Story) -> None:
    """Create the pods, including those needed during the outage."""
    for name, (amount, script) in PODS.items():
        story.team.create(pod(name, amount, holding(script) if script else ATTACKS))
    for name in LATE:
        story.team.create(pod(name, "42Gi", holding("forever"), schedulingGates=GATE))
    for name in PODS:
        story.team.wait_ready(name)


def shows_itself_gpus(script: str) -> dict[str, Any]:
    """Return a pod without VRAM whose environment variable exposes all GPUs."""
    shows = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    return pod("intruder", None, [], containers=[container(holding(script), **shows)])


def oversubscribe(story: Story) -> None:
    """Create a pod that counts on each GPU, including the nearly full one."""
    story.others.wait("the rule in force", lambda: story.is_ungated(pod("every", "30Gi", ["true"])))
    story.others.create(pod("every", "30Gi", holding("forever")))


def attack(story: Story) -> None:
    """Stop the sidecar from within and exceed the cap."""
    assert story.team.run("attacker", "sh", "-c", STOPS).strip()
    story.team.run("attacker", "touch", "/scene/attack")


def set_health(story: Story, recovery: str) -> None:
    """Make the driver report a recovery action for a GPU, or none."""
    gpu = f"gpu {UUIDS[1]}"
    story.node.driver.rewrite(f"^{gpu}(?: recovery=1)?", gpu + recovery)


def set_args(story: Story, daemon_set: str, *args: str) -> None:
    """Start a DaemonSet's program with other arguments, or with its original ones."""
    main, *_ = story.api.request("GET", daemon_set)["spec"]["template"]["spec"]["containers"]
    before = story.kept.setdefault(daemon_set, main["args"])
    change = {"op": "replace", "path": ARGS, "value": list(args) or before}
    story.patch(daemon_set, [change], PATCH)


def bind_late(story: Story) -> None:
    """Bind pods without replicas. One of them fits on no GPU."""
    story.team.delete_pod("wide")
    scale(story.system, 0)
    for name in LATE:
        remove_gate(story.team, name)


def ask(story: Story) -> None:
    """Create a pod that requests VRAM, and one that exposes GPUs to itself."""
    for made in (pod("asks", "1Gi", ["true"]), shows_itself_gpus("true")):
        with contextlib.suppress(ApiError):
            story.team.create(made, dry_run=True)


def waiting(story: Story) -> str:
    """Return the bound pod without a GPU."""
    (name,) = (name for name in LATE if not gpu_of(story.team, name))
    return name


def set_policies(story: Story, files: dict[str, str] | None) -> None:
    """Replace the policy files; None restores them."""
    now = story.api.request("GET", CONFIG_MAP).get("data", {})
    before = story.kept.setdefault("policies", now)
    story.patch(CONFIG_MAP, {"data": dict.fromkeys(now) | (before if files is None else files)})


def take_rights(story: Story) -> None:
    """Remove permissions of the webhook, start a replica without them, and empty a caBundle."""
    story.kept["rules"] = rules = story.api.request("GET", CLUSTER_ROLE)["rules"]
    lost = {"pods", "mutatingwebhookconfigurations"}
    kept = [rule for rule in rules if not lost & set(rule["resources"])]
    story.patch(CLUSTER_ROLE, {"rules": kept})
    path = "/webhooks/0/clientConfig/caBundle"
    story.patch(CONFIGURATION, [{"op": "remove", "path": path}], PATCH)
    story.system.delete_pod(story.system.pods(**WEBHOOK)[0]["metadata"]["name"])


def slow_down(story: Story) -> None:
    """Limit each running replica to 1.5 % of a CPU."""
    for found in story.system.pods(**WEBHOOK):
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{found['metadata']['name']}/resize"
        name = found["spec"]["containers"][0]["name"]
        limits = {"resources": {"requests": {"cpu": "10m"}, "limits": {"cpu": "15m"}}}
        change = {"spec": {"containers": [{"name": name, **limits}]}}
        story.patch(path, change, "application/strategic-merge-patch+json")


def replace_replicas(story: Story) -> None:
    for found in story.system.pods(**WEBHOOK):
        story.system.delete_pod(found["metadata"]["name"])


def unload_driver(story: Story) -> None:
    """Make NVML calls by agent and sentry fail."""
    story.node.driver.rewrite("^live figures$", "\\n".join(["live figures", *UNLOADED]))


def load_driver(story: Story) -> None:
    """Make NVML calls succeed again."""
    story.node.driver.rewrite("^fail .*\n", "")


def the_sentry(story: Story) -> tuple[Any, str]:
    """Return a team for the sentry's namespace, and the name of the sentry's pod."""
    own = type(story.team)(story.node, NAMESPACE)
    labels = {"labelSelector": "app.kubernetes.io/component=sentry"}
    return own, own.pods(**labels)[0]["metadata"]["name"]


STAGES = {
    "pods and GPUs": (
        Row("GPUUnhealthy", lambda s: set_health(s, " recovery=1"), lambda s: set_health(s, "")),
        Row(
            "UnmanagedMemory",
            lambda s: s.team.create(shows_itself_gpus(f"hold {3 * GIB}; forever")),
            lambda s: s.team.delete_pod("intruder"),
        ),
        Row("Overpromised", oversubscribe, lambda s: s.others.delete_pod("every")),
        Row("SentryStops PodStopped", attack),
        Row("PodNearCap", end=lambda s: s.team.run("near", "touch", "/scene/full")),
        Row(
            "Pending",
            lambda s: s.team.create(pod("pending", "300Gi", ["true"])),
            lambda s: s.team.delete_pod("pending"),
        ),
        Row(
            "LimiterDown",
            lambda s: set_args(s, LIMITER, "limiter", "--no-such-option"),
            lambda s: set_args(s, LIMITER),
        ),
    ),
    "no replica": (Row("Unreachable Bypassed", bind_late, lambda s: scale(s.system, 2), ask),),
    "bound without a GPU": (
        Row(
            "BoundWithoutGPU",
            end=lambda s: s.team.delete_pod(next(name for name in LATE if name != waiting(s))),
        ),
        Row("IdlePromise", end=lambda s: s.team.run("idle", "touch", "/scene/more")),
    ),
    "an invalid policy": (
        Row("", unload_driver),
        Row(
            "PolicyInvalid",
            lambda s: set_policies(s, {"a.yaml": "kind: nothing"}),
            lambda s: set_policies(s, None),
        ),
    ),
    "no policy": (
        Row("PolicyEmpty", lambda s: set_policies(s, {}), lambda s: set_policies(s, None)),
    ),
    "fewer rights": (
        Row(
            "PlacementWatchFailed CABundleWrong",
            take_rights,
            lambda s: s.patch(CLUSTER_ROLE, {"rules": s.kept["rules"]}),
        ),
    ),
    "little CPU": (Row("Slow", slow_down, replace_replicas, ask),),
    "a driver that does not answer": (Row("SentryStale SentryAbsent SentryDown", end=load_driver),),
    "an agent that crashes, and a sentry that hangs": (
        Row(
            "AgentDown",
            lambda s: set_args(s, DAEMON_SET, "agent", "--no-such-option"),
            lambda s: set_args(s, DAEMON_SET),
        ),
        Row(
            "SentryDown",
            lambda s: s.send("STOP", *the_sentry(s), "sentry"),
            lambda s: s.send("CONT", *the_sentry(s), "sentry"),
        ),
    ),
}
"""Actions by stage, in order. An alert without an action here has an earlier cause."""


@pytest.mark.parametrize("stage", STAGES)
def test_alerts_fire_and_end(story, stage):
    rows = STAGES[stage]
    names = {f"Vramwarden{name}" for row in rows for name in row.alerts.split()}
    try:
        for row in rows:
            row.cause(story)
        fired = followed(story, names, rows, is_firing=True)
    finally:
        for row in rows:
            row.end(story)
    ended = followed(story, names, rows, is_firing=False)
    for name in sorted(names):
        print(f"{name}: fires after {fired[name]:.0f} s, ends after {ended[name]:.0f} s")


def followed(story, names, rows, *, is_firing):
    """Wait until all alerts fire, or none does; return the seconds for each alert."""
    began, seen = time.monotonic(), {}

    def all_seen():
        story.discover()
        firing = story.firing()
        for row in rows if is_firing else ():
            row.meanwhile(story)
        for name in names - seen.keys():
            if (name in firing) == is_firing:
                seen[name] = time.monotonic() - began
        return names == seen.keys()

    try:
        wait_until("alerts", all_seen, timeout=300)
    except TimeoutError as error:
        error.add_note(f"{names - seen.keys()}; Prometheus has {json.dumps(story.alerts())}")
        raise
    return seen


def test_a_program_that_fills_its_cap_at_its_start_is_never_near_it(story):
    assert story.ever_fired("VramwardenPodNearCap", "near")
    assert not story.ever_fired("VramwardenPodNearCap", PLATEAU)
