"""What admission decides about one pod or pod template, as lines of the command's output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from webhook.core.admission.decide import Outcome
from webhook.core.admission.templates import (
    creation_of,
    decide_both,
    hints_for_machine,
    misplaced,
)
from webhook.core.pod.demand import read_demand
from webhook.core.pod.findings import MalformedObjectError
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.templates import Form, container_path, is_own_kind
from webhook.core.pod.views import read_pod
from webhook.core.policy.match import ANYONE, controllers_of, with_name
from webhook.tools.shared.manifests.documents import parts_of, text_of
from webhook.tools.shared.manifests.reading import ExactFloat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.decide import Decision
    from webhook.core.pod.fields import Json
    from webhook.core.pod.patch import Operation
    from webhook.core.pod.review import Request
    from webhook.core.policy.cluster import Cluster
    from webhook.core.policy.match import Creator
    from webhook.core.policy.values import Policy
    from webhook.tools.admit.judge.migration.foreign_pod import Migration
    from webhook.tools.shared.manifests.documents import LineIndex, ManifestObject, Target

MIGRATED: Final = "migrated"
NOT_MIGRATED: Final = "not migrated"
NOTE: Final = "note"
_LARGEST_INTEGER: Final = 2**64 - 1


class Sort(StrEnum):
    """What the summary counts, in its order and words."""

    TRANSLATED = "translated"
    ALREADY = "already translated"
    DENIED = "denied"
    WARNED = "allowed with a warning"
    LEFT_ALONE = "left alone"


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is said of a pod, and in which line its cause stands."""

    line: int
    text: str
    reason: str = ""
    path: str = ""
    """The field that it is about, within the pod."""


@dataclass(frozen=True, kw_only=True)  # no slots: what is derived is made once
class JudgedPod:
    """A pod or pod template, and the decision about it: the last one where there are two."""

    target: Target
    namespace: str
    lines: LineIndex
    decision: Decision | None
    """None where the object holds no pod template."""
    patch: tuple[Operation, ...] = ()
    """What changes in the manifest."""
    notes: tuple[str, ...] = ()
    """What the API server would return as warnings beside the decision."""
    is_translated: bool = False
    """Whether admission changes the pod, also where the manifest has no place for that."""
    migration: Migration | None = None
    """What became of it before; the manifest is then printed so, and not translated."""

    @property
    def allowed(self) -> bool:
        """Whether the API server would let the pod in."""
        return self.decision is None or self.decision.allowed

    @property
    def passed(self) -> bool:
        """Whether nothing is left to do: it is let in, and what it asked for is carried over."""
        return self.allowed and not (self.migration and self.migration.problems)

    @property
    def title(self) -> str:
        """Which object it is: `Deployment team-a/infer`."""
        name = f"{self.target.object.kind} {self.namespace}/{name_of(self.target.object)}"
        return f"{name} ({self.target.found.field})" if self.target.is_one_of_many else name

    @property
    def line(self) -> int:
        """Where the pod or the template stands, or what is wrong with it."""
        return self.findings[0].line if self.findings else self.lines.of(self.target.at)

    @property
    def outcome(self) -> str:
        """What the webhook would have said, in its own words."""
        if self.is_translated:
            return Outcome.MUTATED.value
        return self.decision.outcome.value if self.decision else Outcome.SKIPPED.value

    @cached_property
    def asked(self) -> str:
        """The demand in words, empty where there is none."""
        return _asked(self.decision.obj) if self.decision else ""

    @property
    def sort(self) -> Sort:
        """How the summary counts it."""
        return self._decided[0]

    @property
    def summary(self) -> str:
        """What was decided, in one line."""
        return self._decided[1]

    @cached_property
    def _decided(self) -> tuple[Sort, str]:
        decision = self.decision
        if decision is None:
            return Sort.LEFT_ALONE, "left alone (no pod template)"
        if not decision.allowed:
            return Sort.DENIED, f"denied: {decision.message}"
        if decision.outcome is Outcome.WARNED:
            return Sort.WARNED, f"warning: {decision.message}"
        if self.is_translated:
            what = self.asked or "NVIDIA_VISIBLE_DEVICES set to void"
            where = "" if self.patch else " on the cluster, and printed as it is"
            if self.migration and self.migration.operations:
                where = " on the cluster"
            return Sort.TRANSLATED, f"translated by rule {decision.rule} ({what}){where}"
        if decision.outcome is Outcome.AUDITED:
            why = f"audit: {decision.message}"
        elif decision.skip:
            why = f"{decision.skip}: rule {decision.rule}" if decision.rule else decision.skip
        elif self.target.found.form is Form.MACHINE:
            why = "a virtual machine"
        elif decision.silent:
            why = f"audit: nothing is wrong with {self.asked or 'it'}"
        elif self.asked:
            return Sort.ALREADY, f"already translated by rule {decision.rule} ({self.asked})"
        else:
            why = "asks for no VRAM"
        return Sort.LEFT_ALONE, f"left alone ({why})"

    @cached_property
    def findings(self) -> tuple[Remark, ...]:
        """What is wrong with the pod, whether it is denied for that or not."""
        decision = self.decision
        if decision is None:
            return ()
        if decision.malformed:
            path, _, _ = decision.malformed.partition(": ")
            return (Remark(self.line_of(path), decision.malformed, "Malformed", path),)
        return tuple(
            Remark(self.line_of(one.path), str(one), one.reason.value, one.path)
            for one in decision.findings
        )

    @cached_property
    def warnings(self) -> tuple[Remark, ...]:
        """What the user should know beside the decision."""
        notes = (*self.notes, *(hints_for_machine(self.target.found) if self.allowed else ()))
        return tuple(Remark(self.line_of(note.partition(": ")[0]), note) for note in notes)

    @property
    def guidance(self) -> str:
        """What the platform team says about findings, for where each stands on its own."""
        return self.decision.guidance if self.decision else ""

    @cached_property
    def hints(self) -> tuple[Remark, ...]:
        """What was probably meant: annotations on the workload, where nothing reads them."""
        found = self.target.object
        at = (*found.at, "metadata", "annotations")
        return tuple(
            Remark(self.lines.of((*at, text.partition(" ")[0])), text)
            for text in misplaced(found.value, found.kind, self.target.found)
        )

    def line_of(self, shown: str) -> int:
        """Return the line of a field of the pod, by its path as messages write it."""
        path, found = parts_of(shown), self.target.found
        at = self.target.at
        if path[:1] == ("metadata",) and found.metadata_path is not None:
            at = (*self.target.object.at, *found.metadata_path)
        match path:
            case ("spec", "containers" | "initContainers" as field, int(index), *rest):
                value = _value(self, at)
                path = (*container_path(value, found.form, field, index), *rest)
            case ("spec", *rest) if found.form is Form.CONTAINER:
                path = tuple(rest)
        return self.lines.of((*at, *path))


def name_of(found: ManifestObject) -> str:
    """Return the name of an object, or the one that it asks to be generated from."""
    name = text_of(found.value, "metadata", "name")
    return name or text_of(found.value, "metadata", "generateName") or "(no name)"


def judge(
    target: Target,
    policy: Policy,
    cluster: Cluster,
    namespace: str,
    lines: LineIndex,
    creator: Creator = ANYONE,
) -> JudgedPod:
    """Decide a pod as the API server would have it decided on creation: mutate, then validate.

    A controller creates the pods of Kubernetes' own workloads, and the creator given all others.
    """
    found = target.object
    namespace = text_of(found.value, "metadata", "namespace") or namespace
    if target.found.pod is None:
        return JudgedPod(target=target, namespace=namespace, lines=lines, decision=None)
    controllers = controllers_of(found.kind) if is_own_kind(found.kind, found.version) else ()
    if controllers:
        creator = replace(controllers[0], namespace_labels=creator.namespace_labels)
    labels = with_name(namespace, creator.namespace_labels)
    creation = creation_of(_as_sent(target.pod), namespace, creator)
    known = replace(cluster, namespaces={namespace: labels})
    first, last = decide_both(creation, policy, known)
    patch = first.patch if last.allowed else ()
    form = target.found.form
    return JudgedPod(
        target=target,
        namespace=namespace,
        lines=lines,
        decision=last,
        patch=patch if form is Form.POD else (),
        notes=first.notes,
        is_translated=bool(patch) and form is not Form.MACHINE,
    )


def request_for(target: Target, namespace: str) -> Request:
    """Return the request that the API server would send for the pod's creation."""
    return creation_of(_as_sent(target.pod), namespace)


def _value(judged: JudgedPod, at: tuple[str | int, ...]) -> Any:
    """Return what stands at a path of the document that leads into the object."""
    value: Any = judged.target.object.value
    for part in at[len(judged.target.object.at) :]:
        value = value[part]
    return value


def _as_sent(value: Any, above: tuple[str, str] = ("", "")) -> Any:
    """Return plain JSON; an amount that a manifest writes as a number is sent as its digits."""
    if isinstance(value, dict):
        return {
            key: item.text
            if isinstance(item, ExactFloat) and _holds_amounts(above)
            else _as_sent(item, (above[1], key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_as_sent(item, above) for item in value]
    if isinstance(value, ExactFloat) or (type(value) is int and abs(value) > _LARGEST_INTEGER):
        return float(value)
    return value


def _holds_amounts(above: tuple[str, str]) -> bool:
    return above in {("resources", "requests"), ("resources", "limits")}


def _asked(pod: Json) -> str:
    """Return the demand in words, empty where there is none."""
    try:
        demand, _ = read_demand(read_pod(pod))
    except MalformedObjectError:
        return ""
    if demand is None:
        return ""
    amount, count = format_bytes(demand.per_gpu_bytes), demand.gpu_count
    return f"{amount} on {count} GPU" if count == 1 else f"{amount} on each of {count} GPUs"


def remarks(judged: JudgedPod) -> Iterator[tuple[str, Remark]]:
    """Yield all that is said beside the summary, each with its word: `warning`, `hint`, ...

    First what a migration did, what it could not do, and what has no counterpart.
    """
    if migration := judged.migration:
        if migration.asks:
            line = judged.lines.of(judged.target.at)
            yield MIGRATED, Remark(line, f"from {migration.product} to {migration.asks}")
        for word, notes in ((NOT_MIGRATED, migration.problems), (NOTE, migration.notes)):
            for note in notes:
                yield word, Remark(judged.line_of(note.path), str(note), path=note.path)
    yield from (("warning", one) for one in judged.warnings)
    yield from (("hint", one) for one in judged.hints)


def printable(text: str) -> str:
    """Show what could steer a terminal as escapes: names come from files of others."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
