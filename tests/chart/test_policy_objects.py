"""Policies as objects on a real API server: the chart's kind, its rights, real replicas."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
import yaml

from tests.chart.accounts import WEBHOOK, forget, kinds_known, webhook_account
from tests.chart.admission_policies import BINDING, POLICY
from tests.chart.fenced import MERGE
from tests.chart.recorded_reviews import denial
from tests.support.charts import NAMESPACE, one
from tests.support.commands import runner
from tests.support.control_planes import ApiError, needs, wait_until
from tests.support.paths import POLICIES
from tests.support.pods import a_pod, a_review
from tests.support.policies import SHIPPED
from tests.support.servers import running
from webhook.adapters.kube.client import KubeError, connect
from webhook.adapters.kube.policies import LAST_GOOD, PoliciesApi, last_good_data
from webhook.cli.main import main
from webhook.core.policy.fence import sealed
from webhook.names import SEEING_API_VERSION, VRAM_POLICIES

PATH = f"/apis/{SEEING_API_VERSION}/{VRAM_POLICIES}"
KIND = "vrampolicies.vramwarden.io"
FOLDER = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: folder}
spec:
  rules: [{name: everybody, memory: {max: 40Gi}}]
"""
NAMED = {"name": LAST_GOOD, "namespace": NAMESPACE}
OPTIONS = ("--policy-objects", f"--placement-namespace={NAMESPACE}")


def a_policy(name, spec):
    """Return an object whose spec is written as in a file."""
    kind = {"apiVersion": SEEING_API_VERSION, "kind": "VRAMPolicy"}
    return {**kind, "metadata": {"name": name}, "spec": yaml.safe_load(spec)}


def students(most="10Gi"):
    rule = f"{{name: students, match: {{namespaces: ['students-*']}}, memory: {{max: {most}}}}}"
    return a_policy("10-students", f"rules: [{rule}]")


class Cluster:
    """An API server with the kind, what is denied of it, and the webhook's rights."""

    def __init__(self, control_plane, kind, token):
        self.control_plane, self.kind, self.token = control_plane, kind, token
        self.api = control_plane.api

    def stored(self):
        return {each["metadata"]["name"]: each for each in self.api.list(PATH)}

    def status(self, name):
        return self.stored().get(name, {}).get("status", {})

    def wait(self, name, **wanted):
        """Wait until the status says so, of the object as it is now."""

        def says():
            found = self.stored()[name]
            status = found.get("status", {})
            given = {key: status.get(key) for key in wanted}
            return given == wanted and (
                status["observedGeneration"] == found["metadata"]["generation"]
            )

        try:
            wait_until(f"{name} says {wanted}", says)
        except TimeoutError as error:
            error.add_note(str(self.status(name)))
            raise
        return self.status(name)

    def clear(self):
        for name in self.stored():
            self.api.request("DELETE", f"{PATH}/{name}")
        self.api.delete({"apiVersion": "v1", "kind": "ConfigMap", "metadata": NAMED})


def of_objects(objects):
    """Return what of a release is there for policy objects alone."""
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    rules = one(objects, "ClusterRole", WEBHOOK)["rules"]
    resources = {name for rule in rules for name in rule["resources"]}
    names = {KIND, "vramwarden-policy-fields", "vramwarden-view-policies"}
    made = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    return {
        *(kind for kind, name in made if name in names),
        *({"--policy-objects"} & set(container["args"])),
        *(name for name in resources if name.startswith(VRAM_POLICIES)),
    }


ALL = {
    *("CustomResourceDefinition", "ClusterRole", POLICY, BINDING, "--policy-objects"),
    *(VRAM_POLICIES, f"{VRAM_POLICIES}/status"),
}
ON = {"policyObjects": True}
RENDERED = {
    "off, the default": ({}, "1.36", set()),
    "on": (ON, "1.36", ALL),
    "on, without the kinds": (
        *(ON | {"crds": {"install": False}}, "1.36", ALL - {"CustomResourceDefinition"}),
    ),
    "on, before admission policies": (ON, "1.29", ALL - {POLICY, BINDING}),
}


@pytest.mark.parametrize(("values", "version", "wanted"), RENDERED.values(), ids=RENDERED)
def test_kind_and_rights_are_there_where_the_value_says_so(helm, values, version, wanted):
    objects = helm.render(values, "--kube-version", version)
    assert of_objects(objects) == wanted
    if "CustomResourceDefinition" in wanted:
        kept = one(objects, "CustomResourceDefinition", KIND)["metadata"]["annotations"]
        assert kept == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("on", [False, True])
def test_the_last_good_set_is_written_where_objects_are_read(helm, on):
    text = json.dumps(one(helm.render({"policyObjects": on}), POLICY, "vramwarden-accounts"))
    assert (LAST_GOOD in text) is on


@pytest.fixture(scope="module")
def cluster(control_plane, helm, tmp_path_factory):
    api, objects = control_plane.api, helm.render({"policyObjects": True})
    kind = one(objects, "CustomResourceDefinition", KIND)
    fence = [
        one(objects, kind, f"vramwarden-{name}")
        for kind in filter(api.serves, (POLICY, BINDING))
        for name in ("policy-fields", "accounts")
    ]
    with (
        kinds_known(api, [kind]),
        webhook_account(control_plane, objects, tmp_path_factory.mktemp("cluster")) as token,
    ):
        for each in fence:
            api.apply(each)
        wrong = a_policy("probe", "{rulez: []}")
        says = "unknown field in spec" if fence else ""
        wait_until(
            "unknown fields are denied",
            lambda: says in denial(lambda: api.create(wrong, dry_run=True)),
        )
        yield Cluster(control_plane, kind, token)
        for each in reversed(fence):
            api.delete(each)


@pytest.fixture
def empty(cluster, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.token))
    yield cluster
    cluster.clear()


def rule_of(server, namespace="students-a"):
    """Return the rule that governs a pod there, as the server's mark on it says."""
    answer = server.review(a_review(a_pod("8Gi"), namespace=namespace))
    return answer["auditAnnotations"]["rule"]


def allows(server, amount, namespace="students-a"):
    return server.review(a_review(a_pod(amount), namespace=namespace))["allowed"]


def is_stale(server):
    return "vramwarden_policy_stale 1.0" in server.get("/metrics")[1]


def as_file(path):
    return next(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_kind_takes_every_shipped_policy_as_it_is(cluster, file):
    stored = cluster.api.create(as_file(file), dry_run=True)
    assert stored["spec"] == as_file(file)["spec"]


TYPOS = {
    "{rulez: []}": "unknown field in spec; known fields: wholeGPUResources, classes, rules",
    "{rules: [{name: a, memory: {maxx: 8Gi}}]}": "unknown field in spec.rules[].memory; known",
    "{classes: {a: {memory: {max: 8Gi}}}}": "unknown field in spec.classes.NAME; known",
    "{rules: [{name: a, match: {except: {namespace: [b]}}}]}": "in spec.rules[].match.except; ",
    "{rules: [{name: a, enforcement: {resources: {limits: {gpu: 1}}}}]}": "resources.limits; known",
    "{examples: [{name: a, pod: {namespace: a, label: {}}, expect: {allowed: true}}]}": (
        "unknown field in spec.examples[].pod; known fields: "
    ),
    "{rules: [{match: {}}]}": "spec.rules[0].name: Required value",
    "{rules: [{name: a, action: enforce}]}": 'spec.rules[0].action: Unsupported value: "enforce"',
    "{rules: [{name: A_b}]}": "spec.rules[0].name: Invalid value",
    "{rules: [{name: a, memory: {max: true}}]}": "spec.rules[0].memory.max: Invalid value",
    "{rules: [{name: a, gpuCount: {max: 0}}]}": "spec.rules[0].gpuCount.max: Invalid value",
    "{rules: [{name: a, match: {namespaces: []}}]}": "spec.rules[0].match.namespaces: Invalid",
}


@pytest.mark.parametrize(("spec", "said"), TYPOS.items(), ids=TYPOS)
@pytest.mark.parametrize("validation", ["Ignore", "Strict"])
def test_the_api_server_denies_what_has_the_wrong_shape(cluster, spec, said, validation):
    """Also where the client does not ask for it: an unknown field is no longer dropped."""
    if ";" in said:  # what fields are known; the kind itself denies the rest
        needs(cluster.api, POLICY)
    body = a_policy("wrong", spec)
    query = {"fieldValidation": validation, "dryRun": "All"}
    assert said in denial(lambda: cluster.api.request("POST", PATH, body, **query))


def test_nulls_and_numbers_are_stored_as_files_have_them(cluster):
    spec = yaml.safe_load("""
rules:
- name: a
  match: {except: null}
  memory: {min: null, max: 8000000000}
  runtimeClassName: null
  translateWholeGPU: 8Gi
  message: null
  hostPaths: [/data]
  enforcement: {image: null, tolerance: 0, resources: null}
classes: {a: {accounting: null}}
""")
    body = {**a_policy("nulls", "{}"), "spec": spec}
    assert cluster.api.create(body, dry_run=True)["spec"] == spec


def test_an_object_is_created_edited_broken_and_deleted_under_two_replicas(empty, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        running(tmp_path / "a", *OPTIONS, policy=FOLDER) as first,
        running(tmp_path / "b", *OPTIONS, policy=FOLDER) as second,
    ):
        both = (first, second)
        assert [rule_of(server) for server in both] == ["everybody", "everybody"]
        empty.api.apply(students())  # server-side apply, as GitOps controllers do
        status = empty.wait("10-students", inForce=True, rules=1, examples=0, errors=[])
        for server in both:
            server.wait_for("the rule", lambda server=server: rule_of(server) == "students")
            assert not allows(server, "12Gi")
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            *("InForce", "True", "InForce"),
        )
        shown = empty.control_plane.kubectl("get", "vrp").stdout.splitlines()
        assert shown[0].split() == ["NAME", "IN", "FORCE", "RULES", "EXAMPLES", "MESSAGE", "AGE"]
        assert shown[1].split()[:4] == ["10-students", "true", "1", "0"]

        empty.api.apply(students("14Gi"))
        empty.wait("10-students", inForce=True)
        for server in both:
            server.wait_for("the edit", lambda server=server: allows(server, "12Gi"))

        broken = students("99GB")
        broken["spec"]["rules"].append({"name": "everybody"})
        empty.api.apply(broken)
        status = empty.wait("10-students", inForce=False)
        assert status["errors"] == [
            {
                "path": "spec.rules[0].memory.max",
                "message": '"99GB" is not a Kubernetes quantity; use 99G or 99Gi',
            }
        ]
        assert status["conditions"][0]["reason"] == "Invalid"
        assert status["message"].endswith("; what it held before stays in force")
        assert [allows(server, "12Gi") for server in both] == [True, True]
        assert [allows(server, "16Gi") for server in both] == [False, False]
        for server in both:
            server.wait_for("the metric", lambda server=server: is_stale(server))

        empty.api.apply(students("4Gi"))
        empty.wait("10-students", inForce=True)
        for server in both:
            server.wait_for("the correction", lambda server=server: not allows(server, "12Gi"))

        # Once it is said, nobody says it again.
        version = empty.stored()["10-students"]["metadata"]["resourceVersion"]
        empty.api.apply(a_policy("20-other", "{rules: [{name: other, match: {namespaces: [x]}}]}"))
        empty.wait("20-other", inForce=True)
        empty.wait("10-students", digest=empty.status("20-other")["digest"])
        settled = {
            name: each["metadata"]["resourceVersion"] for name, each in empty.stored().items()
        }
        assert settled["10-students"] != version  # it names the policy in force

        empty.api.request("DELETE", f"{PATH}/10-students")
        for server in both:
            server.wait_for("the end", lambda server=server: rule_of(server) == "everybody")
            said = {line["msg"] for line in server.log() if line["level"] == "error"}
            assert said - {"histories cannot be followed"} == {
                "policy rejected, the last good one stays in force"
            }


def test_all_that_may_be_said_of_an_object_is_stored(empty):
    """What is said, and whose fault it is, is in tests/adapters/policy/test_objects.py."""
    empty.api.apply(students())
    condition = {
        "type": "InForce", "status": "False", "reason": "ExamplesFailed", "message": "m",
        "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {
        "observedGeneration": 1, "inForce": False, "digest": "d", "rules": 1, "examples": 1,
        "message": "m", "errors": [{"path": "metadata.name", "message": "m"}],
        "examplesFailed": [{"name": "n", "message": "m"}], "conditions": [condition],
    }  # fmt: skip
    path = f"{PATH}/10-students/status"
    empty.api.request("PATCH", path, {"status": status}, content_type=MERGE)
    assert empty.status("10-students") == status


def test_a_replica_starts_with_the_last_good_set_where_an_object_is_broken(empty, tmp_path):
    (tmp_path / "key").write_bytes(b"0123456789abcdef" * 2)
    options = (*OPTIONS, f"--key-file={tmp_path / 'key'}")
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{LAST_GOOD}"
    forged = last_good_data([("10-students", json.dumps(students("30Gi")).encode())])
    with running(tmp_path, *options, policy=FOLDER) as server:
        empty.api.apply(students())
        empty.wait("10-students", inForce=True)

        def kept():
            with contextlib.suppress(ApiError):
                found = empty.api.request("GET", path)
                return (
                    len(found["data"]["objects.v1"]) > 60 and found["data"].keys() > forged.keys()
                )
            return False

        server.wait_for("it is kept", kept)
        good = empty.api.request("GET", path)["data"]["objects.v1"]
        for data in (forged, sealed(forged, b"", time.time())):
            empty.api.request("PATCH", path, {"data": data}, content_type=MERGE)
            wait_until(
                "it is restored",
                lambda: empty.api.request("GET", path)["data"]["objects.v1"] == good,
            )
    empty.api.apply(students("99GB"))
    with running(tmp_path, *options, policy=FOLDER) as server:
        assert [allows(server, "8Gi"), allows(server, "12Gi")] == [True, False]
        status = empty.wait("10-students", inForce=False)
        assert status["message"].endswith("; what it held before stays in force")
        server.wait_for("the metric", lambda: is_stale(server))
        said = [line["msg"] for line in server.log() if line["level"] == "error"]
        assert said == [
            "an object is not valid, so the last good ones are in force",
            "policy rejected, the last good one stays in force",
        ]
    empty.api.request("PATCH", path, {"data": forged}, content_type=MERGE)
    # A set that no replica sealed is none.
    with running(tmp_path, *options, policy=FOLDER, ready=False) as server:
        assert server.process.wait(timeout=60) == 1
        assert "vrampolicies/10-students: spec.rules[0].memory.max: " in server.log_file.read_text()


def test_what_the_api_server_prints_is_a_policy_for_the_command(empty, tmp_path):
    body = as_file(POLICIES / "default.yaml")
    empty.api.apply(body)
    with running(tmp_path, *OPTIONS, policy="{apiVersion: vramwarden.io/v1alpha1, "
                 "kind: VRAMPolicy, metadata: {name: a}, spec: {}}") as server:  # fmt: skip
        empty.wait("default", inForce=True)
        assert rule_of(server) == "default"
    of_all = ("get", "vrampolicies", "-o", "yaml")
    for which in (of_all, ("get", "vrampolicy", "default", "-o", "yaml", "--show-managed-fields")):
        printed = empty.control_plane.kubectl(*which).stdout
        done = runner().invoke(main, ["policy", "check", "-"], input=printed)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.startswith("standard input: valid: 2 rules, ")
    wrong = printed.replace("action: Enforce", "action: Enforced")
    done = runner().invoke(main, ["policy", "check", "-"], input=wrong)
    assert done.exit_code == 1
    assert '"Enforced" is not one of' in done.stderr


def test_check_says_whether_they_are_in_force_and_knows_the_digest(empty, live_helm, tmp_path):
    objects = live_helm.render({"policyObjects": True})
    deployment = one(objects, "Deployment", WEBHOOK)
    policies = one(objects, "ConfigMap", "vramwarden-policies")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (image,) = [each for each in container["args"] if each.startswith("--enforcer-image=")]
    folder = tmp_path / "policies"
    folder.mkdir()
    for name, text in policies["data"].items():
        (folder / name).write_text(text)
    command = ["check", "--kubeconfig", str(empty.control_plane.kubeconfig), "-o", "json"]

    def checks():
        done = runner().invoke(main, command)
        return {each["id"]: each for each in json.loads(done.stdout)["checks"]}

    for each in (deployment, policies):
        empty.api.apply(each)
    try:
        empty.api.apply(students())
        found = checks()["policy-objects"]
        assert (found["result"], found["objects"]) == ("warning", ["10-students"])
        with running(tmp_path, *OPTIONS, image, policy=None):
            status = empty.wait("10-students", inForce=True)
            found = checks()
            assert (found["policy-objects"]["result"], found["policy-objects"]["detail"]) == (
                *("ok", "1 object"),
            )
            assert found["policy-valid"]["detail"] == f"3 rules, digest {status['digest']}"
            empty.api.apply(students("99GB"))
            empty.wait("10-students", inForce=False)
            found = checks()
            assert found["policy-objects"]["result"] == "failed"
            assert "10-students: spec.rules[0].memory.max: " in found["policy-objects"]["detail"]
            assert found["policy-valid"]["result"] == "failed"
    finally:
        for each in (deployment, policies):
            empty.api.delete(each)


def test_only_the_status_is_the_webhooks_to_write(empty):
    empty.api.apply(students())
    webhook = empty.api.acting_as(f"system:serviceaccount:{NAMESPACE}:{WEBHOOK}")
    for verb, path in (("PATCH", f"{PATH}/10-students"), ("DELETE", f"{PATH}/10-students")):
        with pytest.raises(ApiError, match=r"cannot (patch|delete)"):
            webhook.request(verb, path, {"spec": {"rules": []}}, content_type=MERGE)
    path = f"{PATH}/10-students/status"
    body = {"spec": {"rules": []}, "status": {"message": "x"}}
    webhook.request("PATCH", path, body, content_type=MERGE)
    found = empty.stored()["10-students"]
    assert (found["spec"], found["status"]) == (students()["spec"], {"message": "x"})


def test_without_the_kind_a_replica_reads_that_it_is_not_there(cluster):
    """The last one. What a start does then is in tests/server/test_policies.py."""
    forget(cluster.api, [cluster.kind])
    with pytest.raises(KubeError) as caught:
        PoliciesApi(connect(cluster.token, tries=1), NAMESPACE).read()
    assert caught.value.not_found
