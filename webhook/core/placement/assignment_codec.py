"""ConfigMap of a node: the assignment list, and the response to the node agent's question."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as _quoted
from sys import intern
from typing import Final

from webhook.core.bounds import MAX_DELAY_S, MAX_GRACE_S, MAX_TIME_S, MAX_WHOLE_GPUS_LENGTH
from webhook.core.formatting import MAX_BYTES
from webhook.core.placement.assignments import Assignment, Assignments
from webhook.core.placement.cap_terms import CapTerms, shared_terms
from webhook.core.pod.fields import Json, as_object
from webhook.core.pod.gpus import EVERY_GPU, MAX_GPUS, DriverLimit, EnforceBy
from webhook.names import MAX_LABEL_LENGTH, MAX_NAME_LENGTH, MAX_QUALIFIED_NAME_LENGTH

MOST_NAMED_PODS: Final = 3
"""Number of pods with whole GPUs that a response names. The response counts all of them."""

_KEY: Final = "assignments"
_WHOLE_KEY: Final = "whole"
_REPORTS: Final = ', "report": true'
"""JSON field of an entry that follows `"act": false`."""
_LIMITS: Final = {
    limit: "" if limit is DriverLimit.OFF else f', "limit": "{limit}"' for limit in DriverLimit
}
"""JSON field of an entry, keyed by driver limit."""
_BY: Final = frozenset(EnforceBy)


@dataclass(frozen=True, slots=True)
class WholeGpuPods:
    """Response to a node agent that asks which pods with whole GPUs run on its node."""

    asked: str
    """Value of the node label to which this responds."""
    count: int
    pods: tuple[str, ...]
    """`namespace/name` of the first `MOST_NAMED_PODS` pods."""


def config_map_name(node: str) -> str:
    """Return the name of a node's ConfigMap in the release's namespace."""
    name = f"gpu-assignments-{node}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    return f"gpu-assignments-{hashlib.sha256(node.encode()).hexdigest()}"


def write_assignments(assignments: Assignments) -> dict[str, str]:
    """Return the `data` of a ConfigMap, with one line per pod.

    Each line is a JSON object, formatted without `json`: every binding writes all lines of its
    node, and `json` takes four times as long. All lines are in one key, since the API server
    records the writer of each key (`managedFields`). Readers ignore unknown fields.

    A line has at most about 4 KiB, whatever the pod's annotations contain (`parse_gpu_uuids`).
    """
    by_id = {id(assignment.terms): assignment.terms for assignment in assignments.values()}
    ends = {
        number: _write_terms(terms) for number, terms in by_id.items()
    }  # many pods share the same terms
    lines = (
        f'{{"uid": {_quoted(uid)}, "pod": {_quoted(assignment.pod)}, '
        f'"gpus": [{", ".join(map(_quoted, assignment.uuids))}], '
        f'"memory": {assignment.memory_bytes}, "since": {assignment.since_s}'
        f"{_write_count(assignment.count)}{ends[id(assignment.terms)]}}}\n"
        for uid, assignment in assignments.items()
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
    """Return the assignments in a ConfigMap's `data`, and True if every line could be read.

    False means that the ConfigMap was edited by hand. The missing entries must then be rebuilt from
    the node's pods (`rebuild_from_pods`).

    | in a line | then |
    | --- | --- |
    | the pod, its GPUs or its amount cannot be read | False; the line is ignored |
    | the terms cannot be read | False; the line counts, and the pod is only measured |
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
            uid, assignment = found
            read[uid] = assignment
            whole = whole and assignment.terms is not None
    return read, whole and len(read) == len(lines)


def _read_entry(line: str) -> tuple[str, Assignment] | None:
    """Return a pod's UID and its entry, or None if the line is invalid."""
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
        and 0 <= since <= MAX_TIME_S
        and (count == 1 or gpus == [EVERY_GPU])
        and type(count) is int
        and 0 < count <= MAX_GPUS
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
        and 0 <= delay_s <= MAX_DELAY_S
        and (type(grace_s) is int or type(grace_s) is float)
        and 0 <= grace_s <= MAX_GRACE_S
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


def write_whole_gpu_pods(whole: WholeGpuPods | None) -> dict[str, str]:
    """Return the response as part of a ConfigMap's `data`."""
    if whole is None:
        return {}
    answer = {"asked": whole.asked, "count": whole.count, "pods": whole.pods}
    return {_WHOLE_KEY: json.dumps(answer)}


def read_whole_gpu_pods(data: object) -> WholeGpuPods | None:
    """Return the response in a ConfigMap's `data`, or None if it is missing or invalid.

    None never means that no pod has whole GPUs: the question is still unanswered.
    """
    written = data.get(_WHOLE_KEY) if isinstance(data, dict) else None
    if not isinstance(written, str) or len(written) > MAX_WHOLE_GPUS_LENGTH:
        return None
    try:
        answer = as_object(json.loads(written))
    except (ValueError, RecursionError):
        return None
    asked, count, pods = map(answer.get, ("asked", "count", "pods"))
    if (
        type(asked) is str
        and 0 < len(asked) <= MAX_LABEL_LENGTH
        and type(count) is int
        and type(pods) is list
        and len(pods) <= min(count, MOST_NAMED_PODS)
        and all(type(pod) is str and len(pod) <= MAX_QUALIFIED_NAME_LENGTH for pod in pods)
    ):
        return WholeGpuPods(asked, count, tuple(pods))
    return None
