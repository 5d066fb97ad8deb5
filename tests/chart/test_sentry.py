"""Sentry and limiter in the chart: permissions, namespace and access to GPUs."""

from __future__ import annotations

import pytest

from tests.chart.test_rendering import options
from tests.sentry.test_endpoints import SAMPLE_LIMIT
from tests.support.charts import CHART, NAMESPACE, binding_webhook, one, webhook
from tests.support.paths import ROOT
from webhook import names
from webhook.cli.enforcement import limiter_command, sentry_command
from webhook.limiter.settings import CGROUPS

SENTRY = "vramwarden-sentry"
ENFORCE = "pod-security.kubernetes.io/enforce"


def pod_of(objects, part="sentry"):
    return one(objects, "DaemonSet", f"vramwarden-{part}")["spec"]["template"]["spec"]


def container_of(objects, part="sentry"):
    (container,) = pod_of(objects, part)["containers"]
    return container


def kinds(objects, part="sentry"):
    """Return kind and namespace of a component's rendered objects."""
    return {
        (thing["kind"], thing["metadata"].get("namespace"))
        for thing in objects
        if thing["metadata"]["labels"].get("app.kubernetes.io/component") == part
    }


IN_ITS_NAMESPACE = {
    (kind, SENTRY) for kind in ("DaemonSet", "ServiceAccount", "NetworkPolicy", "PodMonitor")
}
OTHERS = {
    ("Namespace", None),
    ("Role", NAMESPACE),
    ("RoleBinding", NAMESPACE),
    ("ClusterRole", None),
    ("ClusterRoleBinding", None),
}
LIMITED = {"limiter": {"enabled": True}}
MONITORED = {"podMonitor": {"enabled": True}}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def test_it_is_there_with_all_it_needs_unless_switched_off(helm):
    assert kinds(helm.render(MONITORED)) == IN_ITS_NAMESPACE | OTHERS
    off = {"sentry": {"enabled": False}, **MONITORED}
    assert kinds(helm.render(off)) == set()
    assert SENTRY not in str(helm.render({**off, "policies": {"shipped": False}}))


@pytest.mark.parametrize("namespace", [SENTRY, NAMESPACE])
def test_the_limiter_is_beside_it_where_a_value_says_so_and_reads_lists_alone(helm, namespace):
    where = {"sentry": {"namespace": namespace}}
    assert kinds(helm.render(where), "limiter") == set()
    objects = helm.render({**where, **LIMITED})
    assert kinds(objects, "limiter") == {
        *((kind, namespace) for kind in ("DaemonSet", "ServiceAccount", "NetworkPolicy")),
        *((kind, NAMESPACE) for kind in ("Role", "RoleBinding")),
    }
    name = "vramwarden-limiter"
    (rule,) = one(objects, "Role", name)["rules"]
    assert rule == {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "watch"]}
    (subject,) = one(objects, "RoleBinding", name)["subjects"]
    assert (subject["name"], subject["namespace"]) == (name, namespace)
    policy = one(objects, "NetworkPolicy", name)["spec"]
    assert (policy["policyTypes"], "ingress" in policy) == (["Ingress"], False)


@pytest.mark.parametrize("dmem", [False, True])
def test_the_limiter_has_one_capability_and_writes_cgroups_for_dmem_alone(helm, dmem):
    objects = helm.render({"limiter": {"enabled": True, "dmem": dmem}})
    pod, container = pod_of(objects, "limiter"), container_of(objects, "limiter")
    assert not {"hostPID", "hostIPC", "hostNetwork", "hostUsers"} & pod.keys()
    assert pod["securityContext"] == {
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
    }
    assert not {"ports", "livenessProbe", "readinessProbe"} & container.keys()
    found = options(limiter_command, container)
    assert found["dmem"] is dmem
    assert (found["node"], found["namespace"]) == ("$(NODE_NAME)", NAMESPACE)
    assert {entry["name"] for entry in container["env"]} >= {"NODE_NAME", "POD_UID"}
    mounts = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]
    }
    assert mounts == {CGROUPS: not dmem, names.LIMITER_FOLDER: False}
    assert found["cgroups"] == CGROUPS
    assert found["folder"] == names.LIMITER_FOLDER
    hosts = [volume["hostPath"]["path"] for volume in pod["volumes"]]
    assert hosts == ["/sys/fs/cgroup", names.LIMITER_FOLDER]
    (seen,) = container_of(objects)["volumeMounts"]
    assert seen == {"name": "limiter", "mountPath": names.LIMITER_FOLDER, "readOnly": True}
    (volume,) = pod_of(objects)["volumes"]
    assert volume == pod["volumes"][1]


def test_where_no_driver_is_asked_there_is_none(helm):
    objects = helm.render({"agent": {"vram": "48Gi"}, **MONITORED})
    assert kinds(objects) == set()
    assert kinds(helm.render({"agent": {"enabled": False}, **MONITORED})) != set()


@pytest.mark.parametrize(
    ("act", "user", "capabilities"),
    [(True, {"runAsUser": 0}, {"drop": ["ALL"], "add": ["KILL"]}),
     (False, {"runAsNonRoot": True}, {"drop": ["ALL"]})],
)  # fmt: skip
def test_it_has_root_and_kill_where_it_acts_and_else_nothing(helm, act, user, capabilities):
    objects = helm.render({"sentry": {"act": act}})
    pod, container = pod_of(objects), container_of(objects)
    assert pod["hostPID"] is True
    assert not {"hostIPC", "hostNetwork", "volumes"} & pod.keys()
    assert pod["securityContext"] == {**user, "seccompProfile": {"type": "RuntimeDefault"}}
    profile = {"appArmorProfile": {"type": "Unconfined"}} if act else {}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
        **profile,
    }
    assert options(sentry_command, container)["act"] is act


@pytest.mark.parametrize("shown", [True, False])
def test_its_metrics_name_pods_unless_that_is_switched_off(helm, shown):
    objects = helm.render({"sentry": {"podMetrics": shown}})
    assert options(sentry_command, container_of(objects))["pod_metrics"] is shown


@pytest.mark.parametrize(
    ("values", "peers"),
    [({}, [MONITORING]), (MONITORED, [MONITORING]),
     ({"networkPolicy": {"metricsFrom": []}}, []),
     ({"networkPolicy": {"metricsFrom": [{"podSelector": {}}]}}, [{"podSelector": {}}])],
)  # fmt: skip
def test_no_tenant_reaches_metrics_unless_a_value_says_so(helm, values, peers):
    objects = helm.render(values)
    policies = [one(objects, "NetworkPolicy", name) for name in ("vramwarden-webhook", SENTRY)]
    open_to = [
        peer
        for policy in policies
        for rule in policy["spec"].get("ingress", ())
        if rule["ports"] != [{"port": "https"}]
        for peer in rule["from"]
    ]
    assert open_to == peers * len(policies)
    words = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert "for pods of the namespace `monitoring` (" in words


def test_what_prometheus_takes_of_it_is_about_others_and_bounded(helm):
    spec = one(helm.render(MONITORED), "PodMonitor")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["honorLabels"], spec["sampleLimit"]) == (True, SAMPLE_LIMIT)


def test_who_reads_figures_of_nodes_is_a_value(helm):
    def subjects(groups):
        objects = helm.render({"gpuNodes": {"readableBy": groups}})
        bound = [item for item in objects if item["metadata"]["name"] == "vramwarden-gpunodes"]
        return [subject["name"] for thing in bound for subject in thing.get("subjects", [])]

    assert subjects(["system:authenticated"]) == ["system:authenticated"]
    assert subjects(["a", "b"]) == ["a", "b"]
    assert subjects([]) == []


def test_without_the_kinds_everything_else_is_as_before(helm):
    def without(objects):
        return [item for item in objects if item["kind"] != "CustomResourceDefinition"]

    assert helm.render({"crds": {"install": False}}) == without(helm.render())
    assert len(helm.render()) == len(without(helm.render())) + 2


def test_it_is_told_who_and_where_it_is_and_answers_where_it_is_asked(helm):
    objects = helm.render({"host": "::"})
    container = container_of(objects)
    fields = {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container["env"]
        if "valueFrom" in entry
    }
    assert fields == {
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
    }
    found = options(sentry_command, container)
    assert {key: found[key] for key in ("node", "namespace", "host", "metrics_port")} == {
        "node": "$(NODE_NAME)",
        "namespace": NAMESPACE,
        "host": "::",
        "metrics_port": 8081,
    }
    named = {parameter.envvar for parameter in sentry_command.params}
    assert fields.keys() <= named
    (port,) = container["ports"]
    assert port == {"name": "metrics", "containerPort": 8081}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert (
        "livenessProbe" not in container
    )  # a client that floods the port could make the kubelet restart it
    policy = one(objects, "NetworkPolicy", SENTRY)["spec"]
    assert [rule["ports"] for rule in policy["ingress"]] == [[{"port": "metrics"}]]
    monitor = one(helm.render(MONITORED), "PodMonitor", SENTRY)["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("metrics", True)
    assert monitor["selector"] == policy["podSelector"]


def variables(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


AGENT = {
    "nodeSelector": {"a": "b"},
    "affinity": {"podAntiAffinity": {}},
    "tolerations": [{"key": "a"}],
    "extraEnv": [{"name": "LD_LIBRARY_PATH", "value": "/driver"}],
    "extraVolumes": [{"name": "driver", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "driver", "mountPath": "/driver"}],
}


def given(objects, part):
    pod, container = pod_of(objects, part), container_of(objects, part)
    return {
        **{key: pod.get(key) for key in ("nodeSelector", "affinity", "tolerations")},
        "extraEnv": [entry for entry in container["env"] if entry["name"] == "LD_LIBRARY_PATH"],
        "extraVolumes": [volume for volume in pod["volumes"] if volume["name"] == "driver"],
        "extraVolumeMounts": [
            mount for mount in container["volumeMounts"] if mount["name"] == "driver"
        ],
    }


@pytest.mark.parametrize("part", ["sentry", "limiter"])
def test_it_goes_where_the_agent_goes(helm, part):
    only = {"affinity": {**AGENT["affinity"], "nodeAffinity": None}}
    assert given(helm.render({"agent": {**AGENT, **only}, **LIMITED}), part) == AGENT
    objects = helm.render(LIMITED)
    assert pod_of(objects, part)["affinity"] == pod_of(objects, "agent")["affinity"]


@pytest.mark.parametrize(
    ("part", "access"),
    [("sentry", access) for access in ("Environment", "VolumeMounts", "Privileged")]
    + [("limiter", access) for access in ("Environment", "VolumeMounts")],
)
def test_it_sees_the_gpus_as_the_agent_does(helm, part, access):
    values = LIMITED if part == "limiter" else {}
    objects = helm.render({"agent": {"gpuAccess": access}, **values})
    ours, theirs = container_of(objects, part), container_of(objects, "agent")
    for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"):
        assert variables(ours)[name] == variables(theirs)[name]
    mounts = [mount for mount in theirs["volumeMounts"] if mount["name"] == "all-gpus"]
    found = ours.get("volumeMounts", [])
    assert [item for item in found if item["name"] not in ("cgroups", "limiter")] == mounts
    assert ours["securityContext"].get("privileged") == theirs["securityContext"].get("privileged")


def test_one_node_at_a_time_is_without_it_and_nothing_displaces_it(helm):
    objects = helm.render()
    update = one(objects, "DaemonSet", SENTRY)["spec"]["updateStrategy"]
    assert update == {"rollingUpdate": {"maxUnavailable": 1}}
    assert pod_of(objects)["priorityClassName"] == "system-node-critical"


def test_its_pods_are_never_sent_to_us(helm):
    """The sentry's pods see every GPU by an environment variable that the rules deny."""
    objects = helm.render({"sentry": {"namespace": "watch"}})
    kind = "MutatingWebhookConfiguration"
    judging = [
        webhook(objects, kind)["namespaceSelector"],
        binding_webhook(objects)["namespaceSelector"],
    ]
    judging += [
        thing["spec"]["matchResources"]["namespaceSelector"]
        for thing in objects
        if thing["kind"] == "ValidatingAdmissionPolicyBinding" and "matchResources" in thing["spec"]
    ]
    assert len(judging) == 6
    for selector in judging:
        exempt = selector["matchExpressions"][0]["values"]
        assert {"watch", NAMESPACE} <= set(exempt)
        assert names.PREFIX not in str(exempt)


@pytest.mark.parametrize(
    ("namespace", "create", "made"),
    [
        (SENTRY, True, {SENTRY: "privileged", NAMESPACE: "restricted"}),
        ("watch", True, {"watch": "privileged", NAMESPACE: "restricted"}),
        (SENTRY, False, {NAMESPACE: "restricted"}),
        (NAMESPACE, True, {NAMESPACE: "privileged"}),
        (NAMESPACE, False, {NAMESPACE: "privileged"}),
    ],
)
def test_its_namespace_is_made_once_and_allows_it(helm, namespace, create, made):
    sentry = {"namespace": namespace, "createNamespace": create}
    objects = helm.render({"sentry": sentry, "namespace": {"create": True}})
    assert {
        thing["metadata"]["name"]: thing["metadata"]["labels"][ENFORCE]
        for thing in objects
        if thing["kind"] == "Namespace"
    } == made
    assert one(objects, "DaemonSet", SENTRY)["metadata"]["namespace"] == namespace
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        (subject,) = one(objects, kind, SENTRY)["subjects"]
        assert subject["namespace"] == namespace
    account = f"system:serviceaccount:{namespace}:{SENTRY}"
    policy = one(objects, "ValidatingAdmissionPolicy", "vramwarden-accounts")["spec"]
    assert f"'{account}'" in policy["matchConditions"][0]["expression"]
    (variable,) = (variable for variable in policy["variables"] if variable["name"] == "bySentry")
    assert f"'{account}'" in variable["expression"]


def test_priority_classes_are_allowed_in_both_namespaces_where_that_takes_a_quota(helm):
    def quotas(**sentry):
        objects = helm.render({"criticalPodsQuota": True, "sentry": sentry})
        found = [thing["metadata"] for thing in objects if thing["kind"] == "ResourceQuota"]
        return {metadata["namespace"] for metadata in found}

    assert quotas() == {NAMESPACE, SENTRY}
    assert quotas(enabled=False) == quotas(namespace=NAMESPACE) == {NAMESPACE}


RIGHTS = {
    ("configmaps", "get", "watch"),
    ("events", "create", "patch"),
    ("gpunodes", "get", "create", "patch"),
    ("nodes", "get"),
}


@pytest.mark.parametrize(
    ("values", "fenced"),
    [({}, True), ({"sentry": {"act": False}}, False), ({"fence": {"accounts": False}}, False)],
)
def test_it_changes_pods_only_where_it_acts_and_the_fence_holds_it(helm, values, fenced):
    objects = helm.render(values)
    found = {
        (resource, *rule["verbs"])
        for kind in ("Role", "ClusterRole")
        for rule in one(objects, kind, SENTRY)["rules"]
        for resource in rule["resources"]
    }
    assert found == RIGHTS | ({("pods/status", "patch")} if fenced else set())


def notes(live_helm, *, limited=False, **sentry):
    """Return Helm's notes for an installation whose namespaces do not exist yet."""
    given = {"sentry": {"createNamespace": False, **sentry}, "crds": {"install": False}}
    given |= LIMITED if limited else {}
    values = live_helm.values(given)
    where = ("--namespace", NAMESPACE, "--dry-run=client")
    text = live_helm.run("install", "notes", str(CHART), *where, *values).partition("NOTES:")[2]
    return " ".join(text.split())


def test_the_notes_say_what_it_does_what_it_needs_and_how_to_be_rid_of_it(live_helm):
    label = f"kubectl label namespace watch {ENFORCE}=privileged"
    acting = notes(live_helm, namespace="watch")
    for said in (
        "stops pods",
        "capability KILL",
        "sentry.act=false",
        "sentry.enabled=false",
        label,
    ):
        assert said in acting
    assert "find no node" not in acting
    assert "To switch it on: limiter.enabled=true" in acting
    assert "Who breaks into it is root of that node" in notes(live_helm, limited=True)
    looking = notes(live_helm, act=False, namespace="watch")
    assert "stops none" in looking
    assert "find no node" in looking
    assert label in looking
    off = notes(live_helm, enabled=False)
    assert "The sentry is off: a pod whose user stops its sidecar keeps what it holds" in off
    assert "find no node" in off
    assert "label namespace" not in off
    assert "limiter" not in off
