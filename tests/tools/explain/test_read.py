"""What `explain` reads, and what becomes of it where something may not be read."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import a_node, a_pod
from tests.support.commands import runner
from tests.tools.explain.scene import (
    CLUSTER,
    DENIED,
    EVAL,
    SCHEDULER,
    SEES_ALL,
    TRIED,
    WEBHOOK,
    of_enforcer,
    scheduled,
)
from webhook.adapters.kube.client import KubeError
from webhook.core.kinds.histories import write_history
from webhook.tools.explain.command import explain_command
from webhook.tools.explain.judge.explain import explain_workload
from webhook.tools.explain.judge.report import TriedPod
from webhook.tools.explain.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    KINDS,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
)
from webhook.tools.explain.read.owners import MOST_BETWEEN, MOST_READ, read_owned_facts
from webhook.tools.explain.read.reader import read_pod_facts
from webhook.tools.explain.read.workloads import read_workload_facts

PODS = "/api/v1/namespaces/team-a/pods"
LOG = f"{PODS}/p/log"
EVENTS = "/api/v1/namespaces/team-a/events"
WAITS = a_pod("p", "30Gi", status=scheduled(SCHEDULER))
RUNNING = {"phase": "Running", **of_enforcer("running")}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
LABELS = {"app": "train"}
SELECTOR = {"selector": {"matchLabels": LABELS}}
NO_TRIAL = "whether its pods are denied: you may not try one (create pods)"
AWAY = "whether its pods are denied: http://in-memory answers 503: away"


@pytest.fixture
def api(tmp_path):
    return CLUSTER.stored_in(ApiServer(tmp_path))


def read_pod(api, *pods):
    """Read the facts of the pod `p`, where these pods are stored."""
    return read_pod_facts(api.add(*pods).kube(), "team-a", "p")


def read_workload(api, kind, *stored):
    """Read the facts of the workload `train`, and its pod, where these objects are stored."""
    return read_workload_facts(api.add(*stored).kube(), kind, "team-a", "train")


def queries(api, path, method="GET"):
    return [one.query for one in api.asked if (one.method, one.path) == (method, path)]


def running(**status):
    return a_pod("p", "8Gi", node="n1", gpus="GPU-n1-0", status=RUNNING | status)


def a_workload(kind, spec=None, status=None, *, name="train", owner="", **metadata):
    """Return a workload whose UID is its name; `owner` is the UID of what made it."""
    owners = [{"controller": True, "uid": owner}] if owner else []
    own = {"namespace": "team-a", "name": name, "uid": name, "ownerReferences": owners}
    version = kind.path.removeprefix("/apis/")
    return {
        "apiVersion": version,
        "kind": kind.name,
        "metadata": own | metadata,
        "spec": SELECTOR | (spec or {}),
        "status": status or {},
    }


def a_pod_of(owner, name="a", status="Running", **more):
    """Return a pod that a controller made, as one has it whose template asks for no VRAM."""
    return a_pod(name, owner=owner, labels=LABELS, status=status, **more)


def an_event(name, message, at):
    about = {"involvedObject": {"uid": "train"}, "reason": "FailedCreate"}
    metadata = {"namespace": "team-a", "name": name}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "message": message}
    return event | about | {"lastTimestamp": at}


def test_with_view_alone_a_pod_that_waits_is_explained_and_nodes_are_not_read(api):
    api.denied.add(("list", "nodes"))
    facts = read_pod(api, WAITS, a_pod("train-0", "40Gi", node="n1"))
    assert facts.nodes == CLUSTER.figures
    assert (facts.seen, facts.left_out) == (None, ())
    assert facts.names == {"p": "p", "train-0": "train-0"}
    assert queries(api, LOG) == []


def test_where_nodes_may_be_read_only_those_with_gpus_are(api):
    facts = read_pod(api, WAITS, a_node("cpu").stored)
    assert {name: one.labels for name, one in facts.seen.items()} == {
        name: one.labels for name, one in CLUSTER.read_nodes.items()
    }


def test_pods_of_all_namespaces_are_read_for_one_that_a_whole_node_counts_for(api):
    elsewhere = a_pod("x", "8Gi", node="n1", namespace="other")
    facts = read_pod(api, a_pod("p", "8Gi", rule=SEES_ALL), elsewhere)
    assert [one.name for one in facts.pods] == ["x", "p"]
    assert facts.seen["n1"].vram_bytes == 158 * 2**30
    assert set(facts.names.values()) == {"p"}
    assert read_pod(api, WAITS).pods is None


def test_of_a_pod_on_a_node_without_figures_the_node_is_read(api):
    api.add(a_node("laptop", said=16).stored)
    facts = read_pod(api, a_pod("p", "8Gi", node="laptop", rule=SEES_ALL))
    assert facts.seen["laptop"].said


def test_what_may_not_be_read_is_said_and_the_rest_is_read(api):
    api.denied.add(("list", "gpunodes"))
    facts = read_pod(api, WAITS)
    assert (facts.nodes, len(facts.seen)) == (None, 3)
    (said,) = facts.left_out
    assert said.startswith("no figures of GPUs: you may not list gpunodes; whoever installed")


def test_a_pod_that_may_not_be_read_is_an_error(api):
    api.denied.add(("get", "pods"))
    with pytest.raises(KubeError, match="403"):
        read_pod(api)


def test_the_newest_lines_of_the_log_are_asked_for(api):
    api.texts[LOG] = "one\ntwo\n"
    assert read_pod(api, running()).log == ("one", "two")
    assert queries(api, LOG) == [{"container": "vram-enforcer", "tailLines": "500"}]


def test_a_text_is_read_in_bounded_memory(api):
    api.texts[LOG] = "ä" * 2**17
    read = api.kube().text(LOG, 2**16)
    assert 2**15 <= len(read) <= 2**16 + 1
    assert set(read) <= {"ä", "\N{REPLACEMENT CHARACTER}"}


def test_after_a_restart_the_log_before_it_comes_first(api):
    api.fails(f"{LOG}.*previous=true", (200, "before"))
    api.texts[LOG] = "now"
    (enforcer,) = of_enforcer("running")["initContainerStatuses"]
    pod = running(initContainerStatuses=[enforcer | {"restartCount": 1}])
    assert read_pod(api, pod).log == ("before", "now")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (403, "the log of container vram-enforcer: you may not read pods/log here"),
        (404, "the log of container vram-enforcer: "),
    ],
)
def test_a_log_that_cannot_be_read_is_said(api, code, said):
    api.fails(LOG, code)
    facts = read_pod(api, running())
    assert facts.log == ()
    assert [one[: len(said)] for one in facts.left_out] == [said]


@pytest.mark.parametrize(
    "status", [of_enforcer("waiting"), {"initContainerStatuses": []}], ids=["waits", "no-status"]
)
def test_of_an_enforcer_that_never_ran_no_log_is_read(api, status):
    read_pod(api, running(**status))
    assert queries(api, LOG) == []


def test_of_a_pod_without_a_demand_nothing_else_is_read(api):
    read_pod(api, a_pod("p", node="n1"))
    assert [one.path for one in api.asked] == [f"{PODS}/p"]


def test_the_last_run_of_a_pod_that_is_gone_is_read(api):
    facts = read_pod(api, write_history(EVAL))
    assert (facts.pod, facts.histories[0].workload) == (None, "eval")
    assert [run.pod for run in facts.histories[0].runs] == [run.pod for run in EVAL.runs]


def test_a_deployment_that_is_denied_says_so_itself_and_no_event_is_read(api):
    said = DENIED + "TooLarge: x: y"
    condition = {"type": "ReplicaFailure", "status": "True", "message": said}
    facts, pod = read_workload(
        api,
        DEPLOYMENT,
        a_workload(DEPLOYMENT, {"replicas": 3}, {"conditions": [condition]}),
        a_workload(REPLICA_SET, name="train-5d9c7", owner="train", labels=LABELS),
        a_pod_of("Deployment/train"),
        a_pod_of("Deployment/other", "b"),
    )
    assert (facts.exists, facts.wanted, facts.pods) == (True, 3, 1)
    assert (facts.refusals, pod.name) == ((said,), "a")
    assert queries(api, EVENTS) == []
    assert queries(api, PODS)[0]["labelSelector"] == "app=train"


@pytest.mark.parametrize("kind", [JOB, STATEFUL_SET], ids=["job", "stateful-set"])
def test_where_no_condition_says_it_the_newest_event_does(api, kind):
    old = an_event("old", "older", "2026-01-01T00:00:00Z")
    new = an_event("new", "newer", "2026-01-02T00:00:00Z")
    other = an_event("other", "other", "2026-01-03T00:00:00Z") | {"reason": "Killing"}
    facts, pod = read_workload(api, kind, a_workload(kind), new, old, other)
    assert (facts.refusals, facts.wanted, pod) == (("newer",), 1, None)


def test_where_nothing_is_left_of_a_denial_a_pod_is_tried_and_not_stored(api):
    said = f"{WEBHOOK}TooLarge: x: y"
    api.fails(f"POST {PODS}", (403, {"code": 403, "message": said}))
    about = {"annotations": {"vramwarden.io/gpu-memory": "8GB"}, "labels": {"a": "b"}}
    template = {"metadata": about, "spec": {"containers": []}}
    facts, _ = read_workload(api, JOB, a_workload(JOB, {"template": template}))
    assert (facts.refusals, facts.tried) == ((said,), True)
    ((_, _, body),) = api.sent()
    assert body["metadata"] == {**about, "generateName": "train-"}
    assert body["spec"] == template["spec"]
    assert [query["dryRun"] for query in queries(api, PODS, "POST")] == ["All"]


QUOTA = 'pods "t" is forbidden: exceeded quota: q'
NO_RIGHT = 'pods is forbidden: User "v" cannot create resource "pods"'


@pytest.mark.parametrize(
    ("trial", "refusals", "left_out"),
    [
        pytest.param(None, (), (), id="a pod would be created"),
        pytest.param((403, NO_RIGHT), (), (NO_TRIAL,), id="no right"),
        pytest.param((403, QUOTA), (QUOTA,), (), id="denied"),
        pytest.param((422, "no name"), ("no name",), (), id="not valid"),
        pytest.param((503, "away"), (), (AWAY,), id="no answer"),
    ],
)
def test_what_the_trial_says_is_told_and_a_missing_right_is_none(api, trial, refusals, left_out):
    if trial:
        code, message = trial
        api.fails("POST", (code, {"code": code, "message": message}))
    facts, _ = read_workload(api, JOB, a_workload(JOB))
    assert (facts.refusals, facts.left_out) == (refusals, left_out)
    assert api.asked[-1].method == "POST"


def test_events_of_the_past_say_nothing_where_all_pods_are_there(api):
    past = an_event("past", "denied", "2026-01-01T00:00:00Z")
    stored = (a_workload(STATEFUL_SET), a_pod_of("StatefulSet/train"), past)
    assert read_workload(api, STATEFUL_SET, *stored)[0].refusals == ()


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [(STATEFUL_SET, "runs"), (JOB, "evicted")],
    ids=["of a StatefulSet", "of a Job"],
)
def test_a_pod_that_failed_long_ago_is_explained_of_a_job_alone(api, kind, chosen):
    owner = f"{kind.name}/train"
    evicted = a_pod_of(owner, "evicted", "Failed")
    runs = a_pod_of(owner, "runs", {"phase": "Running"} | READY)
    assert read_workload(api, kind, a_workload(kind), evicted, runs)[1].name == chosen


def test_events_that_may_not_be_read_are_said(api):
    api.denied |= {("list", "events"), ("create", "pods")}
    facts, _ = read_workload(api, JOB, a_workload(JOB))
    assert facts.left_out[0].startswith("Events: ")
    assert facts.left_out[1:] == (NO_TRIAL,)


def holds(kind, **more):
    """Return the status of a Job of which a condition holds."""
    return {"conditions": [{"type": kind, "status": "True", **more}]}


NOT_FAILED = {"conditions": [{"type": "Failed", "status": "False"}]}


@pytest.mark.parametrize(
    ("status", "suspend", "ended", "failed"),
    [
        (
            holds("Failed", reason="BackoffLimitExceeded") | {"failed": 3},
            False,
            "has failed: 0 pods succeeded, 3 failed",
            "BackoffLimitExceeded",
        ),
        (
            holds("FailureTarget", reason="Deadline", message="too long"),
            False,
            "has failed: 0 pods succeeded, 0 failed",
            "Deadline: too long",
        ),
        (
            holds("Complete") | {"succeeded": 1, "failed": 2},
            False,
            "is complete: 1 pod succeeded, 2 failed",
            "",
        ),
        ({"succeeded": 2}, True, "is suspended: 2 pods succeeded, 0 failed", ""),
        (NOT_FAILED, False, "", ""),
    ],
    ids=["failed", "fails", "complete", "suspended", "runs"],
)
def test_what_became_of_a_job_is_said(api, status, suspend, ended, failed):
    facts, _ = read_workload(api, JOB, a_workload(JOB, {"suspend": suspend}, status))
    assert (facts.ended, facts.failed, facts.wanted) == (ended, failed, 0 if ended else 1)


def test_of_a_cron_job_the_newest_job_is_explained(api):
    def a_job(name, day, owner):
        at = f"2026-01-0{day}T00:00:00Z"
        return a_workload(JOB, name=name, owner=owner, creationTimestamp=at)

    jobs = [a_job("old", 1, "train"), a_job("new", 2, "train"), a_job("other", 3, "x")]
    pods = [a_pod_of(f"Job/{name}", f"of-{name}") for name in ("old", "new", "other")]
    facts, pod = read_workload(api, CRON_JOB, a_workload(CRON_JOB), *jobs, *pods)
    assert (facts.kind, pod.name) == ("CronJob", "of-new")


@pytest.mark.parametrize(
    ("kind", "spec", "status", "wanted"),
    [
        (DEPLOYMENT, {}, {}, 1),
        (DEPLOYMENT, {"replicas": 0}, {}, 0),
        (DAEMON_SET, {}, {"desiredNumberScheduled": 4}, 4),
        (DAEMON_SET, {}, {}, 0),
        (JOB, {"parallelism": 3, "completions": 5}, {"succeeded": 4}, 1),
        (JOB, {"parallelism": 3}, {}, 3),
        (JOB, {"suspend": True}, {}, 0),
        (JOB, {}, {"completionTime": "2026-01-01T00:00:00Z"}, 0),
        (JOB, {}, holds("Failed"), 0),
    ],
)
def test_how_many_pods_there_should_be(api, kind, spec, status, wanted):
    assert read_workload(api, kind, a_workload(kind, spec, status))[0].wanted == wanted


@pytest.mark.parametrize(
    ("kind", "asks", "misplaced"),
    [
        (DEPLOYMENT, {}, ("vramwarden.io/gpu-memory",)),
        (DEPLOYMENT, {"vramwarden.io/gpu-memory": "8Gi"}, ()),
        (JOB, {}, ("vramwarden.io/gpu-memory",)),
        (CRON_JOB, {}, ("vramwarden.io/gpu-memory",)),
    ],
)
def test_a_key_at_the_wrong_level_is_seen(api, kind, asks, misplaced):
    spec = {"template": {"metadata": {"annotations": asks}}, "replicas": 0}
    if kind is CRON_JOB:
        spec = {"jobTemplate": {"spec": spec}}
    annotations = {"vramwarden.io/gpu-memory": "8Gi", "a": "b"}
    for field in ("annotations", "labels"):
        facts, _ = read_workload(api, kind, a_workload(kind, spec, **{field: annotations}))
        assert facts.misplaced == misplaced


def test_of_a_workload_that_does_not_exist_others_are_named(api):
    facts, pod = read_workload(api, DEPLOYMENT, a_workload(DEPLOYMENT, name="llama"))
    assert (facts.exists, facts.others, pod) == (False, ("llama",), None)


def read_owned(api, word, name, *stored):
    return read_owned_facts(api.add(*stored).kube(), word, "team-a", name)


def a_pod_below(owner, name="a", version="kubeflow.org/v1", **more):
    """Return a pod with an owner of any kind, `Kind/name`."""
    kind, _, whose = owner.partition("/")
    made_by = {"apiVersion": version, "kind": kind, "name": whose, "controller": True, "uid": whose}
    return a_pod(name, metadata={"ownerReferences": [made_by]}, **more)


@pytest.mark.parametrize("word", ["pytorchjob", "pytorchjobs", "pytorchjobs.kubeflow.org"])
def test_an_object_of_any_kind_is_found_by_its_pods_and_not_read(api, word):
    stored = (a_pod_below("PyTorchJob/ddp"), a_pod_below("PyTorchJob/ddp-2", "b"), a_pod("c"))
    facts, pod = read_owned(api, word, "ddp", *stored)
    assert (facts.kind, facts.exists, facts.pods, pod.name) == ("PyTorchJob", True, 1, "a")
    assert [one.path for one in api.asked] == [PODS, f"{PODS}/a"]


def test_owners_between_a_pod_and_what_is_explained_are_read(api):
    job = a_workload(JOB, name="set-workers-0", owner="set")
    job["metadata"]["ownerReferences"][0] |= {"kind": "JobSet", "name": "set"}
    below = a_pod_below("Job/set-workers-0", "b", "batch/v1", status="Running")
    facts, pod = read_owned(api, "jobsets", "set", job, below)
    assert (facts.kind, facts.pods, pod.name) == ("JobSet", 1, "b")


def test_pods_that_have_ended_are_explained_where_there_are_no_others(api):
    done, runs = (a_pod_below("Workflow/w", one, status=one) for one in ("Succeeded", "Running"))
    assert read_owned(api, "workflow", "w", done)[1].phase == "Succeeded"
    facts, pod = read_owned(api, "workflow", "w", runs)
    assert (facts.pods, pod.phase) == (1, "Running")


def test_many_owners_and_pods_cost_few_requests(api):
    pods = [a_pod_below(f"Odd/x-{n}", f"p-{n}", "odd.example/v1") for n in range(20)]
    assert read_owned(api, "strange", "x", *pods)[0].exists is False
    assert len(api.asked) == 1 + MOST_BETWEEN + 1  # and its Events
    mine = [a_pod_below("Odd/mine", f"q-{n}") for n in range(25)]
    api.asked.clear()
    assert read_owned(api, "odd", "mine", *mine)[0].pods == 25
    assert len(api.asked) == 1 + MOST_READ


@pytest.mark.parametrize("version", ["", "../v1", "a/b/v1", "x" * 999], ids=range(4))
def test_an_owner_of_no_version_is_not_read(api, version):
    assert read_owned(api, "set", "x", a_pod_below("Odd/x-1", version=version))[0].exists is False
    assert [one.path for one in api.asked] == [PODS, EVENTS]


def test_of_an_object_without_pods_the_event_of_its_denial_is_read(api):
    said = f"Error creating: {WEBHOOK}TooLarge: x: y"
    about = {"involvedObject": {"kind": "PyTorchJob", "name": "ddp"}, "type": "Warning"}
    other = {"involvedObject": {"kind": "Service", "name": "ddp"}, "type": "Warning"}
    events = (
        an_event("a", said, "2026-01-01T00:00:00Z") | about,
        an_event("b", said + "2", "2026-01-02T00:00:00Z") | other,
        an_event("c", "all is well", "2026-01-03T00:00:00Z") | about,
    )
    facts, pod = read_owned(api, "pytorchjob", "ddp", *events)
    assert (facts.refusals, facts.exists, pod) == ((said,), True, None)


def test_without_pods_and_events_others_of_the_kind_are_named(api):
    facts, _ = read_owned(api, "pytorchjobs", "dpp", a_pod_below("PyTorchJob/ddp"))
    assert (facts.exists, facts.others) == (False, ("ddp",))
    assert explain_workload(facts, None).causes[0].fix == "did you mean ddp?"


POLICY = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: week}
spec:
  rules:
  - {name: ours, match: {namespaces: [team-a], namespaceLabels: {tier: one}}, memory: {max: 1Gi}}
  - {name: looking, action: Audit}
"""
UNSEEN = a_pod("p", "8Gi", rule=None, node="n1", status="Running")


def a_release(text=POLICY):
    metadata = {"namespace": "vramwarden-system", "name": "vramwarden-policies"}
    data = {"week.yaml": text}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def a_namespace(**labels):
    metadata = {"name": "team-a", "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {}}


def ruled(anew):
    return anew.ruling and (anew.ruling.rule, *(one.reason for one in anew.ruling.findings))


@pytest.mark.parametrize(
    ("stored", "denied", "found"),
    [
        pytest.param([a_release(), a_namespace()], (), ("looking",), id="recorded"),
        pytest.param(
            [a_release(), a_namespace(tier="one")], (), ("ours", "TooLarge"), id="by-label"
        ),
        pytest.param([a_release()], ("get", "namespaces"), None, id="labels-unread"),
        pytest.param([a_release()], ("get", "configmaps"), None, id="policy-unread"),
        pytest.param([a_release("no policy")], (), None, id="policy-invalid"),
        pytest.param([], (), None, id="no-policy"),
    ],
)
def test_what_the_policy_says_of_a_pod_that_asks_and_has_nothing(api, stored, denied, found):
    api.denied.add(denied)
    anew = read_pod(api, UNSEEN, *stored).anew
    assert (ruled(anew), anew.trial, anew.exempt) == (found, TriedPod(), False)


WARNED = {"Warning": '299 - "TooLarge: x: \\"80Gi\\""'}
TRANSLATED = a_pod("p", "8Gi")


@pytest.mark.parametrize(
    ("answer", "trial"),
    [
        pytest.param((201, {"kind": "Pod"}), TriedPod(), id="as it is"),
        pytest.param((201, TRANSLATED), TriedPod(translated=True), id="translated"),
        pytest.param(
            (201, {}, WARNED), TriedPod(warnings=('TooLarge: x: "80Gi"',)), id="with warnings"
        ),
        pytest.param((403, {"message": TRIED}), TriedPod(denial=TRIED), id="denied"),
        pytest.param((403, {"message": NO_RIGHT}), None, id="no right"),
        pytest.param(503, None, id="no answer"),
    ],
)
def test_one_like_it_is_tried_as_the_user_and_not_stored(api, answer, trial):
    api.fails(f"POST {PODS}", answer)
    debugged = {**UNSEEN, "spec": {**UNSEEN["spec"], "ephemeralContainers": [{"name": "debug"}]}}
    assert read_pod(api, debugged).anew.trial == trial
    ((_, _, body),) = api.sent()
    assert list(body["spec"]) == ["containers"]
    assert body["metadata"]["annotations"] == UNSEEN["metadata"]["annotations"]
    assert [query["dryRun"] for query in queries(api, PODS, "POST")] == ["All"]


def test_a_namespace_that_the_configuration_leaves_out_is_exempt(api):
    hook = {
        "name": "mutate.vramwarden.io",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team-b"}},
        "clientConfig": {"service": {"namespace": "elsewhere"}},
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "any"},
        "webhooks": [hook],
    }
    assert read_pod(api, UNSEEN, configuration).anew.exempt
    read = [one.path for one in api.asked if one.path.endswith("/vramwarden-policies")]
    assert read == ["/api/v1/namespaces/elsewhere/configmaps/vramwarden-policies"]


def test_of_a_pod_that_has_ended_none_like_it_is_tried(api):
    ended = a_pod("p", "8Gi", rule=None, status="Succeeded")
    assert read_pod(api, ended).anew is None
    assert api.sent() == []


def test_a_pod_that_does_not_exist_may_be_a_workloads(api):
    facts = read_pod(api, a_pod_of("Deployment/llama", "llama-x"), a_pod("alone"))
    assert facts.workloads == ("deployment/llama",)
    assert set(facts.names.values()) == {"llama-x", "alone"}


@pytest.fixture
def explain(api):
    """Run the command as a user does."""
    with api:
        options = ["-n", "team-a", "--kubeconfig", str(api.kubeconfig)]
        yield lambda *arguments: runner().invoke(explain_command, [*arguments, *options])


def test_the_command_explains_a_pod_and_ends_with_one_where_something_blocks(api, explain):
    api.add(WAITS)
    done = explain("p")
    assert done.exit_code == 1
    assert done.output.startswith("Pod team-a/p has waited for 9m.")
    assert "\n✗ no GPU has 30Gi free now" in done.output
    assert explain("pod/p").output == done.output


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("pod p", "Pod"),
        ("pods p", "Pod"),
        ("po/p", "Pod"),
        ("deployment train", "Deployment"),
        ("Deploy/train", "Deployment"),
        ("deployments.apps train", "Deployment"),
        ("deployments.v1.apps/train", "Deployment"),
        ("rs train", "ReplicaSet"),
        ("sts train", "StatefulSet"),
        ("ds train", "DaemonSet"),
        ("jobs train", "Job"),
        ("job.batch/train", "Job"),
        ("cj train", "CronJob"),
    ],
)
def test_a_kind_is_written_as_kubectl_takes_it(api, explain, words, title):
    api.add(WAITS, *(a_workload(kind, {"replicas": 0}) for kind in KINDS if kind is not POD))
    name = re.split("[ /]", words)[1]
    assert explain(*words.split()).output.startswith(f"{title} team-a/{name} has ")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["deploymnet", "roll"], 1, "→ did you mean deployment/roll?"),
        (["foo/x"], 1, "the known kinds are pod, deployment, replicaset, statefulset, daemonset, "),
        (["jobs.batch.volcano.sh/x"], 1, "No pod in namespace team-a belongs to a job."),
        (["node/n1"], 2, "for a node: vramwarden top --node n1"),
        (["no", "n1"], 2, "for a node: vramwarden top --node n1"),
        (["pod", "a", "b"], 2, "one object is explained; write KIND NAME, as deployment llama"),
        (["pod", "deployment/a"], 2, "one object is explained; write KIND NAME"),
        (["x!", "a"], 2, "'x!' is no kind; write e.g. deployment/llama"),
        (["pod", "A"], 2, "'A' is no name that Kubernetes allows"),
        ([], 2, "Missing argument '[KIND] NAME|KIND/NAME'"),
    ],
    ids=str,
)
def test_what_is_no_kind_and_no_name_is_said(explain, words, code, said):
    done = explain(*words)
    assert done.exit_code == code
    assert said in done.stdout + done.stderr


def test_the_command_ends_with_zero_where_nothing_is_wrong(api, explain):
    api.add(running()).texts[LOG] = ""
    done = explain("p", "-o", "json")
    assert (done.exit_code, json.loads(done.output)["state"]) == (0, "running")


def test_the_command_explains_a_workload_and_its_pod_in_one(api, explain):
    pod = a_pod("eval-x", "30Gi", owner="Job/eval", labels=LABELS, status=scheduled(SCHEDULER))
    api.add(a_workload(JOB, name="eval"), pod)
    done = explain("job/eval")
    assert done.exit_code == 1
    first, _, second, *_ = done.output.splitlines()
    assert first == "Job team-a/eval has 1 of 1 pods."
    assert second.startswith("Pod team-a/eval-x has waited")


def test_a_workload_without_its_pods_is_trouble_also_where_nobody_says_why(api, explain):
    api.add(a_workload(DEPLOYMENT, name="web"))
    done = explain("deploy/web")
    first, second, _ = done.output.splitlines()
    assert (done.exit_code, first) == (1, "Deployment team-a/web has 0 of 1 pods.")
    assert second == "✗ nobody says why it has no pods; does its controller run?"


@pytest.mark.parametrize("wrong", ["No_de/n1", "Pod_1", "-", "deployment/", "a/b/c"])
def test_what_cannot_be_explained_is_wrong_usage(explain, wrong):
    assert explain(wrong).exit_code == 2


def test_a_pod_that_the_user_may_not_read_is_three(api, explain):
    api.denied.add(("get", "pods"))
    done = explain("p")
    assert (done.exit_code, "403" in done.stderr) == (3, True)
