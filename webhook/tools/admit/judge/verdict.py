"""What admission decides about one pod or pod template, as lines of the command's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final

from webhook.core.admission.controller_gpu_counts import gpu_count_advice
from webhook.core.admission.decision import Decision, Outcome
from webhook.core.admission.rules.near_misses import MAX_HINTS
from webhook.core.admission.stray_keys import find_invalid_amounts, stray_key_warnings
from webhook.core.admission.workload_review import (
    create_request,
    decide_both_phases,
    with_template_paths,
)
from webhook.core.formatting import join_names
from webhook.core.nvidia.programs import warn_of_size
from webhook.core.pod.demand import Demand, read_demand
from webhook.core.pod.fields import Json, find_object, find_string
from webhook.core.pod.findings import SEPARATOR, MalformedObjectError, annotation_path
from webhook.core.pod.patch import Operation
from webhook.core.pod.pod_templates import Form, Template, as_object_list, format_path, parse_path
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.template_search import is_builtin_without_pods
from webhook.core.pod.views import read_pod
from webhook.core.policy.cluster import Cluster
from webhook.core.policy.match import add_name_label
from webhook.core.policy.model import Policy
from webhook.names import (
    MIRROR_POD_ANNOTATION,
    NODES_GROUP,
    REQUEST_ANNOTATIONS,
    VRAM_RESOURCE,
)
from webhook.tools.admit.judge.creation import as_sent, decide_accepted, sent_pod
from webhook.tools.admit.judge.migration.foreign_pod import Migration
from webhook.tools.manifests.documents import LineIndex, ManifestObject, Target

MIGRATED: Final = "migrated"
NOT_MIGRATED: Final = "not migrated"
NOTE: Final = "note"
WARNING: Final = "warning"
UNREAD: Final = "finding"
UNREAD_KEY: Final = "UnreadKey"
"""Reason of a finding about a key of ours that nothing reads."""

_NO_NAME: Final = "(no name)"
_STATIC: Final = (
    "remove it, and run the pod by a DaemonSet; a static pod can have no share, since the kubelet "
    "starts it without asking the API server"
)


class Sort(StrEnum):
    """What the summary counts, in its order and words."""

    TRANSLATED = "translated"
    ALREADY = "already translated"
    DENIED = "denied"
    WARNED = "allowed with a warning"
    LEFT_ALONE = "left alone"
    NOT_JUDGED = "not judged"


_FORMS: Final = {
    Sort.DENIED: "denied: {}",
    Sort.WARNED: "warning: {}",
    Sort.LEFT_ALONE: "left alone (audit: {})",
}
"""Form of a finding's line."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that is said of a pod, and in which line its cause stands."""

    line: int
    text: str
    reason: str = ""
    path: str = ""
    """The field that it is about, within the object."""


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
    """Warnings that the API server would return."""
    unread_keys: tuple[str, ...] = ()
    """Sentences about keys of ours that nothing reads."""
    remarks: tuple[str, ...] = ()
    """Notes, which are no warnings."""
    rejected: tuple[str, ...] = ()
    """What is malformed, and so no admission of ours sees the pod; it is judged without that."""
    is_translated: bool = False
    """Whether admission changes the pod, also where the manifest has no place for that."""
    is_strict: bool = False
    """Whether a warning counts as a denial."""
    migration: Migration | None = None
    """What became of it before; the manifest is then printed so, and not translated."""

    @property
    def allowed(self) -> bool:
        """Whether the API server would let the pod in."""
        return self.decision is None or self.decision.allowed

    @property
    def passed(self) -> bool:
        """Whether nothing is left to do: it is let in, and what it asked for is carried over."""
        if not self.allowed or self.unread or (self.migration and self.migration.problems):
            return False
        return not self.is_strict or not (self.warnings or self.sort is Sort.WARNED)

    @property
    def title(self) -> str:
        """Which object it is: `Deployment team-a/infer`."""
        if self.target.found.form is Form.ELSEWHERE:
            return title_of(self.target.object)
        name = f"{self.target.object.kind} {self.namespace}/{name_of(self.target.object)}"
        return f"{name} ({self.target.found.field})" if self.target.is_one_of_many else name

    @property
    def line(self) -> int:
        """Where the pod or the template stands, or what is wrong with it."""
        if self.findings:
            return self.findings[0].line
        is_apart = self.target.found.form is Form.ELSEWHERE and self.target.stray
        inside = self.target.stray[0].path if is_apart else ()
        return self.lines.of((*self.target.at, *inside))

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
        """The decision, in one line or one for each finding, and fields that were not judged."""
        sort, summary = self._decided
        if sort is Sort.DENIED:
            return summary
        unjudged = (
            f"; {format_path(path)} was not judged ({why})"
            for path, why in self.target.found.unjudged[:MAX_HINTS]
        )
        return summary + "".join(unjudged)

    @property
    def said(self) -> tuple[Remark, ...]:
        """Lines of the summary, each at its place."""
        if not self.findings:
            return (Remark(self.line, self.summary),)
        form = _FORMS[self.sort]
        found = (Remark(one.line, form.format(one.text)) for one in self.findings)
        return (*found, Remark(self.line, self.guidance)) if self.guidance else tuple(found)

    @cached_property
    def _decided(self) -> tuple[Sort, str]:
        decision = self.decision
        if decision is None:
            return Sort.LEFT_ALONE, "left alone (no pod template)"
        said = decision.message.replace(SEPARATOR, "\n")
        if not decision.allowed:
            return Sort.DENIED, f"denied: {said}"
        if self.target.found.form is Form.ELSEWHERE:
            return Sort.NOT_JUDGED, self.carries
        if decision.outcome is Outcome.WARNED:
            return Sort.WARNED, f"warning: {said}"
        if self.is_translated:
            what = self.asked or "NVIDIA_VISIBLE_DEVICES set to void"
            where = "" if self.patch else " on the cluster, and printed as it is"
            if self.rejected:
                where = " once the API server accepts it, and printed as it is"
            elif self.migration and self.migration.operations:
                where = " on the cluster"
            return Sort.TRANSLATED, f"translated by rule {decision.rule} ({what}){where}"
        if decision.outcome is Outcome.AUDITED:
            why = f"audit: {said}"
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

    @property
    def carries(self) -> str:
        """The keys in the object that were not judged."""
        carried, found = self.target.stray, self.target.object
        keys = [f"{one.key} in a text" if one.is_in_text else one.key for one in carried]
        made = "its pods are made elsewhere"
        if is_builtin_without_pods(found.kind, found.version) and not any(
            one.is_in_text for one in carried
        ):
            made = f"of a {found.kind} no pods are made"
        what = f"carries {join_names(dict.fromkeys(keys))} and " if keys else ""
        return f"{what}was not judged; {made}"

    @cached_property
    def findings(self) -> tuple[Remark, ...]:
        """Findings about the pod, whether it is denied for them or not."""
        decision = self.decision
        if decision is None:
            return ()
        if decision.malformed:
            return (self._remark(decision.malformed, "Malformed"),)
        return tuple(
            self._remark(str(one), one.reason.value, one.path) for one in decision.findings
        )

    @cached_property
    def warnings(self) -> tuple[Remark, ...]:
        """Warnings of the API server and of Kubernetes."""
        rejected = (f"{one}; Kubernetes rejects that" for one in self.rejected[:MAX_HINTS])
        return tuple(map(self._remark, (*self.notes, *rejected)))

    @cached_property
    def unread(self) -> tuple[Remark, ...]:
        """Keys of ours that nothing reads, which are findings although the pod is let in."""
        return tuple(self._remark(text, UNREAD_KEY) for text in self.unread_keys)

    @cached_property
    def noted(self) -> tuple[Remark, ...]:
        """Notes."""
        return tuple(map(self._remark, self.remarks))

    @property
    def guidance(self) -> str:
        """What the platform team says about findings, for where each stands on its own."""
        return self.decision.guidance if self.decision else ""

    def _remark(self, text: str, reason: str = "", path: str = "") -> Remark:
        """Return a text about a field; without a path, the text begins with it."""
        path = path or text.partition(": ")[0]
        return Remark(self.printable_line(path), text, reason, path)

    def printable_line(self, shown: str) -> int:
        """Return the line of a field of the object, by its path as messages write it."""
        return self.lines.of((*self.target.object.at, *parse_path(shown)))


def title_of(found: ManifestObject) -> str:
    """Return which object it is; it may be one without a namespace."""
    namespace, name = find_string(found.value, "metadata", "namespace"), name_of(found)
    if not found.kind and name == _NO_NAME:
        return "(no kind)"
    return f"{found.kind or '(no kind)'} {f'{namespace}/{name}' if namespace else name}"


def name_of(found: ManifestObject) -> str:
    """Return the name of an object, or the one that it asks to be generated from."""
    name = find_string(found.value, "metadata", "name")
    return name or find_string(found.value, "metadata", "generateName") or _NO_NAME


def judge(
    target: Target,
    policy: Policy,
    cluster: Cluster,
    namespace: str,
    lines: LineIndex,
    namespace_labels: Mapping[str, str],
) -> JudgedPod:
    """Decide a pod as the API server would have it decided on creation: mutate, then validate."""
    found = target.object
    namespace = find_string(found.value, "metadata", "namespace") or namespace
    if target.found.pod is None:
        is_apart = target.found.form is Form.ELSEWHERE
        decision = _of_amounts(target) if is_apart else None
        # Rules may match by any label of a namespace.
        useless = [one for one in target.unread if one.key not in policy.namespace_labels]
        return JudgedPod(
            target=target,
            namespace=namespace,
            lines=lines,
            decision=decision,
            notes=tuple(one.warning for one in target.stray if one.cure and one not in useless),
            unread_keys=tuple(one.warning for one in useless),
        )
    pod, copied = sent_pod(as_sent(target.pod))
    known = replace(cluster, namespaces={namespace: add_name_label(namespace, namespace_labels)})
    creation = create_request(pod, namespace)
    is_mirror = MIRROR_POD_ANNOTATION in find_object(pod, "metadata", "annotations")
    if is_mirror:
        creation = replace(creation, groups=(NODES_GROUP,))
    first, last, rejected = decide_accepted(creation, policy, known)
    first = first.with_advice(warn_of_size(first.advice_bytes or 0))

    def decided(other: Json) -> Decision:
        return decide_both_phases(create_request(other, namespace), policy, known)[0]

    form = target.found.form
    is_own = form is Form.POD and not rejected
    first, last = (with_template_paths(one, target.found) for one in (first, last))
    stray = stray_key_warnings(target.stray, target.found, pod, decided, last.findings)
    unread = (
        *first.unread_keys,
        *stray,
        *(_requests(pod, _STATIC) if is_mirror else ()),
        *(_of_machine(target.found) if form is Form.MACHINE and last.allowed else ()),
    )
    demand, asks = _demand_of(last.obj)
    count = demand.gpu_count if demand else 1
    counted = gpu_count_advice(found.value, found.version, target.found, count) if asks else ""
    return JudgedPod(
        target=target,
        namespace=namespace,
        lines=lines,
        decision=last,
        patch=first.patch if last.allowed and is_own else (),
        notes=first.notes,
        unread_keys=unread,
        remarks=tuple(filter(None, (copied, counted))),
        rejected=tuple(map(target.found.shown_text, rejected)),
        is_translated=last.allowed and bool(first.patch) and form is not Form.MACHINE,
    )


def _requests(pod: Json, cure: str) -> Iterator[str]:
    """Yield each request for VRAM of a pod that can have no share, with what to do."""
    for key in REQUEST_ANNOTATIONS:
        if key in find_object(pod, "metadata", "annotations"):
            yield f"{annotation_path(key)}: {cure}"
    for index, one in enumerate(as_object_list(find_object(pod, "spec").get("containers"))):
        if VRAM_RESOURCE in find_object(one, "resources", "limits"):
            yield f"spec.containers[{index}].resources.limits[{VRAM_RESOURCE}]: {cure}"


def _of_machine(template: Template) -> Iterator[str]:
    """Return each request for VRAM of a virtual machine, with what to do."""
    devices = format_path((*template.path, "spec", "domain", "devices", "gpus"))
    cure = f"remove the annotation and use {devices}; a share of a GPU reaches no virtual machine"
    return map(template.shown_text, _requests(template.pod or {}, cure))


def _of_amounts(target: Target) -> Decision:
    """Decide what is wrong with amounts alone: somebody else makes their pods."""
    findings = tuple(
        finding
        for one in target.stray
        if not one.is_in_text
        and not is_builtin_without_pods(target.object.kind, target.object.version)
        for finding in find_invalid_amounts(one.key, one.value, one.field)
    )
    return Decision(outcome=Outcome.DENIED if findings else Outcome.SKIPPED, findings=findings)


def _asked(pod: Json) -> str:
    """Return the demand in words, empty where there is none."""
    demand, _ = _demand_of(pod)
    if demand is None:
        return ""
    amount, count = format_bytes(demand.per_gpu_bytes), demand.gpu_count
    if len(demand.amounts) == 1 and len(pod["spec"]["containers"]) > 1:
        amount += f" for {next(iter(demand.amounts))}"
    return f"{amount} on {count} GPU" if count == 1 else f"{amount} on each of {count} GPUs"


def _demand_of(pod: Json) -> tuple[Demand | None, bool]:
    """Return the demand of a pod, and True if it asks for VRAM, readably or not."""
    try:
        demand, unreadable = read_demand(read_pod(pod))
    except MalformedObjectError:
        return None, False
    return demand, demand is not None or bool(unreadable)


def remarks(judged: JudgedPod) -> Iterator[tuple[str, Remark]]:
    """Yield all that is said beside the summary, each with its word: `warning`, `finding`, ...

    First what a migration did, what it could not do, and what has no counterpart.
    """
    if migration := judged.migration:
        if migration.asks:
            line = judged.lines.of(judged.target.at)
            yield MIGRATED, Remark(line, f"from {migration.product} to {migration.asks}")
        for word, notes in ((NOT_MIGRATED, migration.problems), (NOTE, migration.notes)):
            for note in notes:
                path = judged.target.found.shown(note.path)
                text = f"{path}: {note.detail}"
                yield word, Remark(judged.printable_line(path), text, path=path)
    if judged.target.found.form is Form.ELSEWHERE and not judged.allowed:
        yield NOTE, Remark(judged.line, judged.carries)
    yield from ((UNREAD, one) for one in judged.unread)
    yield from ((WARNING, one) for one in judged.warnings)
    yield from ((NOTE, one) for one in judged.noted)
