"""Decides a binding: which GPUs, recorded in the node's list before the API server may go on.

The write makes this safe: the list's `resourceVersion` must be the one that was decided on, so of
two replicas, or of a replica and an old watch, only one can succeed. The rest saves requests: all
that wait for a node are planned together, and written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from webhook.adapters.kube.errors import KubeError
from webhook.adapters.kube.placement import GpuNode, PlacementApi, StoredList
from webhook.core.nvidia.variables import DeviceNames
from webhook.core.placement.assignment_codec import Whole
from webhook.core.placement.assignments import (
    AS_READ,
    Assignment,
    Assignments,
    Draft,
    Terms,
    adopt,
    complete,
    plan_all,
    to_adopt,
)
from webhook.core.placement.binding_review import (
    Binding,
    BindingOutcome,
    BindingReason,
    BindingVerdict,
)
from webhook.core.placement.fit import (
    Denial,
    unguarded_node,
    unknown_gpus,
    unlimited_node,
    unnamed_gpus,
)
from webhook.core.placement.garbage import settle, to_ask, to_ask_at_once
from webhook.core.placement.gpu_annotations import gpu_annotations
from webhook.core.placement.pod_state import PodState
from webhook.core.pod.gpus import DriverLimit, EnforceBy
from webhook.server.metrics import PlacementMetrics
from webhook.server.placement.node_queue import NodeQueue
from webhook.server.placement.tracker import Tracker

TRIES: Final = 20
"""To write a list that others write, too; each conflict is another's success."""

ADOPTED_AT_ONCE: Final = 64
"""Pods that are not entered, although they have GPUs of a node, and are asked for in one round."""

AT_ONCE: Final = 32
"""Threads that ask the API server: one per node in whose line somebody stands, and one per pod
that is not known yet."""

_UNTOUCHED: Final = BindingOutcome.UNTOUCHED
_NO_SUCH_POD: Final = BindingVerdict(outcome=_UNTOUCHED, reason=BindingReason.NO_SUCH_POD)
_DONE: Final = BindingVerdict(outcome=_UNTOUCHED)
_NO_DEMAND: Final = BindingVerdict(outcome=_UNTOUCHED, reason=BindingReason.NO_DEMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What somebody who waits for a node's list wants of it."""

    answer: Future[BindingVerdict] = field(default_factory=Future)
    """Cancelled by who does not wait any more."""
    pod: PodState | None = None
    """To be planned; None where the list is to be tidied, or answers."""
    dry_run: bool = False
    leaving: Mapping[str, Assignment] = field(default_factory=dict)
    """Entries to be taken out, unless they were renewed meanwhile."""
    joining: Sequence[PodState] = ()
    """Pods to be entered, which have GPUs of the node already."""
    whole: Whole | None = None
    """An answer to be written, unless its question is answered by now."""

    @property
    def enters(self) -> PodState | None:
        """The pod that is to be entered in the list."""
        return None if self.dry_run else self.pod

    @property
    def chooses(self) -> bool:
        """Whether GPUs are to be chosen; who sees all is only entered, and never denied."""
        return self.pod is not None and self.pod.at_binding

    def resolve(self, verdict: BindingVerdict) -> None:
        """Answer, where somebody still waits."""
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_result(verdict)

    def fail(self, error: Exception) -> None:
        """Raise in who still waits: a bug, or a list that cannot be tidied now."""
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class _Made:
    """A node's list as it would be, and what everybody in the line gets by it."""

    assignments: Assignments
    answer: Whole | None
    changed: bool
    gets: Mapping[str, tuple[str, ...] | Denial]
    """By the pod's UID."""
    reserved: tuple[PodState, ...]
    """Pods that wait on the node, newly entered although nobody in the line spoke for them."""


class Binder:
    """Answers bindings, assigns late, and takes out of the lists what no pod uses.

    Safe from any thread.
    """

    def __init__(
        self,
        api: PlacementApi,
        tracker: Tracker,
        metrics: PlacementMetrics,
        reserved: Callable[[PodState], None] = lambda _pod: None,
        run: Callable[[Callable[[], None]], object] | None = None,
        terms: Terms = AS_READ,
    ) -> None:
        """Decide by what `tracker` knows and `api` stores; `terms` are those of new entries.

        `reserved` is called with a pod that waited on its node, once GPUs are entered for it; they
        are still to be written on the pod. `run` starts a function on another thread.
        """
        self._api = api
        self._tracker = tracker
        self._metrics = metrics
        self._reserved = reserved
        self._terms = terms
        self._run = run or ThreadPoolExecutor(AT_ONCE, "placement").submit
        self._queues: NodeQueue[_Job] = NodeQueue(self._work, self._run)
        self._copies: dict[str, StoredList] = {}
        self.assigns_late = False
        """Whether GPUs are kept for pods that wait on their node: only where we may assign."""
        metrics.entries.set_function(self._entries)

    def from_memory(self, binding: Binding) -> BindingVerdict | None:
        """Decide a binding at once; None where a request is needed (`bind`).

        | the pod | the node | answer |
        | --- | --- | --- |
        | unknown | without GPUs, as far as known | untouched |
        | without a demand | any | untouched |
        | finished | any | untouched; the API server rejects it itself |
        | placed here, with a demand that cannot be read | any | denied |
        """
        pod = self._tracker.pod(binding.uid)
        if pod is not None:
            return _without_placing(binding, pod)
        known = self._tracker.node(binding.node) or self._tracker.has(binding.pod)
        if known or self._tracker.obstacle():
            return None
        return _NO_DEMAND

    def bind(self, binding: Binding, *, dry_run: bool = False) -> Future[BindingVerdict]:
        """Decide a binding that `from_memory` does not; returns at once.

        Cancel what is not waited for any more.

        | the pod | the node | answer |
        | --- | --- | --- |
        | as in `from_memory` | | the same, after one request at most |
        | gone | any | untouched; the API server rejects it itself |
        | it sees all GPUs | any | untouched, once it is entered |
        | it sees all GPUs | any, and the API server is away | untouched |
        | with a demand | without GPUs, or without names of them, as read now | denied |
        | requires the driver's limit | without its label, as read now | denied |
        | with a demand | with GPUs | placed or denied (`plan`) |
        | any | the API server is away | `uncertain` |
        """
        answer: Future[BindingVerdict] = Future()
        pod = self._tracker.pod(binding.uid)
        if pod is not None and not pod.gone:
            self._queues.join(binding.node, _Job(answer=answer, pod=pod, dry_run=dry_run))
        else:
            self._run(partial(self._find_pod, binding, _Job(answer=answer, dry_run=dry_run)))
        return answer

    def uncertain(self, binding: Binding, why: str) -> BindingVerdict:
        """Answer without knowing: only a pod that is known to be ours is denied.

        Any other may be a stranger's, who must not wait for us. One of ours that is let through
        by this waits on its node, and is assigned late.
        """
        if self.is_ours(binding):
            return _unavailable(binding.node, why)
        pod = self._tracker.pod(binding.uid)
        if pod is not None and pod.need:
            return _not_entered(binding.node, why)
        sentence = f"whether this pod needs a GPU of node {binding.node} is not known now"
        return BindingVerdict(
            outcome=_UNTOUCHED, reason=BindingReason.API_SERVER_AWAY, message=f"{sentence}: {why}"
        )

    def is_ours(self, binding: Binding) -> bool:
        """Say whether the pod is known to be ours to place; answered from memory."""
        pod = self._tracker.pod(binding.uid)
        return pod is not None and pod.places

    def late(self, node: str, pods: Iterable[PodState]) -> list[Future[BindingVerdict]]:
        """Enter GPUs for pods that were bound to a node without, all at once; returns at once."""
        jobs = [_Job(pod=pod) for pod in pods]
        self._queues.join(node, *jobs)
        return [job.answer for job in jobs]

    def tidy(self, name: str, stored: StoredList | None = None) -> None:
        """Take out of a node's list what no pod uses any more; raises KubeError.

        `stored` is the list as it was just read; without, it is as it was last read here. What the
        API server has to be asked, others do not wait for. A list that is damaged or lost is
        restored, pods that came past us are entered, and terms completed (`complete`); a list of a
        node that is gone is deleted, once it is empty.
        """
        stored = stored or self._copies.get(name) or self._api.assignments(name)
        pods = self._tracker.relevant(name, stored.assignments)
        asked = to_ask(stored.assignments, pods, self._api.now_s())
        answers = self._ask(asked)
        left = settle(name, stored.assignments, pods, answers, self._api.now_s())
        if not left and stored.version and self._is_gone(name):
            self._copies.pop(name, None)
            self._remove(stored)
            return
        leaving = {uid: one for uid, one in stored.assignments.items() if uid not in left}
        unlisted = to_adopt(name, stored.assignments, pods)
        # What a list that is not whole lacks is read with it (`_read`).
        joining = self._still(unlisted[:ADOPTED_AT_ONCE]) if stored.whole else []
        is_lost = not stored.whole and (stored.version or unlisted)
        if leaving or joining or is_lost or complete(left, pods, self._terms) is not left:
            job = _Job(leaving=leaving, joining=joining)
            self._queues.join(name, job)
            self.wait(job.answer)

    def say(self, node: str, whole: Whole) -> None:
        """Write an answer into a node's list, unless its question has one; raises KubeError."""
        job = _Job(whole=whole)
        self._queues.join(node, job)
        self.wait(job.answer)

    def _still(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return the pods as the API server has them now: a watch may be old."""
        found = ((pod, self._api.pod(*pod.name.split("/"))) for pod in pods)
        return [now for pod, now in found if now is not None and now.uid == pod.uid]

    def unlisted(self, listed: Iterable[str]) -> set[str]:
        """Return the GPU nodes with pods of ours whose lists are not among these.

        No others: whoever bypasses admission may name any node in a pod.
        """
        nodes = self._tracker.nodes_with_pods().difference(listed)
        return {name for name in nodes if self._tracker.node(name)}

    def _remove(self, stored: StoredList) -> None:
        """Delete a list, unless somebody wrote it since, or deleted it first."""
        try:
            self._api.remove(stored)
        except KubeError as error:
            if not error.conflict and not error.not_found:
                raise

    def _is_gone(self, name: str) -> bool:
        return self._tracker.node(name) is None and self._api.node(name) is None

    def copy(self, node: str) -> StoredList | None:
        """Return a node's list as it was last read here, if it was."""
        return self._copies.get(node)

    def nodes_of(self, pods: Iterable[PodState]) -> set[str]:
        """Return the nodes in whose lists, as last read here, some of these pods are entered.

        Of a pod that is bound, its own node alone: where else it is entered, it takes nothing. For
        the others all lists are gone through, once for all of them.
        """
        found, unbound = set(), set()
        for pod in pods:
            stored = self._copies.get(pod.node)
            if not pod.node:
                unbound.add(pod.uid)
            elif stored and pod.uid in stored.assignments:
                found.add(pod.node)
        if unbound:
            for name, stored in list(self._copies.items()):
                if not unbound.isdisjoint(stored.assignments):
                    found.add(name)
        return found

    def forget(self, node: str) -> None:
        """Forget the list of a node that is gone, or shows no GPUs any more."""
        self._copies.pop(node, None)

    def _entries(self) -> int:
        return sum(len(stored.assignments) for stored in list(self._copies.values()))

    def wait(self, answer: Future[BindingVerdict]) -> BindingVerdict:
        """Wait for an answer; holds the thread."""
        return answer.result()

    def _find_pod(self, binding: Binding, job: _Job) -> None:
        """Read a pod that is not known, or gone as far as is known; then have it planned."""
        if job.answer.cancelled():
            return
        try:
            pod = self._api.pod(binding.namespace, binding.name)
            verdict = _without_placing(binding, pod)
        except KubeError as error:
            job.resolve(self.uncertain(binding, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the bug, who waits gets an answer
            job.fail(error)
        else:
            if pod is None or verdict is not None:
                job.resolve(verdict or _NO_SUCH_POD)
            else:
                self._queues.join(binding.node, replace(job, pod=pod))

    def _work(self, name: str, jobs: list[_Job]) -> None:
        """Do what all of a node's line wait for; never raises."""
        try:
            self._place(name, jobs)
        except KubeError as error:
            for job in jobs:
                if job.pod is None:
                    job.fail(error)
                elif job.chooses:
                    job.resolve(_unavailable(name, str(error)))
                else:
                    job.resolve(_not_entered(name, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever the bug, who waits gets an answer
            for job in jobs:
                job.fail(error)

    def _place(self, name: str, jobs: list[_Job]) -> None:
        """Plan on the list that was last read, and write it; where it is old, on the stored one.

        | the list | answers come |
        | --- | --- |
        | as last read | once it is written, which shows that it was the stored one |
        | as read now | where nothing changes, at once; else once it is written |

        Raises KubeError, also where others always write first.
        """
        node = self._node(name, jobs)
        stored = self._copies.get(name)
        for _ in range(TRIES):
            jobs = [job for job in jobs if not job.answer.done()]
            if not jobs:
                return
            fresh = stored is None
            stored = stored or self._read(name)
            made = self._plan(node, jobs, stored)
            is_denied = any(job.pod and _denied(made, job.pod) for job in jobs)
            if not fresh and (is_denied or not made.changed):
                stored = None  # it may be old, or deleted, and only a write would find out
                continue
            if is_denied:
                stored = self._without_the_gone(name, stored)
                made = self._plan(node, jobs, stored)
            if not made.changed or self._store(name, made, stored.version):
                self._answer(jobs, made, node)
                return
            stored = None
        raise KubeError(f"others keep writing the list of node {name}")

    def _node(self, name: str, jobs: list[_Job]) -> GpuNode:
        """Return a node with its GPUs; where it shows none, deny who wants one.

        Or who requires more than it has. What keeps them from having one is read again: it may be
        over.
        """
        node = self._tracker.node(name)
        choosing = [(job, job.pod) for job in jobs if job.pod and job.chooses]
        if any(self._unusable(name, node, pod) for _, pod in choosing) or (
            choosing and node and node.held
        ):
            node = self._api.node(name)
        for job, pod in choosing:
            if unusable := self._unusable(name, node, pod):
                job.resolve(unusable)
        return node if node and not _unshown(name, node) else GpuNode(name=name, gpus=())

    def _unusable(self, name: str, node: GpuNode | None, pod: PodState) -> BindingVerdict | None:
        """Return why a pod can be given no GPU of a node, whatever is free there."""
        unshown = _unshown(name, node)
        if unshown or node is None:
            return unshown
        if pod.limit is DriverLimit.REQUIRE and not node.driver_limit:
            reason, denial = BindingReason.NO_DRIVER_LIMIT, unlimited_node(name)
        elif not node.sentry_acts and (cap_bytes := self._cap_by_sentry(pod)):
            reason, denial = BindingReason.NO_SENTRY, unguarded_node(name, cap_bytes)
        else:
            return None
        return BindingVerdict(outcome=BindingOutcome.DENIED, reason=reason, message=denial.sentence)

    def _cap_by_sentry(self, pod: PodState) -> int:
        """Return the cap that only a sentry enforces, in bytes; 0 for any other pod."""
        terms = self._terms(pod)
        return terms.cap_bytes if terms and terms.by is EnforceBy.SENTRY else 0

    def _plan(self, node: GpuNode, jobs: list[_Job], stored: StoredList) -> _Made:
        """Plan all in a line, first those that wait on the node already; see `plan`.

        Those are planned also where nobody in the line speaks for them: what is free is theirs.
        """
        name, gpus = node.name, node.gpus
        gone = {item for job in jobs for item in job.leaving.items()}
        entered = stored.assignments
        if gone:
            entered = {uid: one for uid, one in entered.items() if (uid, one) not in gone}
        joining = [pod for job in jobs for pod in job.joining]
        if joining:
            entered = adopt(name, entered, joining, self._api.now_s(), self._terms)
        if any(job.pod is None for job in jobs):
            entered = complete(entered, self._tracker.relevant(name, entered), self._terms)
        is_for_good = any(not job.dry_run for job in jobs)
        keeps = gpus and is_for_good and self.assigns_late
        waiting = [
            pod
            for pod in self._tracker.waiting(name)
            if keeps and not self._unusable(name, node, pod)
        ]
        spoken_for = {job.enters.uid: job.enters for job in jobs if job.enters}
        wanted = {pod.uid: pod for pod in waiting} | spoken_for

        def draft(entered: Assignments, pods: Iterable[PodState]) -> Draft:
            known = self._tracker.relevant(name, entered)
            return plan_all(
                name,
                gpus,
                entered,
                known,
                pods,
                self._api.now_s(),
                node.held,
                driver_limits=node.driver_limit,
                terms=self._terms,
            )

        made = draft(entered, wanted.values())
        gets = dict(zip(wanted, made.gets, strict=True))
        for job in jobs:
            if job.dry_run and job.pod:
                (gets[job.pod.uid],) = draft(made.assignments, [job.pod]).gets
        is_tidied = entered is not stored.assignments
        is_lost = not stored.whole and bool(stored.version or entered) and is_for_good
        answer = stored.answer
        for job in jobs:
            if job.whole and (answer is None or answer.asked != job.whole.asked):
                answer = job.whole
        is_answered = answer is not stored.answer
        is_tidied = is_tidied and entered != stored.assignments
        return _Made(
            made.assignments,
            answer,
            made.changed or is_lost or is_tidied or is_answered,
            gets,
            tuple(
                pod
                for pod in waiting
                if pod.uid not in spoken_for
                and pod.uid not in stored.assignments
                and pod.uid in made.assignments
            ),
        )

    def _answer(self, jobs: list[_Job], made: _Made, node: GpuNode) -> None:
        """Answer all in a line, now that what was made is what is stored."""
        for job in jobs:
            if job.pod is None:
                job.resolve(_DONE)
                continue
            got = made.gets[job.pod.uid]
            if isinstance(got, Denial):
                reason = BindingReason.NO_GPU_FITS
                job.resolve(
                    BindingVerdict(
                        outcome=BindingOutcome.DENIED, reason=reason, message=got.sentence
                    )
                )
            elif not job.chooses:
                job.resolve(_NO_DEMAND)
            else:
                cap_bytes = job.pod.need.memory_bytes if job.pod.need else 0
                names = node.device_names or DeviceNames.NONE
                # A dry run is not entered.
                entered = made.assignments.get(job.pod.uid)
                limit = (
                    entered.terms.limit
                    if entered and entered.terms
                    else job.pod.limit_on(driver_limits=node.driver_limit)
                )
                given = gpu_annotations(got, node.gpus, names, cap_bytes, limit)
                job.resolve(
                    BindingVerdict(outcome=BindingOutcome.PLACED, uuids=got, annotations=given)
                )
        for pod in made.reserved:
            self._reserved(pod)

    def _without_the_gone(self, name: str, stored: StoredList) -> StoredList:
        """Leave out the entries of pods that are gone; asks the API server, too. See `tidy`."""
        pods = self._tracker.relevant(name, stored.assignments)
        answers = self._ask(to_ask_at_once(stored.assignments, pods))
        left = settle(name, stored.assignments, pods, answers, self._api.now_s())
        return replace(stored, assignments=left)

    def _ask(self, entries: Mapping[str, Assignment]) -> dict[str, PodState | None]:
        """Ask the API server about the pods of entries, one by one.

        Not for all pods of the node: API servers before 1.34 read every pod of the cluster from
        etcd for that, as for any list with a `limit` (cacher.go, `shouldDelegateList`).
        """
        return {uid: self._api.pod(*one.pod.split("/")) for uid, one in entries.items()}

    def _read(self, name: str) -> StoredList:
        """Read a node's list; where it is missing or damaged, enter what its pods have already."""
        stored = self._api.assignments(name)
        if stored.whole:
            self._copies[name] = stored
            return stored
        pods = self._api.pods_on(name)
        now_s = self._api.now_s()
        adopted = adopt(name, stored.assignments, pods, now_s, self._terms)
        return replace(stored, assignments=adopted)

    def _store(self, name: str, made: _Made, version: str) -> bool:
        """Write a list; return whether nobody else wrote it first."""
        try:
            self._copies[name] = self._api.store(name, made.assignments, version, made.answer)
        except KubeError as error:
            self._copies.pop(name, None)
            if not error.conflict and not error.not_found:
                raise
            self._metrics.conflicts.inc()
            return False
        return True


def _denied(made: _Made, pod: PodState) -> bool:
    return isinstance(made.gets[pod.uid], Denial)


def _unshown(name: str, node: GpuNode | None) -> BindingVerdict | None:
    """Return why nobody can be given a GPU of a node: it shows none, or no names of them."""
    denied = BindingOutcome.DENIED
    if node is None or not node.gpus:
        return BindingVerdict(
            outcome=denied, reason=BindingReason.GPUS_UNKNOWN, message=unknown_gpus(name).sentence
        )
    if node.device_names is None or node.device_names is DeviceNames.NONE:
        sentence = unnamed_gpus(name, node.device_names).sentence
        return BindingVerdict(
            outcome=denied, reason=BindingReason.NO_DEVICE_NAMES, message=sentence
        )
    return None


def _unavailable(node: str, why: str) -> BindingVerdict:
    sentence = f"no GPU of node {node} can be chosen for this pod now: {why}; the scheduler retries"
    return BindingVerdict(
        outcome=BindingOutcome.UNAVAILABLE, reason=BindingReason.API_SERVER_AWAY, message=sentence
    )


def _not_entered(node: str, why: str) -> BindingVerdict:
    sentence = f"this pod sees all GPUs of node {node} and could not be entered in its list: {why}"
    return BindingVerdict(
        outcome=_UNTOUCHED, reason=BindingReason.API_SERVER_AWAY, message=sentence
    )


def _without_placing(binding: Binding, pod: PodState | None) -> BindingVerdict | None:
    """Return the answer for a pod that is not entered in any list; None for all others."""
    if pod is None or pod.finished or binding.uid not in {"", pod.uid}:
        return _NO_SUCH_POD
    if pod.need is None:
        return _NO_DEMAND
    if pod.at_binding and pod.unreadable:
        sentence = f"the pod's demand cannot be read: {pod.unreadable}; create the pod again"
        return BindingVerdict(
            outcome=BindingOutcome.DENIED, reason=BindingReason.UNREADABLE_DEMAND, message=sentence
        )
    return None
