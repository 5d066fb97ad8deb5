"""Decisions about pods of one template, remembered: a controller creates many that differ by name.

A decision about a creation follows from the policy, the rule that governs the pod, the phase and
the namespace, and of the pod from its annotations, its labels and its spec alone. Who creates it,
and which labels its namespace has, decide which rule that is and nothing else. Pods of a template
differ in one more thing: the name of the volume with the token, to which the ServiceAccount plugin
appends five random characters (k8s.io/kubernetes/plugin/pkg/admission/serviceaccount/admission.go).
It is left out of what is compared where it names that volume and its mounts, and stands nowhere
else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from webhook.core.admission.decide import decide, governing_rule
from webhook.core.pod.findings import MalformedObjectError
from webhook.names import NODES_GROUP

if TYPE_CHECKING:
    from webhook.core.admission.decide import Decision, Phase
    from webhook.core.pod.fields import Json
    from webhook.core.pod.request import Request
    from webhook.core.policy.values import Policy

MOST: Final = 256
"""Decisions that are remembered at a time."""

MOST_SEEN: Final = 4096
"""Templates that were seen once."""

LONGEST_BYTES: Final = 16 * 2**10
"""Of the body of a review whose decision is remembered: with MOST of them 4 MiB."""

LONGEST_PATCH_BYTES: Final = 6 * 2**10
"""Of its patch, which has 4 KiB in most cases and may quote what a tenant wrote: that takes twenty
times as much in memory as in JSON, so that MOST of them are 32 MiB at worst."""

_TOKEN: Final = re.compile("kube-api-access-[a-z0-9]{5}")
_ANY_TOKEN: Final = b"\0"
"""In place of the name: JSON has none, so no pod can write it."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is remembered under one policy."""

    in_force: tuple[Any, ...] = ()
    seen: set[int] = field(default_factory=set)
    """Hashes: two templates of one hash make one be remembered too early, which harms none."""
    known: dict[tuple[Phase, bytes], Decision] = field(default_factory=dict)


class RememberedDecisions:
    """Decides as `decide` does, and about a template that it knows only once.

    | a request | is remembered |
    | --- | --- |
    | the creation of a pod that is allowed or mutated in silence | yes |
    | one that its user is told something about: the text may quote the pod | no |
    | one whose patch names the volume with the token, or is long | no |
    | an update, a subresource, a pod that a kubelet creates | no |

    It is remembered from the second one on, so that what comes once costs next to nothing. All is
    forgotten when the policy changes, and when it is too much. Safe from any thread.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._memory = _Memory()

    def decide(self, request: Request, policy: Policy, phase: Phase) -> Decision:
        """Decide a review whose body has at most LONGEST_BYTES."""
        template = _template(request, policy)
        if template is None:
            return decide(request, policy, phase)
        key, token = (phase, template[0]), template[1]
        in_force = (policy.digest, policy.rollout, policy.runtime_classes, policy.sliced_nodes)
        memory = self._memory  # once: another thread may replace it
        is_full = len(memory.known) >= MOST or len(memory.seen) >= MOST_SEEN
        if is_full or memory.in_force != in_force:
            memory = self._memory = _Memory(in_force)
        known, seen = memory.known, memory.seen
        decision = known.get(key)
        if decision is not None:
            return replace(decision, before=request.obj)
        decision = decide(request, policy, phase)
        if hash(key) not in seen:
            seen.add(hash(key))
        elif _is_silent(decision) and _is_fit(orjson.dumps(decision.patch), token):
            exact = bytes(memoryview(template[0]))  # orjson holds up to twenty times as much
            known[phase, exact] = replace(decision, before={})
        return decision


def _is_silent(decision: Decision) -> bool:
    return not (decision.findings or decision.notes or decision.malformed)


def _is_fit(patch: bytes, token: bytes) -> bool:
    return len(patch) <= LONGEST_PATCH_BYTES and not (token and token in patch)


def _template(request: Request, policy: Policy) -> tuple[bytes, bytes] | None:
    """Return what a decision follows from, and the name that is left out of it, if any."""
    if request.kind != "Pod" or request.operation != "CREATE" or request.subresource:
        return None
    metadata, spec = request.obj.get("metadata"), request.obj.get("spec")
    if type(metadata) is not dict or type(spec) is not dict or NODES_GROUP in request.groups:
        return None
    try:
        rule = governing_rule(request, policy)
    except MalformedObjectError:
        return None
    name_of_rule = rule.name if rule else ""
    read = (
        name_of_rule,
        request.namespace,
        metadata.get("annotations"),
        metadata.get("labels"),
        spec,
    )
    key = orjson.dumps(read)
    token = _token(spec)
    if not token:
        return key, b""
    name = token.encode()
    if key.count(name) != _count_uses(spec, token):
        return None
    return key.replace(name, _ANY_TOKEN), name


def _token(spec: Json) -> str:
    """Return the name of the volume with the token; empty for none."""
    for volume in _objects(spec.get("volumes")):
        name = volume.get("name")
        if type(name) is str and _TOKEN.fullmatch(name):
            return name
    return ""


def _count_uses(spec: Json, name: str) -> int:
    """Count the volumes and the mounts of a name."""
    uses = sum(1 for volume in _objects(spec.get("volumes")) if volume.get("name") == name)
    for place in ("containers", "initContainers"):
        for container in _objects(spec.get(place)):
            mounts = _objects(container.get("volumeMounts"))
            uses += sum(1 for mount in mounts if mount.get("name") == name)
    return uses


def _objects(found: object) -> list[Json]:
    return [one for one in found if type(one) is dict] if type(found) is list else []
