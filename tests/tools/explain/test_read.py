"""What `explain` reads, and what becomes of it where something may not be read."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.commands import runner
from tests.tools.explain.scene import DENIED, NODES, SCHEDULER, enforcer, line, scheduled, stored
from webhook.adapters.kube.client import KubeError
from webhook.core.kinds.nodes import write_gpu_node
from webhook.tools.explain.command import explain_command
from webhook.tools.explain.read import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    STATEFUL_SET,
    read_pod_facts,
    read_workload_facts,
)
from webhook.tools.shared.bounds import MOST_LOG_BYTES

CORE = "/api/v1/namespaces/team-a"
APPS = "/apis/apps/v1/namespaces/team-a"
BATCH = "/apis/batch/v1/namespaces/team-a"
GPU_NODES = "/apis/vramwarden.io/v1alpha1/gpunodes"
HISTORIES = "/apis/vramwarden.io/v1alpha1/namespaces/team-a/vramhistories"
LOG = f"{CORE}/pods/p/log"
QUOTA = 'pods "t" is forbidden: exceeded quota: q'
RUNNING = {"initContainerStatuses": [enforcer("running")]}


class Cluster:
    """Answers by path: an object, a list of objects, a text, a status; forbids what is not named.

    Of an object or a collection that is named with None it says that it does not exist.
    """

    def __init__(self, api_server):
        self.paths = {}
        self.created = (403, "cannot create resource")
        self._server = api_server
        self.kubeconfig = api_server.kubeconfig
        api_server.answers = [self._answer]

    @property
    def bodies(self):
        return [body for verb, _, _, body in self._server.asked if verb == "POST"]

    def queries(self, path, verb="GET"):
        asked = [urlsplit(url) for one, url, _, _ in self._server.asked if one == verb]
        return [
            {key: values[0] for key, values in parse_qs(one.query).items()}
            for one in asked
            if one.path == path
        ]

    @property
    def asked(self):
        return [urlsplit(url).path for _, url, _, _ in self._server.asked]

    def _answer(self, handler):
        url = urlsplit(handler.path)
        if handler.command == "POST":
            code, message = self.created
            self._send(handler, code, {"code": code, "message": message})
            return
        found = self.paths.get(url.path, 403)
        if callable(found):
            found = found({key: values[0] for key, values in parse_qs(url.query).items()})
        code = 404 if found is None else found if isinstance(found, int) else 200
        if isinstance(found, list):
            found = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found}
        elif code != 200:
            found = {"kind": "Status", "code": code, "message": f"no {url.path}"}
        self._send(handler, code, found)

    @staticmethod
    def _send(handler, code, found) -> None:
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(data)))
        if len(data) > 2**16:  # which the client may not read to its end
            handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def cluster(api_server):
    return Cluster(api_server)


def gpu_nodes():
    return [write_gpu_node(node) for node in NODES]


def waiting_pod(name="p"):
    return stored(name, "30Gi", status=scheduled(SCHEDULER))


def test_with_view_alone_a_pod_that_waits_is_explained_and_nodes_are_not_read(cluster, kube):
    other = stored("train-0", "40Gi", node="n1")
    cluster.paths = {
        f"{CORE}/pods/p": waiting_pod(),
        f"{CORE}/pods": [other],
        GPU_NODES: gpu_nodes(),
        HISTORIES: [],
    }
    facts = read_pod_facts(kube, "team-a", "p")
    assert [node.name for node in facts.nodes] == ["n1", "n2", "n3"]
    assert (facts.seen, facts.names, facts.left_out) == (None, {"u-train-0": "train-0"}, ())
    assert LOG not in cluster.asked


def test_where_nodes_may_be_read_only_those_with_gpus_are(cluster, kube):
    node = {"metadata": {"name": "n1", "labels": {"a": "b"}}}
    cluster.paths = {f"{CORE}/pods/p": waiting_pod(), "/api/v1/nodes": [node]}
    facts = read_pod_facts(kube, "team-a", "p")
    assert facts.seen["n1"].labels == {"a": "b"}
    assert cluster.queries("/api/v1/nodes")[0]["labelSelector"] == "vramwarden.io/gpu=true"


def test_what_may_not_be_read_is_said_and_the_rest_is_read(cluster, kube):
    cluster.paths = {f"{CORE}/pods/p": waiting_pod()}
    facts = read_pod_facts(kube, "team-a", "p")
    assert facts.nodes is None
    (said,) = facts.left_out
    assert said.startswith("no figures of GPUs: you may not list gpunodes; whoever installed")


def test_a_pod_that_may_not_be_read_is_an_error(cluster, kube):
    with pytest.raises(KubeError, match="403"):
        read_pod_facts(kube, "team-a", "p")


def running(**status):
    return stored("p", "8Gi", node="n1", gpus="GPU-n1-0", status=status or RUNNING)


def test_the_newest_lines_of_the_log_are_read_and_no_more(cluster, kube):
    lines = [line(n, "another") for n in range(600)]
    cluster.paths = {f"{CORE}/pods/p": running(), LOG: "\n".join(lines)}
    facts = read_pod_facts(kube, "team-a", "p")
    assert facts.log == tuple(lines[-500:])
    assert cluster.queries(LOG) == [
        {"container": "vram-enforcer", "limitBytes": str(MOST_LOG_BYTES), "tailLines": "500"}
    ]


def test_of_lines_that_are_huge_the_newest_few_are_read(cluster, kube):
    def log(query):
        return "x" * MOST_LOG_BYTES if query["tailLines"] == "500" else "newest"

    cluster.paths = {f"{CORE}/pods/p": running(), LOG: log}
    assert read_pod_facts(kube, "team-a", "p").log == ("newest",)
    assert [query["tailLines"] for query in cluster.queries(LOG)] == ["500", "20"]


def test_a_text_is_read_in_bounded_memory(cluster, kube):
    cluster.paths = {LOG: "ä" * 2**17}
    read = kube.text(LOG, 2**16)
    assert 2**15 <= len(read) <= 2**16 + 1
    assert set(read) <= {"ä", "\N{REPLACEMENT CHARACTER}"}


def test_after_a_restart_the_log_before_it_comes_first(cluster, kube):
    def log(query):
        return "before" if "previous" in query else "now"

    restarted = {"initContainerStatuses": [enforcer("running") | {"restartCount": 1}]}
    cluster.paths = {f"{CORE}/pods/p": running(**restarted), LOG: log}
    assert read_pod_facts(kube, "team-a", "p").log == ("before", "now")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (403, "the log of container vram-enforcer: you may not read pods/log here"),
        (404, "the log of container vram-enforcer: "),
    ],
)
def test_a_log_that_cannot_be_read_is_said(cluster, kube, answer, said):
    cluster.paths = {f"{CORE}/pods/p": running(), LOG: answer, GPU_NODES: gpu_nodes()}
    facts = read_pod_facts(kube, "team-a", "p")
    assert facts.log == ()
    assert [one[: len(said)] for one in facts.left_out] == [said]


@pytest.mark.parametrize("status", [{"initContainerStatuses": [enforcer("waiting")]}, {"x": 1}])
def test_of_an_enforcer_that_never_ran_no_log_is_read(cluster, kube, status):
    cluster.paths = {f"{CORE}/pods/p": running(**status)}
    read_pod_facts(kube, "team-a", "p")
    assert LOG not in cluster.asked


def test_of_a_pod_without_a_demand_nothing_else_is_read(cluster, kube):
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": []}}
    cluster.paths = {f"{CORE}/pods/p": pod}
    read_pod_facts(kube, "team-a", "p")
    assert set(cluster.asked) <= {f"{CORE}/pods/p", GPU_NODES, HISTORIES}


def test_the_last_run_of_a_pod_that_is_gone_is_read(cluster, kube):
    run = {"pod": "p", "endedAt": "2026-11-18T10:00:00Z", "askedMi": 1024, "gpus": 1}
    history = {
        "metadata": {"name": "job-j", "namespace": "team-a"},
        "status": {
            "workload": {"kind": "Job", "name": "j"},
            "runs": [run | {"peakMi": 512, "stops": 0, "seconds": 60}],
        },
    }
    cluster.paths = {f"{CORE}/pods/p": None, HISTORIES: [history], f"{CORE}/pods": []}
    facts = read_pod_facts(kube, "team-a", "p")
    assert facts.pod is None
    assert facts.histories[0].runs[0].pod == "p"


def owned(kind, name, uid, **more):
    return {
        "metadata": {
            "name": name,
            "uid": uid,
            "ownerReferences": [{"controller": True, "uid": more.pop("by")}],
            "creationTimestamp": more.pop("at", "2026-01-01T00:00:00Z"),
        },
        "kind": kind,
        **more,
    }


SELECTOR = {"selector": {"matchLabels": {"app": "train"}}}


def test_a_deployment_that_is_denied_says_so_itself_and_no_event_is_read(cluster, kube):
    condition = {"type": "ReplicaFailure", "status": "True", "message": DENIED + "TooLarge: x: y"}
    status = {"conditions": [condition]}
    deployment = {"metadata": {"uid": "d"}, "spec": {"replicas": 3, **SELECTOR}, "status": status}
    mine = owned("Pod", "a", "p1", by="r", status={"phase": "Running"})
    theirs = owned("Pod", "b", "p2", by="other", status={"phase": "Running"})
    cluster.paths = {
        f"{APPS}/deployments/train": deployment,
        f"{APPS}/replicasets": [owned("ReplicaSet", "r", "r", by="d")],
        f"{CORE}/pods": [mine, theirs],
    }
    facts, pod = read_workload_facts(kube, DEPLOYMENT, "team-a", "train")
    assert (facts.exists, facts.wanted, facts.pods) == (True, 3, 1)
    assert facts.refusals == (DENIED + "TooLarge: x: y",)
    assert pod.name == "a"
    assert f"{CORE}/events" not in cluster.asked
    assert cluster.queries(f"{CORE}/pods")[0]["labelSelector"] == "app=train"


@pytest.mark.parametrize("kind", [JOB, STATEFUL_SET])
def test_where_no_condition_says_it_the_newest_event_does(cluster, kube, kind):
    path = BATCH if kind is JOB else APPS
    events = [
        {"message": "older", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {"message": "newer", "lastTimestamp": "2026-01-02T00:00:00Z"},
    ]
    cluster.paths = {
        f"{path}/{kind.name.lower()}s/train": {"metadata": {"uid": "j"}, "spec": SELECTOR},
        f"{CORE}/pods": [],
        f"{CORE}/events": events,
    }
    facts, pod = read_workload_facts(kube, kind, "team-a", "train")
    assert (facts.refusals, facts.wanted, pod) == (("newer",), 1, None)
    fields = cluster.queries(f"{CORE}/events")[0]["fieldSelector"]
    assert fields == "involvedObject.uid=j,reason=FailedCreate"


def test_where_nothing_is_left_of_a_denial_a_pod_is_tried_and_not_stored(cluster, kube):
    template = {
        "metadata": {"annotations": {"vramwarden.io/gpu-memory": "8GB"}, "labels": {"a": "b"}},
        "spec": {"containers": []},
    }
    job = {"metadata": {"uid": "j", "name": "train"}, "spec": {**SELECTOR, "template": template}}
    said = 'admission webhook "mutate.vramwarden.io" denied the request: TooLarge: x: y'
    cluster.paths = {f"{BATCH}/jobs/train": job, f"{CORE}/pods": [], f"{CORE}/events": []}
    cluster.created = (403, said)
    facts, _ = read_workload_facts(kube, JOB, "team-a", "train")
    assert (facts.refusals, facts.tried) == ((said,), True)
    (body,) = cluster.bodies
    assert body["metadata"] == {**template["metadata"], "generateName": "train-"}
    assert body["spec"] == template["spec"]
    (query,) = cluster.queries(f"{CORE}/pods", "POST")
    assert query["dryRun"] == "All"


@pytest.mark.parametrize(
    ("created", "refusals", "left_out"),
    [
        ((200, ""), (), 0),
        ((403, 'pods is forbidden: User "v" cannot create resource "pods"'), (), 1),
        (
            (403, 'pods "t" is forbidden: exceeded quota: q'),
            ('pods "t" is forbidden: exceeded quota: q',),
            0,
        ),
        ((503, "away"), (), 1),
    ],
)
def test_what_the_trial_says_is_told_and_a_missing_right_is_none(
    cluster, kube, created, refusals, left_out
):
    job = {"metadata": {"uid": "j"}, "spec": SELECTOR}
    cluster.paths = {f"{BATCH}/jobs/train": job, f"{CORE}/pods": [], f"{CORE}/events": []}
    cluster.created = created
    facts, _ = read_workload_facts(kube, JOB, "team-a", "train")
    assert (facts.refusals, len(facts.left_out)) == (refusals, left_out)


def test_events_of_the_past_say_nothing_where_all_pods_are_there(cluster, kube):
    pod = owned("Pod", "a", "p", by="s", status={"phase": "Running"})
    cluster.paths = {
        f"{APPS}/statefulsets/train": {"metadata": {"uid": "s"}, "spec": SELECTOR},
        f"{CORE}/pods": [pod],
        f"{CORE}/events": [{"message": "denied", "lastTimestamp": "2026-01-01T00:00:00Z"}],
    }
    facts, _ = read_workload_facts(kube, STATEFUL_SET, "team-a", "train")
    assert facts.refusals == ()


@pytest.mark.parametrize(("kind", "chosen"), [(STATEFUL_SET, "runs"), (JOB, "evicted")])
def test_a_pod_that_failed_long_ago_is_explained_of_a_job_alone(cluster, kube, kind, chosen):
    path = BATCH if kind is JOB else APPS
    ready = [{"type": "Ready", "status": "True"}]
    cluster.paths = {
        f"{path}/{kind.name.lower()}s/train": {"metadata": {"uid": "s"}, "spec": SELECTOR},
        f"{CORE}/pods": [
            owned("Pod", "evicted", "p", by="s", status={"phase": "Failed"}),
            owned("Pod", "runs", "q", by="s", status={"phase": "Running", "conditions": ready}),
        ],
    }
    _, pod = read_workload_facts(kube, kind, "team-a", "train")
    assert pod.name == chosen


def test_events_that_may_not_be_read_are_said(cluster, kube):
    cluster.paths = {
        f"{BATCH}/jobs/train": {"metadata": {"uid": "j"}, "spec": SELECTOR},
        f"{CORE}/pods": [],
    }
    facts, _ = read_workload_facts(kube, JOB, "team-a", "train")
    assert facts.left_out[0].startswith("Events: ")
    assert facts.left_out[1:] == ("whether its pods are denied: you may not try one (create pods)",)


def a_held(kind, **more):
    return {"type": kind, "status": "True", **more}


@pytest.mark.parametrize(
    ("status", "suspend", "ended", "failed"),
    [
        (
            {"failed": 3, "conditions": [a_held("Failed", reason="BackoffLimitExceeded")]},
            False,
            "has failed: 0 pods succeeded, 3 failed",
            "BackoffLimitExceeded",
        ),
        (
            {"conditions": [a_held("FailureTarget", reason="Deadline", message="too long")]},
            False,
            "has failed: 0 pods succeeded, 0 failed",
            "Deadline: too long",
        ),
        (
            {"succeeded": 1, "failed": 2, "conditions": [a_held("Complete")]},
            False,
            "is complete: 1 pod succeeded, 2 failed",
            "",
        ),
        ({"succeeded": 2}, True, "is suspended: 2 pods succeeded, 0 failed", ""),
        ({"conditions": [{"type": "Failed", "status": "False"}]}, False, "", ""),
    ],
)
def test_what_became_of_a_job_is_said(cluster, kube, status, suspend, ended, failed):
    spec = {**SELECTOR, "suspend": suspend}
    cluster.paths = {
        f"{BATCH}/jobs/train": {"metadata": {"uid": "j"}, "spec": spec, "status": status},
        f"{CORE}/pods": [],
        f"{CORE}/events": [],
    }
    facts, _ = read_workload_facts(kube, JOB, "team-a", "train")
    assert (facts.ended, facts.failed, facts.wanted) == (ended, failed, 0 if ended else 1)


def test_of_a_cron_job_the_newest_job_is_explained(cluster, kube):
    jobs = [
        owned("Job", "old", "j1", by="c", at="2026-01-01T00:00:00Z", spec=SELECTOR),
        owned("Job", "new", "j2", by="c", at="2026-01-02T00:00:00Z", spec=SELECTOR),
        owned("Job", "other", "j3", by="x", at="2026-01-03T00:00:00Z", spec=SELECTOR),
    ]
    pods = [owned("Pod", "of-old", "a", by="j1"), owned("Pod", "of-new", "b", by="j2")]
    cluster.paths = {
        f"{BATCH}/cronjobs/train": {"metadata": {"uid": "c"}},
        f"{BATCH}/jobs": jobs,
        f"{CORE}/pods": pods,
    }
    facts, pod = read_workload_facts(kube, CRON_JOB, "team-a", "train")
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
        (JOB, {}, {"conditions": [{"type": "Failed", "status": "True"}]}, 0),
    ],
)
def test_how_many_pods_there_should_be(cluster, kube, kind, spec, status, wanted):
    path = f"{BATCH if kind is JOB else APPS}/{kind.name.lower()}s/train"
    cluster.paths = {
        path: {"metadata": {"uid": "w"}, "spec": {**spec, **SELECTOR}, "status": status}
    }
    facts, _ = read_workload_facts(kube, kind, "team-a", "train")
    assert facts.wanted == wanted


@pytest.mark.parametrize(
    ("kind", "template", "misplaced"),
    [
        (DEPLOYMENT, {}, ("vramwarden.io/gpu-memory",)),
        (DEPLOYMENT, {"vramwarden.io/gpu-memory": "8Gi"}, ()),
        (JOB, {}, ("vramwarden.io/gpu-memory",)),
        (CRON_JOB, {}, ("vramwarden.io/gpu-memory",)),
    ],
)
def test_an_annotation_at_the_wrong_level_is_seen(cluster, kube, kind, template, misplaced):
    path = f"{APPS if kind is DEPLOYMENT else BATCH}/{kind.name.lower()}s/train"
    metadata = {"uid": "w", "annotations": {"vramwarden.io/gpu-memory": "8Gi", "a": "b"}}
    spec = {"template": {"metadata": {"annotations": template}}, "replicas": 0, **SELECTOR}
    cluster.paths = {path: {"metadata": metadata, "spec": spec}, f"{BATCH}/jobs": []}
    facts, _ = read_workload_facts(kube, kind, "team-a", "train")
    assert facts.misplaced == misplaced


def test_of_a_workload_that_does_not_exist_others_are_named(cluster, kube):
    cluster.paths = {
        f"{APPS}/deployments/trian": None,
        f"{APPS}/deployments": [{"metadata": {"name": "train", "uid": "x"}}],
    }
    facts, pod = read_workload_facts(kube, DEPLOYMENT, "team-a", "trian")
    assert (facts.exists, facts.others, pod) == (False, ("train",), None)


@pytest.fixture
def explain(cluster):
    """Run the command as a user does."""

    def run(*arguments):
        given = [*arguments, "-n", "team-a", "--kubeconfig", str(cluster.kubeconfig)]
        return runner().invoke(explain_command, given)

    return run


def test_the_command_explains_a_pod_and_ends_with_one_where_something_blocks(cluster, explain):
    cluster.paths = {f"{CORE}/pods/p": waiting_pod(), f"{CORE}/pods": [], GPU_NODES: gpu_nodes()}
    done = explain("p")
    assert done.exit_code == 1
    assert done.output.startswith("Pod team-a/p has waited")
    assert "\n✗ no GPU has 30Gi free now" in done.output
    assert explain("pod/p").output.splitlines()[1:] == done.output.splitlines()[1:]


def test_the_command_ends_with_zero_where_nothing_is_wrong(cluster, explain):
    cluster.paths = {f"{CORE}/pods/p": running(), LOG: "", GPU_NODES: gpu_nodes()}
    done = explain("p", "-o", "json")
    assert done.exit_code == 0
    assert json.loads(done.output)["state"] == "running"


def test_the_command_explains_a_workload_and_its_pod_in_one(cluster, explain):
    pod = waiting_pod("eval-x")
    owner = {"controller": True, "uid": "j", "kind": "Job", "name": "eval"}
    pod["metadata"]["ownerReferences"] = [owner]
    cluster.paths = {
        f"{BATCH}/jobs/eval": {"metadata": {"uid": "j"}, "spec": SELECTOR},
        f"{CORE}/pods": [pod],
        GPU_NODES: gpu_nodes(),
    }
    done = explain("job/eval")
    assert done.exit_code == 1
    first, _, second, *_ = done.output.splitlines()
    assert first == "Job team-a/eval has 1 of 1 pods."
    assert second.startswith("Pod team-a/eval-x has waited")


@pytest.mark.parametrize("wrong", ["node/n1", "Pod_1", "-", "deployment/", "a/b/c"])
def test_what_cannot_be_explained_is_wrong_usage(explain, wrong):
    assert explain(wrong).exit_code == 2


def test_a_cluster_that_does_not_answer_is_three(tmp_path):
    missing = ["p", "--kubeconfig", str(tmp_path / "none")]
    done = runner().invoke(explain_command, missing)
    assert (done.exit_code, "there is no such file" in done.stderr) == (3, True)


def test_a_pod_that_the_user_may_not_read_is_three(cluster, explain):
    done = explain("p")
    assert done.exit_code == 3
    assert "403" in done.stderr
