"""The API server and Pod Security accept the rendered chart, with many values."""

from __future__ import annotations

import pytest

from deploy import release
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, a_namespace, hooks, one, pod_templates
from tests.support.page_commands import asked
from webhook import __version__

# Kinds of other operators, whose schemas are not available here.
OPERATORS = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "Certificate": "cert-manager.io/v1",
    "Issuer": "cert-manager.io/v1",
    "GrafanaDashboard": "grafana.integreatly.org/v1beta1",
}
DIGEST = f"sha256:{'0' * 64}"
TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoSchedule"}
MODES = {
    "self": {},
    "certManager": {},
    "certManager with an issuer": {"certManager": {"issuerRef": {"kind": "Issuer", "name": "i"}}},
    "existingSecret": {"existingSecret": {"name": "mine", "caBundle": "PEM"}},
}
ACCESS = ["Environment", "VolumeMounts", "Privileged", None]
SENTRY = "vramwarden-sentry"
FENCE = ("secondLine", "void", "enforcer", "exemption", "accounts")
REST = {
    "as shipped": {},
    "all off": {
        "fence": dict.fromkeys(FENCE, False),
        "networkPolicy": {"enabled": False},
        "policies": {"shipped": False},
        "exemptNamespaces": [],
        "priorityClassName": "",
        "webhook": {"replicas": 1},
        "agent": {"affinity": None, "tolerations": []},
        "sentry": {"enabled": False},
    },
    "a sentry that only looks, beside the webhook": {
        "sentry": {"act": False, "namespace": NAMESPACE},
        "agent": {"runtimeClassName": ""},
        "priorityClassName": "mine",
        "namespace": {"create": True},
    },
    "all on": {
        "image": {
            "repository": "localhost:5000/vramwarden",
            "digest": DIGEST,
            "pullPolicy": "Never",
        },
        "enforcer": {"repository": "localhost:5000/enforcer", "tag": "2"},
        "imagePullSecrets": [{"name": "pull"}],
        "host": "::",
        "policies": {"files": {"10-mine.yaml": "apiVersion: vramwarden.io/v1alpha1\n"}},
        "exemptNamespaces": ["a", "b-*", "*-c"],
        "webhook": {
            "failurePolicy": "Ignore",
            "hostNetwork": True,
            "port": 10443,
            "spread": "ScheduleAnyway",
            "nodeSelector": {"a": "b"},
            "tolerations": [TOLERATION],
            "affinity": {"podAntiAffinity": {}},
            "podLabels": {"a": "b"},
            "podAnnotations": {"sidecar.istio.io/inject": "false"},
            "configurationName": "zzz.last",
            "configurationAnnotations": {"a": "b"},
        },
        "agent": {
            "runtimeClassName": "nvidia",
            "startupTaint": "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden",
            "nodeSelector": {"a": "b"},
            "affinity": {"podAntiAffinity": {}},
            "tolerations": [TOLERATION],
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "LD_LIBRARY_PATH", "value": "/driver"}],
            "extraVolumes": [{"name": "driver", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "driver", "mountPath": "/driver"}],
        },
        "sentry": {
            "podLabels": {"a": "b"},
            "podAnnotations": {"a": "b"},
        },
        "limiter": {"dmem": True, "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"}},
        "networkPolicy": {"apiServerCIDRs": ["192.0.2.0/24", "2001:db8::/32"], "metricsFrom": []},
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "prometheus": {"labels": {"release": "prometheus"}},
        "grafana": {
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
            "operator": {"enabled": True},
        },
        "fence": dict.fromkeys(FENCE, True),
        "criticalPodsQuota": True,
        "namespace": {"create": True},
    },
}


def values_of(mode, access, rest):
    found = {key: dict(value) if isinstance(value, dict) else value for key, value in rest.items()}
    found["certificates"] = {"mode": mode.split()[0], **MODES[mode]}
    chosen = {"gpuAccess": access} if access else {"enabled": False}
    found["agent"] = {**found.get("agent", {}), **chosen}
    if "limiter" in found:
        found["limiter"]["enabled"] = access != "Privileged"
    return found


COMBINATIONS = [
    (mode, access, list(REST)[(at + number) % len(REST)])
    for at, mode in enumerate(MODES)
    for number, access in enumerate(ACCESS)
]
"""Pairs of values, each tested once."""


@pytest.fixture(scope="module")
def cluster(control_plane):
    """Create accounts and the RuntimeClass for the chart's pods."""
    api, accounts = control_plane.api, []
    for namespace, level in (
        (NAMESPACE, None),
        (SENTRY, None),
        ("at-restricted", "restricted"),
        ("at-privileged", "privileged"),
    ):
        labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
        api.apply(a_namespace(namespace, labels))
        for name in (
            "default",
            *(f"vramwarden-{part}" for part in ("webhook", "agent", "sentry", "limiter", "test")),
        ):
            metadata = {"name": name, "namespace": namespace}
            accounts.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
            api.apply(accounts[-1])
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    api.request("POST", path, {**runtime, "metadata": {"name": "nvidia"}})
    yield api
    api.request("DELETE", f"{path}/nvidia")
    for account in accounts:
        api.delete(account)


def path_of(thing):
    kind = thing["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    version = thing["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = thing["metadata"].get("namespace")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def try_out(api, thing):
    """Apply an object as a dry run. The API server rejects unknown fields."""
    query = {"dryRun": "All", "fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
    path = f"{path_of(thing)}/{thing['metadata']['name']}"
    return api.request("PATCH", path, thing, content_type="application/apply-patch+yaml", **query)


@pytest.mark.parametrize(
    ("mode", "access", "rest"),
    COMBINATIONS,
    ids=["-".join(map(str, combination)) for combination in COMBINATIONS],
)
def test_the_api_server_accepts_what_is_rendered(cluster, live_helm, mode, access, rest):
    objects = live_helm.render(values_of(mode, access, REST[rest]))
    for thing in objects:
        if thing["kind"] in OPERATORS:
            assert thing["apiVersion"] == OPERATORS[thing["kind"]]
        else:
            try_out(cluster, thing)
            assert not cluster.warnings, (thing["kind"], cluster.warnings)
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(names)) == len(names)
    for thing in objects:
        assert thing["metadata"]["labels"]["app.kubernetes.io/name"] == "vramwarden"
        if hooks(thing) == "" and thing["kind"] != "Namespace":
            namespaced = thing["metadata"].get("namespace")
            # Events about nodes, which have no namespace, are in this namespace.
            of_events = thing["metadata"]["name"] == "vramwarden-agent-events"
            part = thing["metadata"]["labels"]["app.kubernetes.io/component"]
            own = (SENTRY,) * (part in ("sentry", "limiter"))
            assert namespaced in (("default",) if of_events else (None, NAMESPACE, *own))


def tried_at(api, level, pod):
    metadata = {key: pod["metadata"].get(key, {}) for key in ("labels", "annotations")}
    metadata |= {"name": "tried", "namespace": f"at-{level}"}
    return denial(lambda: api.create({**pod, "metadata": metadata}, dry_run=True))


@pytest.mark.parametrize("mode", MODES)
def test_all_pods_meet_pod_security_restricted(cluster, live_helm, mode):
    pods = pod_templates(live_helm.render(values_of(mode, "Environment", {})))
    assert len(pods) == 5
    for pod in pods:
        if pod["metadata"]["name"] != SENTRY:
            assert tried_at(cluster, "restricted", pod) == ""


@pytest.mark.parametrize("act", [True, False])
def test_the_sentry_has_a_namespace_that_allows_what_it_needs_and_no_other_has(
    cluster, live_helm, act
):
    objects = live_helm.render({"sentry": {"act": act}, "namespace": {"create": True}})
    (sentry,) = [pod for pod in pod_templates(objects) if pod["metadata"]["name"] == SENTRY]
    asks_for = {"host namespaces (hostPID=true)"}
    if act:
        asks_for |= {'must not include "KILL"', "runAsUser=0"}
    why = tried_at(cluster, "restricted", sentry)
    assert "violates PodSecurity" in why
    assert {said for said in asks_for if said in why} == asks_for
    assert tried_at(cluster, "privileged", sentry) == ""
    key = "pod-security.kubernetes.io/enforce"
    levels = {
        thing["metadata"]["name"]: thing["metadata"]["labels"][key]
        for thing in objects
        if thing["kind"] == "Namespace"
    }
    assert levels == {NAMESPACE: "restricted", sentry["metadata"]["namespace"]: "privileged"}


@pytest.mark.parametrize("access", ["VolumeMounts", "Privileged"])
def test_hardened_toolkits_cost_the_level_and_the_namespace_says_so(cluster, live_helm, access):
    values = values_of("self", access, {"namespace": {"create": True}})
    objects = live_helm.render(values)
    (agent,) = [pod for pod in pod_templates(objects) if pod["metadata"]["name"].endswith("agent")]
    assert "violates PodSecurity" in tried_at(cluster, "restricted", agent)
    assert tried_at(cluster, "privileged", agent) == ""
    namespace = one(objects, "Namespace", NAMESPACE)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def asked_for(verb):
    """Return the pages' only command that uses install.yaml with this verb."""
    (line,) = asked(rf"sed .+ install\.yaml \| kubectl {verb} -f -$")
    return line


@pytest.fixture
def kubectl(control_plane, tmp_path, monkeypatch):
    """Run a command of the pages in a folder with the output of `make install.yaml`."""
    monkeypatch.delenv("PREFIX", raising=False)
    assert release.main(["--only-install-file", str(tmp_path / "install.yaml")]) == 0
    return lambda command: control_plane.shell(
        f"cd {tmp_path}; {command}", REGISTRY="registry.example/team"
    )


def test_the_file_for_people_without_helm_can_be_applied_and_deleted(control_plane, kubectl):
    applied = kubectl(asked_for("apply"))
    assert applied.returncode == 0, applied.stderr
    warnings = [line for line in applied.stderr.splitlines() if "last-applied" not in line]
    assert not warnings
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/vramwarden-webhook"
    (container,) = control_plane.api.request("GET", path)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/team/vramwarden/vramwarden:{__version__}"
    sidecar = f"registry.example/team/vramwarden/enforcer:{__version__}"
    assert f"--enforcer-image={sidecar}" in container["args"]
    deleted = kubectl(asked_for("delete").replace("delete", "delete --dry-run=server"))
    assert deleted.returncode == 0, deleted.stderr
    assert deleted.stdout.startswith(f'namespace "{NAMESPACE}" deleted')
    assert len(deleted.stdout.splitlines()) == len(applied.stdout.splitlines())
    # The namespace is kept, since no controller runs here that empties it.
    rest = "sed '/^*/d; /^kind: Namespace/,/^---/d' install.yaml | kubectl delete -f -"
    assert kubectl(rest).returncode == 0
    assert denial(lambda: control_plane.api.request("GET", path)).endswith("not found")


def test_without_names_for_the_images_nothing_of_it_is_applied(kubectl, tmp_path):
    listed = "get -A -l app.kubernetes.io/name=vramwarden -o name"
    kinds = "all,configmaps,mutatingwebhookconfigurations,validatingadmissionpolicies,clusterroles"
    before = kubectl(f"kubectl {listed} {kinds}").stdout
    applied = kubectl("kubectl apply -f install.yaml")
    assert applied.returncode == 1
    said = "unknown anchor 'name-both-images-first_as-deploy-install-md-says' referenced"
    assert (applied.stdout, applied.stderr.count("\n")) == ("", 1)
    assert said in applied.stderr
    assert kubectl(f"kubectl {listed} {kinds}").stdout == before
