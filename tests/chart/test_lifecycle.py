"""Installation, upgrade and removal with Helm on a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chart.admission_policies import PLURALS, write_parameter
from tests.chart.recorded_reviews import denial
from tests.chart.test_rendering import EMERGENCY
from tests.support.charts import CHART, NAMESPACE, HelmError, Release, hooks, one
from tests.support.control_planes import ApiError, wait_until
from tests.support.page_commands import asked
from tests.support.pods import a_container, a_pod, a_request
from tests.support.run_command import vramwarden
from webhook.adapters.policy.files import PolicySource, shipped_policy_path
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.names import WEBHOOK_CONFIGURATION

GROUP = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{GROUP}/mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}"
VALIDATING = f"{GROUP}/validatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/vramwarden-certificate"
LABEL = "app.kubernetes.io/name=vramwarden"
KINDS = (
    "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,roles,pods,"
    "clusterrolebindings,rolebindings,deployments,daemonsets,jobs,services,secrets,configmaps,"
    "serviceaccounts,poddisruptionbudgets,networkpolicies,resourcequotas"
)


class Installation(Release):
    """A release and its stored objects."""

    def __init__(self, helm, control_plane):
        super().__init__(helm)
        self.api = control_plane.api
        self.kubectl = control_plane.kubectl

    def left(self):
        """Return the existing objects of the release."""
        kinds = ",".join((KINDS, *filter(self.api.serves, PLURALS.values())))
        done = self.kubectl("get", kinds, "--all-namespaces", "-l", LABEL, "-o", "name")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    def denies(self, pod):
        """Try to create a pod in another namespace; return the denial, or "" if it was created."""
        pod["metadata"].update(namespace="default", name=f"p-{uuid.uuid4().hex}")
        return denial(lambda: self.api.create(pod, dry_run=True))

    def denies_change(self, namespace, name, change):
        """Try to patch a pod; return the denial's message, or "" if it was changed."""
        path, kind = f"/api/v1/namespaces/{namespace}/pods/{name}", "application/merge-patch+json"
        return denial(lambda: self.api.request("PATCH", path, change, content_type=kind))

    def bind(self, namespace, name, node):
        """Bind a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        self.api.request("POST", path, {**binding, "target": target})

    def owner(self):
        """Return the object that replicas set as owner of both configurations."""
        uid = self.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}")["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Namespace", "name": NAMESPACE, "uid": uid}

    def bind_path(self):
        return self.api.request("GET", MUTATING)["webhooks"][-1]["clientConfig"]["service"]["path"]

    def bundle(self, path=MUTATING):
        webhooks = self.api.request("GET", path)["webhooks"]
        (bundle,) = {webhook["clientConfig"].get("caBundle") for webhook in webhooks}
        return bundle


def is_called(release):
    """Wait until the API server calls the webhook, which is not running."""
    wait_until("the webhook is called", lambda: "webhook" in release.denies(a_pod("8Gi")))
    return release


@pytest.fixture
def release(live_helm, control_plane):
    found = Installation(live_helm, control_plane)
    # Objects with vramwarden's label that tests in other files left in this control plane.
    control_plane.kubectl("delete", "jobs,configmaps", "--all-namespaces", "-l", LABEL)
    assert found.left() == set()
    yield found
    if "vramwarden" in live_helm.run("list", "--namespace", NAMESPACE, "--short"):
        found.uninstall()


def test_what_is_rendered_is_installed_and_nothing_is_left_after_it(release, control_plane):
    assert "--set rollout=Enforce" in release.install()
    # The namespaces of sentry and release, and the kinds with their objects, are kept.
    lasting = {"Namespace", "CustomResourceDefinition"}
    objects = release.helm.render()
    kept = [item for item in objects if not hooks(item) and item["kind"] not in lasting]
    rendered = {(thing["kind"].lower(), thing["metadata"]["name"]) for thing in kept}
    # The key is random, so it is missing if Helm queries no cluster.
    assert rendered | {("secret", "vramwarden-key")} == {
        (name.split(".")[0].split("/")[0], name.split("/")[1]) for name in release.left()
    }
    release.uninstall()
    assert release.left() == set()
    ours = {item["metadata"]["name"] for item in objects if item["kind"] in lasting - {"Namespace"}}
    definitions = ("get", "customresourcedefinitions", "-l", LABEL, "-o", "name")
    stay = control_plane.kubectl(*definitions).stdout.split()
    assert {name.split("/")[1] for name in stay} == ours != set()


WHOLE = a_pod(containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})])
MACHINE = a_pod(containers=[a_container(resources={"limits": {"devices.kubevirt.io/kvm": "1"}})])
SHIPPED = PolicySource(shipped_policy_path(), "vramwarden/enforcer:1").current
ASKED = a_pod("8Gi", schedulingGates=[{"name": "example.com/queue"}])
ASKED["metadata"]["finalizers"] = ["example.com/tracking"]
WITH_DEMAND = decide(a_request(ASKED), SHIPPED, UNKNOWN_CLUSTER, Phase.MUTATE).obj
OF_STRANGERS = {"plain": a_pod(), "a whole GPU": WHOLE, "a virtual machine": MACHINE}


@pytest.fixture
def team(control_plane):
    """Return a namespace with older pods: other users' pods and one vramwarden pod."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    control_plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    control_plane.ensure_service_account(name)
    for index, pod in enumerate([*OF_STRANGERS.values(), WITH_DEMAND]):
        metadata = {**pod["metadata"], "name": f"stored-{index}", "namespace": name}
        control_plane.api.create({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata})
    return name


CHANGES = {
    "a label is patched": {"metadata": {"labels": {"app": "x"}}},
    "an annotation is patched": {"metadata": {"annotations": {"example.com/a": "x"}}},
    "a gate is removed": {"spec": {"schedulingGates": None}},
    "a finalizer is removed": {"metadata": {"finalizers": None}},
}


def test_while_no_replica_answers_nobody_waits_but_who_asks_for_gpu_memory(release, team):
    """Kubelets, Kueue, Job controllers and virtual machines need this. Pods are also bound."""
    release.install()
    is_called(release)
    assert 'failed calling webhook "mutate.vramwarden.io"' in release.denies(a_pod("8Gi"))
    for what, pod in OF_STRANGERS.items():
        assert release.denies(pod) == "", what
    for index in range(len(OF_STRANGERS) + 1):
        for what, change in CHANGES.items():
            assert release.denies_change(team, f"stored-{index}", change) == "", (index, what)
    more = {"metadata": {"annotations": {"vramwarden.io/gpu-memory": "9Gi"}}}
    for index in range(len(OF_STRANGERS) + 1):
        # The field is ignored in a pod without vramwarden's label, and the API server denies adding
        # that.
        why = release.denies_change(team, f"stored-{index}", more)
        ours = index == len(OF_STRANGERS)
        assert ('failed calling webhook "validate.vramwarden.io"' in why) is ours, (index, why)
        release.bind(team, f"stored-{index}", "node-1")


def test_after_it_every_pod_is_created_also_without_hooks(release):
    release.install()
    is_called(release).uninstall("--no-hooks")
    wait_until("it is forgotten", lambda: not release.denies(a_pod("8Gi")))
    assert release.denies(a_pod()) == ""
    assert release.left() == set()


def test_the_webhooks_go_before_the_server_does(release, control_plane):
    release.install()
    control_plane.audit_log.write_text("")
    release.uninstall()
    lines = map(json.loads, control_plane.audit_log.read_text().splitlines())
    deleted = [line["requestURI"].partition("?")[0] for line in lines]
    server = min(i for i, path in enumerate(deleted) if path.endswith("/vramwarden-webhook"))
    assert {MUTATING, VALIDATING} <= set(deleted[:server])


def test_an_upgrade_leaves_alone_what_the_server_wrote(release):
    release.install()
    bundle = base64.b64encode(b"our CA").decode()
    for path in (MUTATING, VALIDATING):
        webhooks = release.api.request("GET", path)["webhooks"]
        client = {"caBundle": bundle}
        change = {
            "webhooks": [{"name": webhook["name"], "clientConfig": client} for webhook in webhooks]
        }
        change["metadata"] = {"ownerReferences": [release.owner()]}
        kind = "application/strategic-merge-patch+json"
        release.api.request("PATCH", path, change, content_type=kind)
    bind = {"name": "bind.vramwarden.io", "clientConfig": {"service": {"path": "/secret/bind"}}}
    release.api.request("PATCH", MUTATING, {"webhooks": [bind]}, content_type=kind)
    data = {"tls.crt": bundle, "tls.key": bundle, "ca.crt": bundle}
    release.api.request(
        "PATCH", SECRET, {"data": data}, content_type="application/merge-patch+json"
    )

    webhook = {"replicas": 3, "timeoutSeconds": 3}
    release.install({"webhook": webhook, "exemptNamespaces": ["other"]})
    for path in (MUTATING, VALIDATING):
        found = release.api.request("GET", path)
        assert found["webhooks"][0]["timeoutSeconds"] == 3
        assert found["metadata"]["ownerReferences"] == [release.owner()]
        assert release.bundle(path) == bundle
    assert release.bind_path() == "/secret/bind"
    assert release.api.request("GET", SECRET)["data"] == data

    release.helm.run("rollback", "vramwarden", "1", "--namespace", NAMESPACE)
    assert release.bundle() == bundle
    assert release.bind_path() == "/secret/bind"
    assert release.api.request("GET", SECRET)["data"] == data


def test_an_upgrade_that_renames_the_configurations_removes_the_old_ones(release):
    old = {"webhook": {"configurationName": "vramwarden"}}
    for values, name in ((old, "vramwarden"), (None, WEBHOOK_CONFIGURATION), (old, "vramwarden")):
        release.install(values)
        for kind in ("mutating", "validating"):
            found = release.api.list(f"{GROUP}/{kind}webhookconfigurations")
            names = [item["metadata"]["name"] for item in found]
            assert [name for name in names if "vramwarden" in name] == [name]


CHECK = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/vramwarden-policy-check"
ENDS = {
    "Failed": {"failed": 1},
    "Complete": {"succeeded": 1, "completionTime": "2030-01-01T00:00:01Z"},
}
BEFORE = {"Failed": "FailureTarget", "Complete": "SuccessCriteriaMet"}


def test_the_key_is_made_once_and_one_of_somebody_elses_is_left_alone(release):
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/vramwarden-key"

    def key():
        return base64.b64decode(release.api.request("GET", path)["data"]["key"])

    release.install()
    made = key()
    assert len(made) == 43
    assert "rollout" not in release.install(
        {"rollout": "Enforce"}
    )  # releases that already enforce get no notice
    release.helm.run("rollback", "vramwarden", "1", "--namespace", NAMESPACE, "--no-hooks")
    assert key() == made
    release.uninstall()
    theirs = {"name": "vramwarden-key", "namespace": NAMESPACE}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": theirs}
    release.api.create({**secret, "stringData": {"key": "theirs"}})
    try:
        for _ in range(2):
            release.install()
        release.uninstall()
        assert key() == b"theirs"
    finally:
        release.api.delete(secret)


def end_the_check(api, how):
    """Set the Job's status, as its controller would."""
    known = []

    def is_there():
        with contextlib.suppress(ApiError):
            known.append(api.request("GET", CHECK))
        return known

    wait_until("the policies are checked", is_there)
    now = "2030-01-01T00:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": "Ended", "lastTransitionTime": now}
        for kind in (BEFORE[how], how)
    ]
    status = {"startTime": now, "uncountedTerminatedPods": {}, "conditions": conditions}
    change = {"status": {**status, **ENDS[how]}}
    kind = "application/merge-patch+json"
    api.request("PATCH", f"{CHECK}/status", change, content_type=kind)


@pytest.mark.parametrize("how", ["Failed", "it never starts"])
def test_policies_that_are_not_valid_and_images_that_are_not_there_install_nothing(release, how):
    """If an image cannot be pulled, the Job waits for its own deadline or Helm's."""
    with ThreadPoolExecutor() as pool:
        options = ("--timeout", "60s" if how == "Failed" else "1s")
        installed = pool.submit(release.helm.run, *release.installing(), *options)
        if how == "Failed":
            end_the_check(release.api, how)
        with pytest.raises(HelmError, match="failed pre-install"):
            installed.result()
    left = release.left()
    release.api.request("DELETE", CHECK, {"propagationPolicy": "Background"})
    assert left == {"job.batch/vramwarden-policy-check"}  # kept, so that users can read its log
    assert release.denies(a_pod()) == ""
    wait_until("nothing of an earlier test holds", lambda: not release.denies(a_pod("8Gi")))


def test_policies_that_are_valid_are_installed(release):
    with ThreadPoolExecutor() as pool:
        installed = pool.submit(release.helm.run, *release.installing(), "--timeout", "60s")
        end_the_check(release.api, "Complete")
        installed.result()
    left = release.left()
    assert "deployment.apps/vramwarden-webhook" in left
    assert not [name for name in left if "policy-check" in name]


def test_another_way_to_certificates_is_an_upgrade_and_a_second_release_none(release):
    release.install()
    existing = {"name": "mine", "caBundle": "-----BEGIN CERTIFICATE-----\n"}
    release.install({"certificates": {"mode": "existingSecret", "existingSecret": existing}})
    assert base64.b64decode(release.bundle()).decode() == existing["caBundle"]
    assert denial(lambda: release.api.request("GET", SECRET)).endswith("not found")
    other = ("--namespace", "other", "--create-namespace", *release.helm.values(None))
    with pytest.raises(HelmError, match="exists and cannot be imported"):
        release.helm.run("install", "second", str(CHART), *other)
    release.install()
    assert "data" not in release.api.request("GET", SECRET)
    assert not release.bundle()


def do_as_asked(control_plane, beginning):
    """Run the pages' commands that start with this prefix, as a reader would."""
    for line in asked(re.escape(beginning)):
        done = control_plane.shell(line)
        assert done.returncode == 0, done.stderr


def test_the_emergency_exit_leaves_the_second_line_and_helm_restores_what_went(
    release, control_plane
):
    release.install()
    write_parameter(release.api, SHIPPED)  # as replicas do
    is_called(release)
    before = release.left()
    do_as_asked(control_plane, EMERGENCY)
    wait_until("it is not", lambda: 'webhook "' not in release.denies(a_pod("8Gi")))
    wait_until("the second line holds", lambda: release.denies(a_pod("8Gi")))
    assert "vramwarden: create the pod again; it asks" in release.denies(a_pod("8Gi"))
    assert release.denies(a_pod()) == ""
    do_as_asked(control_plane, "kubectl delete validatingadmissionpolicybindings")
    wait_until("nothing holds", lambda: not release.denies(a_pod("8Gi")))
    release.helm.run(
        "rollback", "vramwarden", "1", "--namespace", NAMESPACE
    )  # to the current revision
    assert release.left() == before
    do_as_asked(control_plane, EMERGENCY)
    release.install()
    assert release.left() == before


def test_what_outlives_a_namespace_that_was_deleted_first_is_cleaned(release, control_plane, helm):
    release.install()
    before = release.left()
    for kind in (
        "deployment",
        "daemonset",
    ):  # as the garbage collector does, which does not run here
        control_plane.kubectl("delete", kind, "--all-namespaces", "-l", LABEL)
    done = vramwarden("clean", "--kubeconfig", control_plane.kubeconfig)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [
        {name.split(".")[0].split("/")[0] for name in names} for names in (before, release.left())
    ]
    objects = [thing for thing in helm.render() if not hooks(thing)]
    lasting = {thing["kind"].lower() for thing in objects if "namespace" not in thing["metadata"]}
    # Kept: the sentry's namespace, which another command deletes, and some objects.
    lasting -= {"namespace", "customresourcedefinition"}
    assert kinds[0] - kinds[1] >= lasting
    ours = ("get", "roles,rolebindings", "--all-namespaces", f"--selector={LABEL}", "-o=name")
    assert control_plane.kubectl(*ours).stdout == ""


def test_the_api_server_counts_what_the_alerts_ask_for(release, helm):
    release.install()
    found = is_called(release).api.request("GET", "/metrics")["message"]
    rendered = helm.render({"prometheusRule": {"enabled": True}})
    rule = one(rendered, "PrometheusRule")["spec"]["groups"][0]["rules"][0]
    name, selector = re.search(r"(\w+_rejection_count)\{(.*?)\}", rule["expr"]).groups()
    labels = re.findall(r'(\w+)=~?"(.*?)"', selector)
    lines = [line for line in found.splitlines() if line.startswith(name)]
    assert any(
        all(re.search(rf'{label}="{value}"', line) for label, value in labels) for line in lines
    )


@pytest.mark.parametrize(
    ("needed", "word"),
    [
        (
            {"imagePullSecrets": [{"name": "registry"}]},
            "with the Secrets of their pods or ServiceAccounts",
        ),
        ({"policies": {"shipped": False}}, "There is no policy, and without a rule every pod is"),
    ],
    ids=["a secret for the sidecar", "a policy"],
)
def test_the_notes_say_what_is_needed_beside_a_value(live_helm, needed, word):
    def notes(values):
        command = ("install", "notes", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
        # A release with another name may have used its namespace.
        values = {**values, "sentry": {"createNamespace": False}, "crds": {"install": False}}
        return live_helm.run(*command, *live_helm.values(values)).partition("NOTES:")[2]

    assert word not in notes({})
    assert word in notes(needed)
