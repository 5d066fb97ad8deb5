"""Histories: runs that replicas write for ended pods, and warnings for new pods."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.kinds.test_ended_pods import (
    ENDED,
    FINISHED,
    GIB,
    GPUS,
    STATE,
    WORDS,
    a_raw,
    figures,
    terminated,
)
from tests.core.kinds.test_histories import LLAMA, a_run
from tests.support.api_server import ApiServer
from tests.support.gpu_nodes import GPU_NODES_PATH
from tests.support.pods import a_pod as a_new_pod
from tests.support.pods import a_policy, a_request, a_review
from tests.support.recorded_log import RecordedLog
from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed
from webhook.adapters.kube.histories import HistoriesApi, StoredHistory
from webhook.core.admission.decision import Phase
from webhook.core.kinds.histories import MAX_AGE_S, History
from webhook.core.kinds.nodes import read_time, write_gpu_node
from webhook.core.kinds.workloads import Workload, find_workload
from webhook.server import histories, history_writer
from webhook.server.histories import Advisor, HistoryCache
from webhook.server.history_writer import WRITE_INTERVAL_S, HistoryWriter
from webhook.server.metrics import HistoryMetrics, Metrics
from webhook.server.reviews import PodReviews

ENDED_S = read_time(ENDED) or 0.0
DOWN = KubeError("does not answer")


def _key(history):
    return history.namespace, Workload(history.kind, history.workload)


class Api(ApiServer):
    """An API server with histories and node figures; the test sets the time."""

    def __init__(self):
        super().__init__()
        self.time_s = ENDED_S + 5
        self.histories = HistoriesApi(self.kube(now_s=lambda: self.time_s))

    @property
    def stored(self):
        """Return the stored histories, keyed by namespace and workload."""
        objects = [item for path, item in self.objects.items() if "/vramhistories/" in path]
        found = map(self.histories.all.project, objects)
        return {_key(item.history): item for item in found}

    @property
    def reads(self):
        return sum("/vramhistories/" in path for _, path, _ in self.sent("GET"))

    @property
    def writes(self):
        return len(self.sent("POST", "PATCH"))

    @property
    def figures_read(self):
        """Return the nodes whose figures were read."""
        return [path.split("/")[-1] for _, path, _ in self.sent("GET") if "/gpunodes/" in path]

    def put_figures(self, figures):
        self.put(f"{GPU_NODES_PATH}/{figures.name}", write_gpu_node(figures))


class Replica:
    """A cache and a writer without threads."""

    def __init__(self, api):
        self.api = api
        self.now_s = 1000.0
        self.log = RecordedLog()
        self.metrics = Metrics()
        self.known = HistoryCache(api.histories, self.log)
        self.recorder = HistoryWriter(
            api.histories,
            self.known,
            lambda _node: GPUS,
            HistoryMetrics(self.metrics),
            self.log,
            lambda: self.now_s,
        )

    def sync_watch(self):
        """Send the cache a list of all stored histories."""
        self.known.informer.on_report(Listed(list(self.api.stored.values())))

    def run_steps(self, after_s=10.0):
        self.now_s += after_s
        self.recorder.step(0.0)
        self.now_s += after_s
        self.recorder.step(0.0)

    def counts(self, name):
        lines = self.metrics.exposition().decode().splitlines()
        found = (line.split() for line in lines if line.startswith(f"vramwarden_history_{name}_t"))
        return {key.split('"')[1]: int(float(value)) for key, value in found if float(value)}


def a_pod(number, **more):
    """Return an ended pod, both as stored and as tracked by placement."""
    raw = a_raw(enforcer=terminated(WORDS), **more)
    name = f"llama-5d9c7-{number}"
    raw["metadata"]["name"] = name
    return raw, replace(FINISHED, uid=f"u{number}", name=f"team-a/{name}")


KEY = ("team-a", Workload("Deployment", "llama"))


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def replica(api):
    return Replica(api)


def runs(api):
    stored = api.stored.get(KEY)
    return [run.pod for run in stored.history.runs] if stored else []


def test_the_peak_of_an_ended_pod_is_in_its_workloads_history(api, replica):
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    (run,) = api.stored[KEY].history.runs
    assert (run.pod, run.peak_bytes, run.product) == ("llama-5d9c7-1", 6 * GIB, "H100")
    assert replica.counts("runs") == {"kept": 1}
    assert replica.counts("writes") == {"written": 1}
    assert replica.log.lines == []


def test_a_running_pod_has_no_run(api, replica):
    raw, state = a_pod(1)
    replica.recorder.on_pod(raw, replace(state, finished=False))
    replica.run_steps()
    assert (api.stored, api.reads) == ({}, 0)


def test_a_workload_is_written_once_a_minute_and_further_runs_wait(api, replica):
    for number in range(3):
        replica.recorder.on_pod(*a_pod(number))
    replica.run_steps()
    assert (len(runs(api)), api.writes) == (3, 1)
    for number in range(3, 9):
        replica.recorder.on_pod(*a_pod(number))
        replica.run_steps(after_s=4.0)
    assert (len(runs(api)), api.writes) == (3, 1)
    replica.run_steps(after_s=WRITE_INTERVAL_S)
    assert (len(runs(api)), api.writes) == (9, 2)


def test_a_pod_that_is_reported_again_sends_no_request(api, replica):
    for _ in range(5):
        replica.recorder.on_pod(*a_pod(1))
        replica.run_steps(after_s=WRITE_INTERVAL_S)
    assert (api.reads, api.writes) == (1, 1)


def test_a_new_replica_counts_no_pod_twice_and_reads_nothing_twice(api, replica):
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    for learns in (False, True):
        other = Replica(api)
        if learns:
            other.sync_watch()
        api.asked.clear()
        other.recorder.on_pod(*a_pod(1))
        other.run_steps()
        assert (api.reads, api.writes) == (0 if learns else 1, 0)
    assert runs(api) == ["llama-5d9c7-1"]


def test_a_write_is_repeated_after_a_conflict_with_another_replica(api, replica):
    other = Replica(api)
    other.recorder.on_pod(*a_pod(2))
    api.fails("POST .*/vramhistories", lambda _: other.run_steps())
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    assert sorted(runs(api)) == ["llama-5d9c7-1", "llama-5d9c7-2"]
    assert replica.counts("writes") == {"written": 1, "conflict": 1}


@pytest.mark.parametrize("code", [0, 403, 404])
def test_runs_that_cannot_be_written_wait_and_are_dropped_in_the_end(api, replica, code):
    api.fails("/vramhistories", code, forever=True)
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    replica.run_steps(after_s=WRITE_INTERVAL_S)
    assert replica.log.said == [("warning", "histories cannot be written; retrying")]
    assert replica.counts("runs") == {}
    replica.run_steps(after_s=history_writer.GIVE_UP_S)
    assert replica.counts("runs") == {"dropped": 1}
    api.recovers()
    replica.run_steps(after_s=WRITE_INTERVAL_S)
    assert api.stored == {}


def test_a_run_that_fails_delays_no_other_workload(api, replica):
    """Otherwise each step would fail again, and no history would ever be written."""

    def fail_for_odd(request):
        if request.body["status"]["workload"]["name"] == "odd":
            raise ValueError("year 0 is out of range")

    api.fails("POST .*/vramhistories", fail_for_odd, forever=True)
    raw, state = a_pod(1)
    raw["metadata"]["labels"]["vramwarden.io/workload"] = "odd"
    replica.recorder.on_pod(raw, state)
    replica.recorder.on_pod(*a_pod(2))
    replica.run_steps()
    assert runs(api) == ["llama-5d9c7-2"]
    assert replica.counts("runs") == {"dropped": 1, "kept": 1}
    assert replica.log.said == [("exception", "keeping a history failed")]
    assert not replica.recorder._pending


def test_runs_that_could_not_be_written_are_written_later(api, replica):
    api.fails("/vramhistories", 0)
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    replica.run_steps(after_s=WRITE_INTERVAL_S)
    assert runs(api) == ["llama-5d9c7-1"]
    assert replica.log.said[-1] == ("info", "histories are written again")


def test_without_a_termination_message_the_sentrys_peak_counts(api, replica):
    raw, state = a_pod(1)
    raw["status"]["initContainerStatuses"][0]["state"] = terminated()
    api.put_figures(figures(7, 1, uid=state.uid))
    replica.recorder.on_pod(raw, state)
    replica.run_steps()
    (run,) = api.stored[KEY].history.runs
    assert (run.peak_bytes, run.stops, api.figures_read) == (7 * GIB, 1, ["n1"])


def test_pods_that_end_together_need_one_read_of_their_nodes_figures(api, replica):
    for number in range(5):
        replica.recorder.on_pod(*a_pod(number))
    replica.run_steps()
    assert api.figures_read == ["n1"]


def test_no_figures_are_read_for_pods_that_ended_long_ago(api, replica):
    api.time_s = ENDED_S + 3600
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    assert (api.figures_read, runs(api)) == ([], ["llama-5d9c7-1"])


def test_runs_are_written_without_the_sentrys_figures(api, replica):
    api.denied.add(("get", "gpunodes"))
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    assert runs(api) == ["llama-5d9c7-1"]


def test_a_pod_of_a_lost_node_ends_when_it_is_deleted(api, replica):
    raw, state = a_raw(enforcer={"running": {}}, deleted=True), STATE
    api.put_figures(figures(7, 0))
    api.time_s = (read_time(raw["metadata"]["deletionTimestamp"]) or 0.0) + 5
    replica.recorder.on_pod(raw, state)
    replica.run_steps()
    assert api.stored == {}
    replica.recorder.on_end(replace(state, gone=True))
    replica.run_steps()
    (run,) = api.stored[KEY].history.runs
    assert run.peak_bytes == 7 * GIB


def test_a_pod_with_a_termination_message_that_is_deleted_is_counted_once(api, replica):
    raw, state = a_raw(enforcer={"running": {}}, deleted=True), STATE
    other = Replica(api)
    other.recorder.on_pod(raw, state)  # its watch failed: it only sees the deletion
    other.recorder.on_end(replace(state, gone=True))
    replica.recorder.on_pod(raw, state)
    replica.recorder.on_pod(a_raw(enforcer=terminated(WORDS), deleted=True), state)
    replica.recorder.on_end(replace(state, gone=True))
    for item in (replica, other):
        item.run_steps()
    assert len(api.stored[KEY].history.runs) == 1


def test_the_histories_of_a_namespace_are_limited(api, replica, monkeypatch):
    monkeypatch.setattr(histories, "MAX_HISTORIES_PER_NAMESPACE", 1)
    api.histories.store(History("team-a", "Pod", "x"), "")
    replica.sync_watch()
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    assert KEY not in api.stored
    assert replica.counts("runs") == {"dropped": 1}
    why = "namespace team-a has as many histories as it may"
    assert replica.log.lines == [("warning", "a history is not begun", {"why": why})]


def test_at_the_limit_the_namespace_with_most_histories_loses_one(api, replica, monkeypatch):
    """One tenant's namespaces reach the limit. Other namespaces still get their share."""
    monkeypatch.setattr(histories, "MAX_HISTORIES_PER_NAMESPACE", 3)
    monkeypatch.setattr(histories, "MAX_HISTORIES", 5)
    for number, namespace in enumerate(["a-1", "a-1", "a-1", "a-2", "a-2"]):
        history = History(namespace, "Pod", f"w{number}", runs=(a_run(ended_s=ENDED_S - number),))
        api.histories.store(history, "")
    for number, workload in enumerate(("x", "y")):
        replica.sync_watch()
        raw, state = a_pod(number)
        raw["metadata"]["labels"] = {"vramwarden.io/workload": workload}
        replica.recorder.on_pod(raw, state)
        replica.run_steps()
    left = sorted((namespace, workload.name) for namespace, workload in api.stored)
    assert left == [
        ("a-1", "w0"),
        ("a-1", "w1"),  # w2 ended first
        ("a-2", "w3"),
        ("a-2", "w4"),
        ("team-a", "x"),  # y is not created: no namespace has two more than team-a
    ]
    assert replica.counts("runs") == {"kept": 1, "dropped": 1}


def test_the_memory_that_tenants_can_use_is_limited(api, monkeypatch):
    monkeypatch.setattr(history_writer, "MAX_QUEUED", 3)
    replica = Replica(api)
    recorder = replica.recorder
    for number in range(50):
        raw, state = a_pod(number, deleted=True)
        raw["metadata"]["ownerReferences"][0]["name"] = f"llama{number}-5d9c7"
        running = a_raw(enforcer={"running": {}}, deleted=True)
        recorder.on_pod(running, replace(state, finished=False, uid=f"r{number}"))
        recorder.on_pod(raw, state)
    assert (recorder._queue.qsize(), len(recorder._terminating), len(recorder._ended)) == (3, 3, 3)
    for number in range(50):  # each in a separate step
        recorder.step(0.0)
        raw, state = a_pod(number + 50)
        raw["metadata"]["ownerReferences"][0]["name"] = f"llama{number}-5d9c7"
        recorder.on_pod(raw, state)
    assert len(recorder._pending) == 3


def test_waiting_runs_of_one_workload_are_limited(api, replica):
    api.fails("/vramhistories", 0, forever=True)
    for number in range(50):
        replica.recorder.on_pod(*a_pod(number))
    replica.run_steps()
    assert len(replica.recorder._pending[KEY].runs) == 20


def test_a_history_is_deleted_thirty_days_after_its_last_run(api, replica):
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    replica.sync_watch()
    replica.run_steps(after_s=2 * history_writer.SWEEP_INTERVAL_S)
    assert runs(api) == ["llama-5d9c7-1"]
    api.time_s = ENDED_S + MAX_AGE_S + 10
    stored = api.stored[KEY]
    grown = replace(stored.history, runs=(replace(stored.history.runs[0], ended_s=api.time_s),))
    api.histories.store(grown, stored.version)  # before the watch reports it
    replica.run_steps(after_s=2 * history_writer.SWEEP_INTERVAL_S)
    assert KEY in api.stored
    api.histories.store(stored.history, api.stored[KEY].version)
    replica.run_steps(after_s=2 * history_writer.SWEEP_INTERVAL_S)
    assert api.stored == {}
    assert replica.counts("writes") == {"written": 1, "deleted": 1}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ends", "turn", "restart", "learn", "down", "up"]),
        st.integers(0, 1),
        st.integers(0, 29),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_history_shrinks_and_no_pod_counts_twice_in_any_order_of_events(steps):
    api = Api()
    before, heard, is_down = [], set(), False
    replicas = [Replica(api), Replica(api)]
    for step, who, number in steps:
        replica = replicas[who]
        if step == "ends":
            replica.recorder.on_pod(*a_pod(number))
            if not is_down:
                replica.run_steps(after_s=WRITE_INTERVAL_S)
                heard.add(f"llama-5d9c7-{number}")
        elif step == "turn":
            replica.run_steps(after_s=WRITE_INTERVAL_S)
        elif step == "restart":
            replicas[who] = Replica(api)
        elif step == "learn":
            replica.sync_watch()
        elif step == "down":
            is_down = True
            api.fails("/vramhistories", 0, forever=True)
        else:
            is_down = False
            api.recovers()
        found = runs(api)
        assert len(found) == len(set(found))
        assert len(found) >= max(len(before), min(20, len(heard)))
        before = found


LLAMA_KEY = {"ownerReferences": [{"kind": "ReplicaSet", "name": "llama-1", "controller": True}]}
METADATA = LLAMA_KEY | {"labels": {"pod-template-hash": "1"}}
STORED = StoredHistory(LLAMA, "1")
OTHER = StoredHistory(replace(LLAMA, namespace="team-b"), "1")
LESS = (
    "asks for 16Gi; the last 20 pods of Deployment llama peaked at 6.1Gi; "
    "7.25Gi would do (vramwarden advise)"
)
NEVER = (
    "ask for 79Gi or less; 90Gi is more than the largest GPU here has: this pod will never start"
)


def a_cache(*reports):
    """Return a cache after these reports."""
    known = HistoryCache(Api().histories, RecordedLog())
    for report in reports:
        known.informer.on_report(report)
    return known


@pytest.mark.parametrize(
    ("reports", "warned"),
    [
        ([], ""),
        ([Listed([STORED, None])], LESS),
        ([Listed([STORED], watched=False)], ""),
        ([Listed([OTHER])], ""),
        ([Listed([]), Changed("ADDED", STORED)], LESS),
        ([Listed([STORED]), Changed("MODIFIED", None)], LESS),
        ([Listed([STORED]), Changed("DELETED", STORED)], ""),
        ([Listed([STORED]), Listed([])], ""),
        ([Listed([STORED]), Failed(DOWN)], ""),
        ([Listed([STORED]), Failed(DOWN), Listed([STORED])], LESS),
    ],
)
def test_a_new_pod_is_warned_while_the_watch_is_current(reports, warned):
    advisor = Advisor(a_cache(*reports), lambda: None)
    assert advisor.warn("team-a", METADATA, 16 * GIB) == warned


def test_a_warning_is_cached_until_the_history_or_the_gpus_change(monkeypatch):
    known, made = a_cache(Listed([STORED])), []
    gpu = [79 * GIB]
    advisor = Advisor(known, lambda: gpu[0])
    real = histories.warn
    monkeypatch.setattr(histories, "warn", lambda *given: made.append(given) or real(*given))
    monkeypatch.setattr(histories, "MAX_CACHED_ADVICE", 2)

    def warn_for(reviews=16):
        return advisor.warn("team-a", METADATA, reviews * GIB)

    assert [warn_for(), warn_for(), warn_for(15), warn_for(15)] == [
        LESS,
        LESS,
        *2 * [LESS.replace("16", "15")],
    ]
    assert len(made) == 2
    known.informer.on_report(
        Changed("MODIFIED", StoredHistory(replace(LLAMA, runs=LLAMA.runs[:4]), "2"))
    )
    assert [warn_for(), warn_for()] == ["", ""]
    gpu[0] = 8 * GIB
    assert warn_for().endswith("this pod will never start")
    known.informer.on_report(Changed("DELETED", STORED))
    gpu[0] = 79 * GIB
    assert warn_for() == ""
    for reviews in range(10, 20):
        warn_for(reviews)
    known.informer.on_report(Changed("ADDED", STORED))
    for reviews in range(10, 20):
        warn_for(reviews)
        assert len(advisor._cached) <= 2


def test_a_pod_larger_than_every_gpu_is_warned_without_a_history():
    known = a_cache()
    assert Advisor(known, lambda: 79 * GIB).warn("team-a", {}, 90 * GIB) == NEVER
    assert Advisor(known, lambda: None).warn("team-a", {}, 90 * GIB) == ""


def test_the_author_of_a_workload_is_warned_like_its_pods():
    known = a_cache(Listed([STORED]))
    workload = find_workload(METADATA)
    review = replace(
        a_request({}), kind=f"apps/{workload.kind}", name=workload.name, namespace="team-a"
    )
    assert Advisor(known, lambda: None).warn_author(review, {}, 16 * GIB) == LESS
    other = replace(review, name="other")
    assert Advisor(known, lambda: None).warn_author(other, {}, 16 * GIB) == ""


class AdvisedReviews:
    """Reviews of pods with the warnings that `warn_for` returns."""

    def __init__(self):
        self.says = lambda *_: ""
        self.asked = []
        self.log = RecordedLog()
        self.reviews = PodReviews(a_policy, Metrics(), self.log, self.warn)

    def warn(self, namespace, metadata, requested_bytes):
        self.asked.append((namespace, metadata["name"], requested_bytes))
        return self.says()

    def creates(self, pod):
        body = json.dumps(a_review(pod)).encode()
        answers = [self.reviews.answer(phase, body) for phase in (Phase.MUTATE, Phase.VALIDATE)]
        responses = [json.loads(answer.body)["response"] for answer in answers]
        return [response.get("warnings", []) for response in responses], responses[0]["allowed"]


def test_a_warning_is_returned_once_and_not_cached_with_the_template():
    reviews = AdvisedReviews()
    found = []
    for warn_for in ("too much", "", "too little", "", "too much"):
        reviews.says = lambda warn_for=warn_for: warn_for
        found.append(reviews.creates(a_new_pod("8Gi"))[0])
    path = "metadata.annotations[vramwarden.io/gpu-memory]"
    said = ["too much", "", "too little", "", "too much"]
    assert found == [[[f"{path}: {line}"] if line else [], []] for line in said]
    assert reviews.asked == 5 * [("team-a", "train", 8 * GIB)]


def test_a_pod_without_a_request_gets_no_advice():
    reviews = AdvisedReviews()
    assert reviews.creates(a_new_pod()) == ([[], []], True)
    assert reviews.asked == []


def test_a_pod_is_decided_although_advice_fails():
    reviews = AdvisedReviews()
    reviews.says = lambda: 1 / 0
    assert reviews.creates(a_new_pod("8Gi")) == ([[], []], True)
    assert ("exception", "advice failed", {}) in reviews.log.lines


def history_with_runs(namespace, number):
    return StoredHistory(replace(LLAMA, namespace=namespace, workload=f"w{number}"), "1")


def cached_names(known, namespace):
    found = [known.get(namespace, Workload("Deployment", f"w{number}")) for number in range(20)]
    return [number for number, history in enumerate(found) if history]


def test_histories_are_limited_per_namespace_and_in_all(monkeypatch):
    """The limits also apply to histories that users write by hand."""
    monkeypatch.setattr(histories, "MAX_HISTORIES_PER_NAMESPACE", 2)
    monkeypatch.setattr(histories, "MAX_HISTORIES", 4)
    greedy = [history_with_runs("a-greedy", number) for number in range(9)]
    known = a_cache(Listed([*greedy, history_with_runs("b", 0)]))
    known.informer.on_report(Changed("ADDED", history_with_runs("a-greedy", 9)))
    known.informer.on_report(Changed("MODIFIED", history_with_runs("b", 0)))
    assert (cached_names(known, "a-greedy"), cached_names(known, "b")) == ([0, 1], [0])
    assert [known.has_room(namespace) for namespace in ("a-greedy", "b", "c")] == [
        False,
        True,
        True,
    ]
    known.informer.on_report(Changed("ADDED", history_with_runs("b", 1)))
    known.informer.on_report(Changed("ADDED", history_with_runs("c", 0)))
    assert (cached_names(known, "b"), cached_names(known, "c")) == ([0, 1], [])
    assert not known.has_room("c")
    for gone in (history_with_runs("a-greedy", 0), history_with_runs("a-greedy", 9)):
        known.informer.on_report(Changed("DELETED", gone))
    known.informer.on_report(Changed("ADDED", history_with_runs("c", 0)))
    assert (cached_names(known, "a-greedy"), cached_names(known, "c")) == ([1], [0])


def test_an_object_of_another_workload_is_not_changed(api, replica):
    replica.recorder.on_pod(*a_pod(1))
    replica.run_steps()
    before = api.stored
    raw, state = a_pod(2)
    owner = {"kind": "deployment", "name": "llama", "controller": True}
    raw["metadata"]["ownerReferences"] = [owner]
    replica.recorder.on_pod(raw, state)
    replica.run_steps()
    assert api.stored == before
    assert (api.writes, replica.counts("runs")) == (1, {"kept": 1, "dropped": 1})
