"""Which pod has which of a node's GPUs: the list that all replicas share, one ConfigMap per node.

A pod is entered *before* its binding is allowed, under the ConfigMap's `resourceVersion`, so two
replicas that place at the same time cannot both succeed. It leaves only for what cannot be undone:
the pod finished, was deleted, or was bound to another node. So no decision rests on how fresh a
watch is, and a list that says too much only makes the scheduler retry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as _quoted
from operator import attrgetter
from sys import intern
from typing import Final

from webhook.core.bounds import (
    LATEST_S,
    LONGEST_GRACE_S,
    LONGEST_LATE_S,
    LONGEST_SENTENCE,
    LONGEST_WHOLE,
)
from webhook.core.formatting import MAX_BYTES
from webhook.core.nvidia.variables import CHOSEN_PATH, VISIBLE_DEVICES_ENV
from webhook.core.placement.fit import Denial, Need, held_node, place
from webhook.core.placement.pods import (
    Admission,
    CapTerms,
    counted_need,
    named_gpus,
    read_terms,
    shared_terms,
    with_limit,
)
from webhook.core.pod.fields import Json, as_object, mapping, text
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.gpus import (
    EVERY_GPU,
    MOST_GPUS,
    DriverLimit,
    EnforceBy,
    Gpu,
    allocate,
    free_bytes,
)
from webhook.core.pod.quantity import MIB
from webhook.core.pod.views import Pod, read_pod
from webhook.core.pod.whole import has_ended
from webhook.names import (
    GPU_ANNOTATION,
    GPU_WAITS_ANNOTATION,
    LONGEST_LABEL,
    LONGEST_NAME,
    LONGEST_PAIR,
)

UNBOUND_S: Final = 120.0
"""How long an entry may stay whose pod is not bound: the API server gives up a request after 60 s
(`--request-timeout`), and clocks of replicas may differ."""

RENEW_S: Final = 30.0
"""An entry older than this is renewed when its pod's binding comes again, so that all of that
request lies within `UNBOUND_S`."""


MOST_NAMED: Final = 3
"""Pods with whole GPUs that an answer names; all of them are counted."""

_KEY: Final = "assignments"
_WHOLE_KEY: Final = "whole"
_REPORTS: Final = ', "report": true'
"""In a line beside `"act": false`."""
_LIMITS: Final = {
    limit: "" if limit is DriverLimit.OFF else f', "limit": "{limit}"' for limit in DriverLimit
}
"""The driver's limit in a line."""
_BY: Final = frozenset(EnforceBy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """GPUs of a node that a pod has, or is about to get."""

    pod: str
    """`namespace/name`, for people."""
    uuids: tuple[str, ...]
    """`EVERY_GPU` alone for a pod that sees all of the node's."""
    memory_bytes: int
    """On each of them."""
    since_s: int
    """Unix time at which it was entered."""
    terms: CapTerms | None = None
    """None if it cannot be read; then the sentry only measures the pod."""
    count: int = 1
    """Of `EVERY_GPU`, for how many GPUs its pod asked: so often the amount was promised."""


Assignments = dict[str, Assignment]
"""By the pod's UID, since names come again."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer to a node's question which pods with whole GPUs run there."""

    asked: str
    """The value of the node's label that was answered."""
    count: int
    pods: tuple[str, ...]
    """`namespace/name` of the first `MOST_NAMED`."""


@dataclass(frozen=True, slots=True)
class Waits:
    """State of a bound pod that has no GPU yet."""

    owned: bool = False
    """Whether it has a controller, which replaces it if it is deleted."""
    told: str = ""
    """Its annotation `gpu-waits`, cut to the length that we write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """What placement has to know of a pod with a demand."""

    uid: str
    name: str
    """`namespace/name`."""
    need: Need | None
    """What it takes of each of its GPUs; None for a pod that asks for nothing in `resources`."""
    at_binding: bool = True
    """Its GPUs are chosen here; otherwise it sees all of the node's."""
    node: str = ""
    uuids: tuple[str, ...] = ()
    finished: bool = False
    """It ran to its end, which cannot be undone."""
    gone: bool = False
    """A watch said so. It may only have lost the label that is watched, so nothing is freed by it
    before the API server confirms it."""
    unreadable: str = ""
    """Why its demand cannot be read, although it has one: who wrote the pod bypassed admission."""
    terms: CapTerms | None = None
    """Its terms as read from the pod; None if it needs nothing."""
    admission: Admission | None = None
    """Set if the terms of its entry are those of a rule, see `terms_by_rule`."""
    waits: Waits | None = None
    """Set if it is bound and has no GPU yet, so that it gets one late."""

    @property
    def places(self) -> bool:
        """Whether it is known to be ours to place."""
        return self.need is not None and self.at_binding and not self.finished

    @property
    def limit(self) -> DriverLimit:
        """What it is promised of the driver's limit."""
        return self.terms.limit if self.terms else DriverLimit.OFF

    def limit_on(self, *, driver_limits: bool) -> DriverLimit:
        """Return its driver's limit on a node whose driver has limits, or has none.

        The limit that was written with its GPUs is final.
        """
        return self.limit if driver_limits or self.uuids else DriverLimit.OFF


Terms = Callable[[PodState], CapTerms | None]
"""Returns the terms of a pod that is entered; None if they cannot be known now."""
AS_READ: Final[Terms] = attrgetter("terms")
"""Terms as read from the pod, whatever its rule."""


def read_pod_state(raw: Json, asked: Callable[[], Iterable[str]] = tuple) -> PodState:
    """Read a stored pod; never fails: what an API server would not store takes no GPU.

    `asked` returns the keys of pod labels that the policy in force asks for.
    """
    metadata, finished = as_object(raw.get("metadata")), has_ended(raw)
    uid, name = str(metadata.get("uid")), f"{metadata.get('namespace')}/{metadata.get('name')}"
    try:
        pod = read_pod(raw)
        node = text(mapping(raw, "spec", ""), "nodeName", "spec")
        need, unreadable = counted_need(pod)
        at_binding = _is_placed_at_binding(pod)
        terms, admission = read_terms(pod, need.memory_bytes, asked) if need else (None, None)
    except MalformedObjectError:
        return PodState(uid=uid, name=name, need=None, finished=finished)
    # Many pods have the same GPUs, and the same node.
    uuids = tuple(map(intern, named_gpus(pod.annotations.get(GPU_ANNOTATION, ""))))
    found = PodState(
        uid=uid,
        name=name,
        need=need,
        at_binding=at_binding,
        node=intern(node),
        uuids=uuids,
        finished=finished,
        gone=False,
        unreadable=unreadable,
        terms=terms,
        admission=admission,
    )
    return _waiting(found, pod)


def _waiting(state: PodState, pod: Pod) -> PodState:
    """Return the state with `waits` if the pod is bound and has no GPU yet.

    The kubelet starts no container of a pod that is being deleted, so that one does not wait.
    """
    if not state.places or not state.node or state.uuids or state.unreadable:
        return state
    metadata = as_object(pod.raw.get("metadata"))
    if metadata.get("deletionTimestamp"):
        return state
    owners = metadata.get("ownerReferences")
    waits = Waits(
        owned=isinstance(owners, list) and any(as_object(one).get("controller") for one in owners),
        told=pod.annotations.get(GPU_WAITS_ANNOTATION, "")[:LONGEST_SENTENCE],
    )
    return replace(state, waits=waits)


def _is_placed_at_binding(pod: Pod) -> bool:
    for container in pod.containers:
        for entry in container.env():
            reference = mapping(mapping(entry, "valueFrom", ""), "fieldRef", "")
            if entry["name"] == VISIBLE_DEVICES_ENV and reference.get("fieldPath") == CHOSEN_PATH:
                return True
    return False


@dataclass(frozen=True, slots=True)
class Draft:
    """A node's list with all entered who were planned together, and what each of them gets."""

    assignments: Assignments
    gets: tuple[tuple[str, ...] | Denial, ...]
    changed: bool


def plan_all(
    node: str,
    gpus: Sequence[Gpu],
    assignments: Assignments,
    pods: Mapping[str, PodState],
    wanted: Iterable[PodState],
    now_s: float,
    held: str = "",
    *,
    driver_limits: bool = False,
    terms: Terms = AS_READ,
) -> Draft:
    """Choose GPUs for pods and enter them, each on what the one before left.

    `assignments` are those of the ConfigMap, `pods` all that are known, on any node; `held` says
    why the node gives no GPU to further pods, where it does not. `driver_limits` is True if the
    node's driver holds caps; otherwise no new entry has a limit. `terms` are those of new entries.

    | the pod | then |
    | --- | --- |
    | sees all GPUs | entered with `EVERY_GPU`, whatever is free |
    | is entered, with GPUs that still exist | the same GPUs and limit: its binding came twice |
    | is not entered, GPUs are free and the node is not held | entered with them |
    | otherwise | denied |

    Entries of other pods are completed, see `complete`. The list and the pods are gone through
    once, however many are planned. Where all are denied the list stays as it is.
    """
    kept: Assignments = {}
    is_new = False
    for uid, one in assignments.items():
        known = pods.get(uid)
        if not _may_use(known, node):
            continue
        kept[uid] = _completed(one, known, terms)
        is_new |= kept[uid] is not one
    free = free_on(node, gpus, kept, pods)
    gets: list[tuple[str, ...] | Denial] = []
    for pod in wanted:
        entered = kept.get(pod.uid)
        if entered and _has_its_gpus(pod, entered, free):
            if now_s - entered.since_s > RENEW_S:
                kept[pod.uid] = replace(entered, since_s=int(now_s))
                is_new = True
            gets.append(entered.uuids)
            continue
        left = dict(free)
        before = pods.get(pod.uid)
        if entered:
            allocate(left, entered.uuids, -entered.memory_bytes)
        elif before:
            uuids, taken_bytes = _taken_unlisted(before, node)
            allocate(left, uuids, -taken_bytes)
        got = _choose(node, gpus, left, pod, held)
        gets.append(got)
        if isinstance(got, Denial):
            continue
        is_new |= kept.pop(pod.uid, None) is not None or bool(pod.need)
        if pod.need:
            limit = pod.limit_on(driver_limits=driver_limits)
            kept[pod.uid] = _entry(pod, got, pod.need.memory_bytes, now_s, limit, terms)
            allocate(left, got, pod.need.memory_bytes)
        free = left
    if all(isinstance(got, Denial) for got in gets):
        return Draft(assignments, tuple(gets), changed=False)
    return Draft(kept, tuple(gets), is_new or len(kept) < len(assignments))


def _choose(
    node: str,
    gpus: Sequence[Gpu],
    left: Mapping[str, int],
    pod: PodState,
    held: str,
) -> tuple[str, ...] | Denial:
    if pod.need is None:
        return ()
    if not pod.at_binding:
        return (EVERY_GPU,)
    return held_node(node, held) if held else place(node, gpus, left, pod.need)


def _has_its_gpus(pod: PodState, entered: Assignment, free: Mapping[str, int]) -> bool:
    if not pod.at_binding:
        return entered.uuids == (EVERY_GPU,)
    return all(uuid in free for uuid in entered.uuids)


def _entry(
    pod: PodState,
    uuids: tuple[str, ...],
    memory_bytes: int,
    now_s: float,
    limit: DriverLimit,
    find_terms: Terms,
) -> Assignment:
    count, terms = _asked_for(pod, uuids), find_terms(pod)
    return Assignment(
        pod=pod.name,
        uuids=uuids,
        memory_bytes=memory_bytes,
        since_s=int(now_s),
        terms=terms and with_limit(terms, limit),
        count=count,
    )


def _asked_for(pod: PodState, uuids: tuple[str, ...]) -> int:
    """Return the `count` of an entry; bounded, since a tenant may write any number on a pod."""
    return min(pod.need.gpu_count, MOST_GPUS) if pod.need and uuids == (EVERY_GPU,) else 1


def _completed(one: Assignment, pod: PodState | None, find_terms: Terms) -> Assignment:
    if pod is None:
        return one
    terms = one.terms or find_terms(pod)
    if terms and (pod.uuids or one.terms is None):
        terms = with_limit(terms, pod.limit_on(driver_limits=False))
    return one if terms is one.terms else replace(one, terms=terms)


def complete(
    assignments: Assignments, pods: Mapping[str, PodState], terms: Terms = AS_READ
) -> Assignments:
    """Return the list with each entry's terms completed from its pod.

    An entry without terms gets those of its pod. The driver's limit is that of the pod's
    annotation, once the pod has its GPUs. The same list is returned if nothing changes.
    """
    completed = (
        (uid, one, _completed(one, pods.get(uid), terms)) for uid, one in assignments.items()
    )
    found = {uid: now for uid, one, now in completed if now is not one}
    return assignments | found if found else assignments


def promised_bytes(assignments: Assignments) -> int:
    """Return what the pods of a list were promised on all their GPUs together."""
    return sum(one.memory_bytes * max(one.count, len(one.uuids)) for one in assignments.values())


def free_on(
    node: str,
    gpus: Sequence[Gpu],
    assignments: Assignments,
    pods: Mapping[str, PodState],
) -> dict[str, int]:
    """Return what is free on each GPU, by what is entered and by pods that are not.

    | the pod on this node | counts on |
    | --- | --- |
    | is entered | the GPUs of its entry, with the amount of its entry; `EVERY_GPU` is each |
    | is placed at binding, and its annotation `gpu` names GPUs | these, with equal parts of it |
    | is placed at binding, and nothing names its GPUs | none: it waits for one |
    | sees all GPUs: its rule does not place at binding | each: it may use any |
    | asks for nothing in `resources`, finished, or is gone | none |
    """
    taken = [(one.uuids, one.memory_bytes) for one in assignments.values()]
    for uid, pod in pods.items():
        if uid not in assignments:
            taken.append(_taken_unlisted(pod, node))
    return free_bytes(gpus, taken)


def _taken_unlisted(pod: PodState, node: str) -> tuple[tuple[str, ...], int]:
    """Return what a pod takes of a node that is not entered there: on which GPUs, and how much.

    That is each GPU for one that sees all, whatever it names. Who names more than it asked for
    takes an equal part of each: what the kubelet admitted counts once in all.
    """
    need = pod.need
    if need is None or pod.node != node or pod.finished or pod.gone:
        return (), 0
    uuids = pod.uuids if pod.at_binding else (EVERY_GPU,)
    part = -(-need.memory_bytes * need.gpu_count // ((len(uuids) or 1) * MIB)) * MIB
    return uuids, min(part, need.memory_bytes)


def adopt(
    node: str,
    assignments: Assignments,
    pods: Iterable[PodState],
    now_s: float,
    terms: Terms = AS_READ,
) -> Assignments:
    """Enter the pods of a node that have GPUs already, where the list was lost or never made.

    Their existing entries are completed, see `complete`.
    """
    known = {pod.uid: pod for pod in pods}
    found = {
        pod.uid: _entry(pod, *_taken_unlisted(pod, node), now_s, pod.limit, terms)
        for pod in to_adopt(node, {}, known)
    }
    return found | complete(assignments, known, terms)


def to_adopt(node: str, assignments: Assignments, pods: Mapping[str, PodState]) -> list[PodState]:
    """Return the pods that have GPUs of a node and are not entered: they came past us."""
    return [
        pod for uid, pod in pods.items() if uid not in assignments and _taken_unlisted(pod, node)[0]
    ]


def to_ask(
    assignments: Assignments, pods: Mapping[str, PodState], now_s: float
) -> dict[str, Assignment]:
    """Return the entries to check with the API server before they may leave."""
    asked = {}
    for uid, one in assignments.items():
        pod = pods.get(uid)
        if pod is None or (not pod.node and now_s - one.since_s > UNBOUND_S):
            asked[uid] = one
    return asked | to_ask_at_once(assignments, pods)


def to_ask_at_once(assignments: Assignments, pods: Mapping[str, PodState]) -> dict[str, Assignment]:
    """Return the entries of pods that seem to be gone: each may be room for another pod."""
    known = ((uid, one, pods.get(uid)) for uid, one in assignments.items())
    return {uid: one for uid, one, pod in known if pod and pod.gone and not pod.finished}


def settle(
    node: str,
    assignments: Assignments,
    pods: Mapping[str, PodState],
    answers: Mapping[str, PodState | None],
    now_s: float,
) -> Assignments:
    """Return the entries that stay, given what the API server just answered about single pods.

    | the pod | its entry |
    | --- | --- |
    | is bound here and not finished | stays |
    | is finished, or bound elsewhere | leaves |
    | is gone, as a watch said, and was not asked for | stays |
    | is gone, as the API server said; another may have its name | leaves |
    | is not bound, as the API server said, and the entry is older than `UNBOUND_S` | leaves |
    | is not bound, and the entry is younger | stays: its binding may be under way |
    | is not known, and was not asked for | stays |
    """

    def stays(uid: str, one: Assignment) -> bool:
        if uid not in answers:
            return _may_use(pods.get(uid), node)
        pod = answers[uid]
        if pod is None or pod.uid != uid or not _may_use(pod, node):
            return False
        return bool(pod.node) or now_s - one.since_s <= UNBOUND_S

    return {uid: one for uid, one in assignments.items() if stays(uid, one)}


def _may_use(pod: PodState | None, node: str) -> bool:
    """Say whether a pod may use GPUs of a node, now or later; yes for an unknown pod."""
    return pod is None or (not pod.finished and pod.node in {"", node})


def config_map_name(node: str) -> str:
    """Name the ConfigMap that holds a node's assignments, in the namespace of the release."""
    name = f"gpu-assignments-{node}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"gpu-assignments-{hashlib.sha256(node.encode()).hexdigest()}"


def write_assignments(assignments: Assignments) -> dict[str, str]:
    """Write the `data` of a ConfigMap: one line per pod, for people to read.

    Each is a JSON object, put together by hand: every binding writes all lines of its node, and
    `json` takes four times as long. In one key, since the API server keeps a record of who wrote
    each key (`managedFields`). Readers ignore keys that they do not know.

    No line is longer than some 4 KiB, whatever anybody wrote on the pod (`counted.named_gpus`).
    """
    by_id = {id(one.terms): one.terms for one in assignments.values()}
    ends = {number: _write_terms(terms) for number, terms in by_id.items()}  # many have the same
    lines = (
        f'{{"uid": {_quoted(uid)}, "pod": {_quoted(one.pod)}, '
        f'"gpus": [{", ".join(map(_quoted, one.uuids))}], '
        f'"memory": {one.memory_bytes}, "since": {one.since_s}'
        f"{_write_count(one.count)}{ends[id(one.terms)]}}}\n"
        for uid, one in assignments.items()
    )
    return {_KEY: "".join(lines)}


def _write_count(count: int) -> str:
    return f', "count": {count}' if count > 1 else ""


def _write_terms(terms: CapTerms | None) -> str:
    if terms is None:
        return ""
    return (
        f', "cap": {terms.cap_bytes}, "tolerance": {terms.tolerance_bytes}, '
        f'"late_s": {terms.delay_s}, "by": "{terms.by}", "grace_s": {terms.grace_s}, '
        f'"act": {"true" if terms.enforce else "false"}'
        f"{_REPORTS if terms.reports else ''}{_LIMITS[terms.limit]}"
    )


def read_assignments(data: object) -> tuple[Assignments, bool]:
    """Read the `data` of a ConfigMap; also say whether all of it could be read.

    Where it could not, somebody edited it, and the node's pods must be read to find what is
    missing (`adopt`).

    | of a line | then |
    | --- | --- |
    | the pod, its GPUs or its amount cannot be read | not all could be read; it does not count |
    | what the pod is held to cannot be read | not all could be read; it counts, nobody acts on it |
    """
    written = data.get(_KEY) if isinstance(data, dict) else None
    if not isinstance(written, str):
        return {}, False
    lines = written.splitlines()
    read: Assignments = {}
    whole = True
    for found in map(_read_entry, lines):
        if found is None:
            whole = False
        else:
            uid, one = found
            read[uid] = one
            whole = whole and one.terms is not None
    return read, whole and len(read) == len(lines)


def _read_entry(line: str) -> tuple[str, Assignment] | None:
    """Return a pod's UID and its entry, or None if the line cannot be read."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(entry) is not dict:
        return None
    uid, pod, gpus, memory, since = map(entry.get, ("uid", "pod", "gpus", "memory", "since"))
    count = entry.get("count", 1)
    if (
        type(uid) is type(pod) is str
        and type(gpus) is list
        and set(map(type, gpus)) == {str}
        and type(memory) is type(since) is int
        and 0 < memory <= MAX_BYTES
        and 0 <= since <= LATEST_S
        and (count == 1 or gpus == [EVERY_GPU])
        and type(count) is int
        and 0 < count <= MOST_GPUS
        and pod.count("/") == 1
        and "" not in pod.split("/")
    ):
        return uid, Assignment(
            pod=pod,
            uuids=tuple(map(intern, gpus)),
            memory_bytes=memory,
            since_s=since,
            terms=_read_terms(entry),
            count=count,
        )
    return None


def _read_terms(entry: Json) -> CapTerms | None:
    cap, tolerance, delay_s, act = map(entry.get, ("cap", "tolerance", "late_s", "act"))
    by, grace_s = map(entry.get, ("by", "grace_s"))
    reports, limit = entry.get("report", False), entry.get("limit", "Off")
    if (
        type(cap) is type(tolerance) is int
        and 0 < cap <= MAX_BYTES
        and 0 <= tolerance <= MAX_BYTES
        and (type(delay_s) is int or type(delay_s) is float)
        and 0 <= delay_s <= LONGEST_LATE_S
        and (type(grace_s) is int or type(grace_s) is float)
        and 0 <= grace_s <= LONGEST_GRACE_S
        and type(by) is str
        and by in _BY
        and type(act) is bool
        and type(reports) is bool
        and act + reports <= (by != EnforceBy.NONE)
        and type(limit) is str
        and limit in _LIMITS
    ):
        return shared_terms(
            cap_bytes=cap,
            tolerance_bytes=tolerance,
            delay_s=float(delay_s),
            enforce=act,
            reports=reports,
            by=EnforceBy(by),
            grace_s=float(grace_s),
            limit=DriverLimit(limit),
        )
    return None


def write_whole(whole: Whole | None) -> dict[str, str]:
    """Write an answer as a part of the `data` of a ConfigMap, beside the node's assignments."""
    if whole is None:
        return {}
    answer = {"asked": whole.asked, "count": whole.count, "pods": whole.pods}
    return {_WHOLE_KEY: json.dumps(answer)}


def read_whole(data: object) -> Whole | None:
    """Read the answer in the `data` of a ConfigMap; None where none can be read.

    That never means that no pod has whole GPUs: the question is still open.
    """
    written = data.get(_WHOLE_KEY) if isinstance(data, dict) else None
    if not isinstance(written, str) or len(written) > LONGEST_WHOLE:
        return None
    try:
        answer = as_object(json.loads(written))
    except (ValueError, RecursionError):
        return None
    asked, count, pods = map(answer.get, ("asked", "count", "pods"))
    if (
        type(asked) is str
        and 0 < len(asked) <= LONGEST_LABEL
        and type(count) is int
        and type(pods) is list
        and len(pods) <= min(count, MOST_NAMED)
        and all(type(pod) is str and len(pod) <= LONGEST_PAIR for pod in pods)
    ):
        return Whole(asked, count, tuple(pods))
    return None
