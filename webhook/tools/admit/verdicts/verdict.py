"""Decision about one pod or pod template, and its lines in the command's output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from webhook.core.admission.decision import Decision, Outcome
from webhook.core.admission.rules.near_misses import MAX_HINTS
from webhook.core.formatting import join_names
from webhook.core.pod.demand import Demand, read_demand
from webhook.core.pod.fields import Json, find_string
from webhook.core.pod.findings import SEPARATOR, MalformedObjectError
from webhook.core.pod.patch import Operation
from webhook.core.pod.pod_templates import Form, format_path, parse_path
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.template_search import is_builtin_without_pods
from webhook.core.pod.views import read_pod
from webhook.tools.admit.migration.foreign_pod import Migration
from webhook.tools.manifests.documents import LineIndex, ManifestObject, Target

MIGRATED: Final = "migrated"
NOT_MIGRATED: Final = "not migrated"
NOTE: Final = "note"
WARNING: Final = "warning"
UNREAD: Final = "finding"
UNREAD_KEY: Final = "UnreadKey"
"""Reason of a finding about a vramwarden key that nothing reads."""

_NO_NAME: Final = "(no name)"


class VerdictKind(StrEnum):
    """Results that the summary counts, in output order."""

    TRANSLATED = "translated"
    ALREADY = "already translated"
    DENIED = "denied"
    WARNED = "allowed with a warning"
    LEFT_ALONE = "left alone"
    NOT_JUDGED = "not judged"


_FORMS: Final = {
    VerdictKind.DENIED: "denied: {}",
    VerdictKind.WARNED: "warning: {}",
    VerdictKind.LEFT_ALONE: "left alone (audit: {})",
}
"""Format of a finding's line, keyed by result."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about a pod, with the line that causes it."""

    line: int
    text: str
    reason: str = ""
    path: str = ""
    """Field that the remark is about, within the object."""


@dataclass(frozen=True, kw_only=True)  # no slots, for cached properties
class PodVerdict:
    """A pod or pod template, and the final decision about it."""

    target: Target
    namespace: str
    lines: LineIndex
    decision: Decision | None
    """None if the object has no pod template."""
    patch: tuple[Operation, ...] = ()
    """Changes to the manifest."""
    notes: tuple[str, ...] = ()
    """Warnings that the API server would return."""
    unread_keys: tuple[str, ...] = ()
    """Messages about vramwarden keys that nothing reads."""
    remarks: tuple[str, ...] = ()
    """Notes that are not warnings."""
    rejected: tuple[str, ...] = ()
    """Malformed fields, which Kubernetes rejects before it calls the webhook."""
    is_translated: bool = False
    """True if admission changes the pod, even if the manifest cannot show the change."""
    is_strict: bool = False
    """True if a warning counts as a denial."""
    migration: Migration | None = None
    """Earlier migration. If set, the manifest is printed as migrated, without admission."""

    @property
    def allowed(self) -> bool:
        """True if the API server would admit the pod."""
        return self.decision is None or self.decision.allowed

    @property
    def passed(self) -> bool:
        """True if the pod is admitted and all its requests are migrated."""
        if not self.allowed or self.unread or (self.migration and self.migration.problems):
            return False
        return not self.is_strict or not (self.warnings or self.sort is VerdictKind.WARNED)

    @property
    def title(self) -> str:
        """Kind, namespace and name of the object: `Deployment team-a/infer`."""
        if self.target.found.form is Form.ELSEWHERE:
            return object_title(self.target.object)
        name = f"{self.target.object.kind} {self.namespace}/{object_name(self.target.object)}"
        return f"{name} ({self.target.found.field})" if self.target.is_one_of_many else name

    @property
    def line(self) -> int:
        """Line of the pod or template, or of its problem."""
        if self.findings:
            return self.findings[0].line
        is_apart = self.target.found.form is Form.ELSEWHERE and self.target.stray
        inside = self.target.stray[0].path if is_apart else ()
        return self.lines.of((*self.target.at, *inside))

    @property
    def outcome(self) -> str:
        """Outcome of the webhook's decision."""
        if self.is_translated:
            return Outcome.MUTATED.value
        return self.decision.outcome.value if self.decision else Outcome.SKIPPED.value

    @cached_property
    def asked(self) -> str:
        """Description of the demand; empty if there is none."""
        return _describe_demand(self.decision.obj) if self.decision else ""

    @property
    def sort(self) -> VerdictKind:
        """Result that the summary counts."""
        return self._decided[0]

    @property
    def summary(self) -> str:
        """Text of the decision or of each finding, and the fields that were not decided."""
        sort, summary = self._decided
        if sort is VerdictKind.DENIED:
            return summary
        unjudged = (
            f"; {format_path(path)} was not judged ({why})"
            for path, why in self.target.found.unjudged[:MAX_HINTS]
        )
        return summary + "".join(unjudged)

    @property
    def summary_lines(self) -> tuple[Remark, ...]:
        """Lines of the summary, each with the line that causes it."""
        if not self.findings:
            return (Remark(self.line, self.summary),)
        form = _FORMS[self.sort]
        found = (Remark(finding.line, form.format(finding.text)) for finding in self.findings)
        return (*found, Remark(self.line, self.guidance)) if self.guidance else tuple(found)

    @cached_property
    def _decided(self) -> tuple[VerdictKind, str]:
        decision = self.decision
        if decision is None:
            return VerdictKind.LEFT_ALONE, "left alone (no pod template)"
        said = decision.message.replace(SEPARATOR, "\n")
        if not decision.allowed:
            return VerdictKind.DENIED, f"denied: {said}"
        if self.target.found.form is Form.ELSEWHERE:
            return VerdictKind.NOT_JUDGED, self.undecided_keys
        if decision.outcome is Outcome.WARNED:
            return VerdictKind.WARNED, f"warning: {said}"
        if self.is_translated:
            what = self.asked or "NVIDIA_VISIBLE_DEVICES set to void"
            where = "" if self.patch else " on the cluster, and printed as it is"
            if self.rejected:
                where = " once the API server accepts it, and printed as it is"
            elif self.migration and self.migration.operations:
                where = " on the cluster"
            return VerdictKind.TRANSLATED, f"translated by rule {decision.rule} ({what}){where}"
        if decision.outcome is Outcome.AUDITED:
            why = f"audit: {said}"
        elif decision.skip:
            why = f"{decision.skip}: rule {decision.rule}" if decision.rule else decision.skip
        elif self.target.found.form is Form.MACHINE:
            why = "a virtual machine"
        elif decision.silent:
            why = f"audit: nothing is wrong with {self.asked or 'it'}"
        elif self.asked:
            return VerdictKind.ALREADY, f"already translated by rule {decision.rule} ({self.asked})"
        else:
            why = "asks for no VRAM"
        return VerdictKind.LEFT_ALONE, f"left alone ({why})"

    @property
    def undecided_keys(self) -> str:
        """Vramwarden keys in the object that were not decided."""
        carried, found = self.target.stray, self.target.object
        keys = [f"{item.key} in a text" if item.is_in_text else item.key for item in carried]
        made = "its pods are made elsewhere"
        if is_builtin_without_pods(found.kind, found.version) and not any(
            item.is_in_text for item in carried
        ):
            made = f"of a {found.kind} no pods are made"
        what = f"carries {join_names(dict.fromkeys(keys))} and " if keys else ""
        return f"{what}was not judged; {made}"

    @cached_property
    def findings(self) -> tuple[Remark, ...]:
        """Findings of the decision, whether the pod is denied or not."""
        decision = self.decision
        if decision is None:
            return ()
        if decision.malformed:
            return (self._remark(decision.malformed, "Malformed"),)
        return tuple(
            self._remark(str(finding), finding.reason.value, finding.path)
            for finding in decision.findings
        )

    @cached_property
    def warnings(self) -> tuple[Remark, ...]:
        """Warnings that the API server would return, and fields that Kubernetes rejects."""
        rejected = (f"{item}; Kubernetes rejects that" for item in self.rejected[:MAX_HINTS])
        return tuple(map(self._remark, (*self.notes, *rejected)))

    @cached_property
    def unread(self) -> tuple[Remark, ...]:
        """Findings about vramwarden keys that nothing reads. The pod is admitted nevertheless."""
        return tuple(self._remark(text, UNREAD_KEY) for text in self.unread_keys)

    @cached_property
    def noted(self) -> tuple[Remark, ...]:
        """Notes that are not warnings."""
        return tuple(map(self._remark, self.remarks))

    @property
    def guidance(self) -> str:
        """The platform team's guidance on findings, for outputs that show it separately."""
        return self.decision.guidance if self.decision else ""

    def _remark(self, text: str, reason: str = "", path: str = "") -> Remark:
        """Return a remark about a field. Without `path`, the field is the prefix of `text`."""
        path = path or text.partition(": ")[0]
        return Remark(self.find_line(path), text, reason, path)

    def find_line(self, shown: str) -> int:
        """Return the line of a field, given its path as shown in messages."""
        return self.lines.of((*self.target.object.at, *parse_path(shown)))


def object_title(found: ManifestObject) -> str:
    """Return the kind and name of an object, with its namespace if it has one."""
    namespace, name = find_string(found.value, "metadata", "namespace"), object_name(found)
    if not found.kind and name == _NO_NAME:
        return "(no kind)"
    return f"{found.kind or '(no kind)'} {f'{namespace}/{name}' if namespace else name}"


def object_name(found: ManifestObject) -> str:
    """Return the name of an object, or its generateName."""
    name = find_string(found.value, "metadata", "name")
    return name or find_string(found.value, "metadata", "generateName") or _NO_NAME


def _describe_demand(pod: Json) -> str:
    demand, _ = find_demand(pod)
    if demand is None:
        return ""
    amount, count = format_bytes(demand.per_gpu_bytes), demand.gpu_count
    if len(demand.amounts) == 1 and len(pod["spec"]["containers"]) > 1:
        amount += f" for {next(iter(demand.amounts))}"
    return f"{amount} on {count} GPU" if count == 1 else f"{amount} on each of {count} GPUs"


def find_demand(pod: Json) -> tuple[Demand | None, bool]:
    """Return a pod's demand, and True if the pod requests VRAM, even if unreadably."""
    try:
        demand, unreadable = read_demand(read_pod(pod))
    except MalformedObjectError:
        return None, False
    return demand, demand is not None or bool(unreadable)


def remarks(judged: PodVerdict) -> Iterator[tuple[str, Remark]]:
    """Yield each remark beyond the summary, with its kind, such as `warning`.

    Remarks about a migration come first: changes, problems, and fields without an equivalent.
    """
    if migration := judged.migration:
        if migration.asks:
            line = judged.lines.of(judged.target.at)
            yield MIGRATED, Remark(line, f"from {migration.product} to {migration.asks}")
        for word, notes in ((NOT_MIGRATED, migration.problems), (NOTE, migration.notes)):
            for note in notes:
                path = judged.target.found.shown(note.path)
                text = f"{path}: {note.detail}"
                yield word, Remark(judged.find_line(path), text, path=path)
    if judged.target.found.form is Form.ELSEWHERE and not judged.allowed:
        yield NOTE, Remark(judged.line, judged.undecided_keys)
    yield from ((UNREAD, item) for item in judged.unread)
    yield from ((WARNING, warning) for warning in judged.warnings)
    yield from ((NOTE, item) for item in judged.noted)
