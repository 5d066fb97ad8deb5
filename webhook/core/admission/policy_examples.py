"""Policy examples: a pod and the admission result that the policy's author expects.

The webhook's own code decides in both phases, so an example shows the result in a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import zip_longest
from typing import Any, Final

from webhook.core.admission.accounting import requested_bytes, sum_limits
from webhook.core.admission.decision import Decision, Outcome, Skip
from webhook.core.admission.workload_review import create_request, decide_both_phases
from webhook.core.formatting import shorten
from webhook.core.pod.demand import read_demand
from webhook.core.pod.fields import Json, get_objects, get_string, get_string_map
from webhook.core.pod.findings import Finding, MalformedObjectError, join_findings, quote
from webhook.core.pod.patch import PatchError
from webhook.core.pod.quantity import format_bytes
from webhook.core.pod.views import Pod, read_pod
from webhook.core.policy.cluster import Cluster, SlicedNode
from webhook.core.policy.model import Example, Policy
from webhook.names import ADMITTED_ANNOTATION

_SHOWN_TOLERATIONS: Final = 3
_SHOWN_DIFFERENCES: Final = 6
_LONGEST_VALUE: Final = 100
_ABSENT: Final = object()
_NAMING: Final = ("name", "namespace")
_TYPE: Final = ("apiVersion", "kind")


def run_example(example: Example, policy: Policy) -> tuple[str, ...]:
    """Return the differences from the expected result as sentences; empty if there are none."""
    nodes = (SlicedNode(example.mig_profiles),) if example.mig_profiles else ()
    cluster = Cluster(
        runtime_classes=example.runtime_classes,
        sliced_nodes=nodes,
        namespaces={example.namespace: example.namespace_labels},
    )
    try:
        first, last = decide_both_phases(
            create_request(example.pod, example.namespace), policy, cluster
        )
    except PatchError as error:
        return (f"vramwarden failed on this pod, which is a bug: {error}",)
    findings = tuple(dict.fromkeys((*first.findings, *last.findings)))
    elsewhere = _other_file(example, first.rule, policy)
    return tuple(found + elsewhere for found in _mismatches(example, first, last, findings))


def _other_file(example: Example, name: str, policy: Policy) -> str:
    """Return a note if a rule in another file applies to the pod, or an empty string."""
    rule = next((rule for rule in policy.rules if rule.name == name), None)
    if rule is None or not rule.where:
        return ""
    own = example.where.rpartition(":")[0]
    if own == rule.where.rpartition(":")[0]:
        return ""
    later = policy.rules[policy.rules.index(rule) :]
    why = (
        "matched first: files are read in the order of their names; narrow its match, "
        "or rename a file"
        if any(other.where.rpartition(":")[0] == own for other in later)
        else "applies to the pod, for no rule of this file matches it"
    )
    return f"; rule {rule.name} in {rule.where} {why}"


def _mismatches(
    example: Example, first: Decision, last: Decision, findings: tuple[Finding, ...]
) -> Iterator[str]:
    allowed = first.allowed and last.allowed
    if allowed != example.allowed:
        yield f"wanted allowed: {str(example.allowed).lower()}, got {_describe_result(first, last)}"
    if example.reasons is not None:
        reasons = tuple(dict.fromkeys(finding.reason.value for finding in findings))
        if set(reasons) != set(example.reasons):
            message = first.malformed or last.malformed or join_findings(findings, "; ")
            wanted, got = ", ".join(example.reasons), ", ".join(reasons)
            yield f"wanted reasons [{wanted}], got [{got}]{': ' * bool(message)}{message}"
    if example.rule is not None and example.rule != first.rule:
        yield f"wanted rule {example.rule}, got {first.rule or 'none'}"
    try:
        yield from _mismatches_of_result(example, last.obj)
    except MalformedObjectError as error:
        expected = (
            *(example.vram, example.resources, example.node_selector, example.annotations),
            *(example.runtime_class_name, example.tolerations, example.env, example.translated),
        )
        if any(each is not None for each in expected):
            yield f"the pod cannot be read: {error}"


def _mismatches_of_result(example: Example, raw: Json) -> Iterator[str]:
    pod = read_pod(raw)
    if example.vram is not None:
        vram = requested_bytes(pod)
        if vram != example.vram:
            got = "an amount that cannot be read" if vram is None else format_bytes(vram)
            yield f"wanted vram {_amount(example.vram)}, got {got}"
    for resource, expected in (example.resources or {}).items():
        amount = sum_limits(pod, resource)
        if amount != expected:
            got = "an amount that cannot be read" if amount is None else _amount(amount)
            yield f"wanted resources {resource}: {_amount(expected)}, got {got}"
    selector = get_string_map(pod.spec, "nodeSelector", "spec")
    yield from _entries("nodeSelector", example.node_selector, selector)
    yield from _entries("annotation", example.annotations, pod.annotations)
    if example.runtime_class_name is not None:
        name = get_string(pod.spec, "runtimeClassName", "spec")
        if name != example.runtime_class_name:
            wanted = example.runtime_class_name or "none"
            yield f"wanted runtimeClassName {wanted}, got {name or 'none'}"
    if example.tolerations:
        yield from _tolerations(example.tolerations, get_objects(pod.spec, "tolerations", "spec"))
    if example.env:
        yield from _variables(example.env, pod)
    if example.translated is not None:
        yield from _whole_pod(example.translated, raw)


def _entries(what: str, wanted: Mapping[str, str] | None, got: Mapping[str, str]) -> Iterator[str]:
    for key, value in (wanted or {}).items():
        if got.get(key) != value:
            found = quote(got[key]) if key in got else "none"
            yield f"wanted {what} {key}: {quote(value)}, got {found}"


def _tolerations(wanted: tuple[Json, ...], got: list[Json]) -> Iterator[str]:
    """Compare tolerations as the API server does: empty means absent, and Equal is the default."""
    present = [*map(_read_toleration, got)]
    for toleration in wanted:
        if _read_toleration(toleration) not in present:
            found = ", ".join(map(_shown, got[:_SHOWN_TOLERATIONS])) or "none"
            more = f" and {len(got) - _SHOWN_TOLERATIONS} more"
            found += more * (len(got) > _SHOWN_TOLERATIONS)
            yield f"wanted toleration {_shown(toleration)}, got {found}"


def _read_toleration(toleration: Json) -> Json:
    fields = {key: value for key, value in toleration.items() if value not in (None, "")}
    return {"operator": "Equal", **fields}


def _variables(wanted: Mapping[str, str], pod: Pod) -> Iterator[str]:
    """Compare variables of each container with VRAM. Of duplicates, the last one counts."""
    demand, _ = read_demand(pod)
    with_vram = [each for each in pod.containers if demand and each.name in demand.amounts]
    if not with_vram:
        yield f"wanted env {', '.join(wanted)}, got no container with VRAM"
    for container in with_vram:
        entries = {entry["name"]: entry for entry in container.env()}
        for name, value in wanted.items():
            entry = entries.get(name)
            if entry is None:
                got = "none"
            elif entry.get("valueFrom"):
                got = f"a reference: {_shown(entry['valueFrom'])}"
            elif entry.get("value", "") == value:
                continue
            else:
                got = quote(entry.get("value", ""))
            yield f"wanted env {name}: {quote(value)} in container {container.name}, got {got}"


def _whole_pod(wanted: Json, raw: Json) -> Iterator[str]:
    """Compare a whole pod, except for the annotation with the policy's digest.

    Name and namespace only count if the author sets them. Empty maps count as absent.
    """
    metadata = {key: value for key, value in raw["metadata"].items() if value}
    notes = {
        key: value
        for key, value in metadata.pop("annotations", {}).items()
        if key != ADMITTED_ANNOTATION
    }
    if notes:
        metadata["annotations"] = notes
    expected = wanted.get("metadata", {})
    if isinstance(expected, dict):
        for key in _NAMING:
            if key not in expected:
                metadata.pop(key, None)
    got = {key: value for key, value in raw.items() if key not in _TYPE or key in wanted}
    got["metadata"] = metadata
    found = list(_differences({"metadata": {}, **wanted}, got, "pod"))
    yield from found[:_SHOWN_DIFFERENCES]
    if len(found) > _SHOWN_DIFFERENCES:
        yield f"and {len(found) - _SHOWN_DIFFERENCES} more differences of the pod"


def _describe_result(first: Decision, last: Decision) -> str:
    if not last.allowed:
        by = f" by rule {last.rule}" if last.rule else ""
        return f"denied{by}: {last.log_message}"
    words = {
        Outcome.MUTATED: f"allowed (mutated by rule {first.rule})",
        Outcome.WARNED: f"allowed (with warnings, by rule {first.rule})",
        Outcome.AUDITED: f"allowed (recorded by rule {first.rule})",
        Outcome.SKIPPED: "allowed (no rule matches)",
    }
    if first.skip is Skip.RULE_IGNORES:
        return f"allowed (ignored by rule {first.rule})"
    return words.get(first.outcome, f"allowed (unchanged, by rule {first.rule})")


def _amount(wanted: Fraction) -> str:
    return format_bytes(int(wanted)) if wanted.denominator == 1 else str(wanted)


def _differences(wanted: Any, got: Any, path: str) -> Iterator[str]:
    """Yield a line for each difference between two values.

    Items of lists are compared by index. An object or list that only one value contains is one
    difference.
    """
    if isinstance(wanted, dict) and isinstance(got, dict):
        for key in dict.fromkeys((*wanted, *got)):
            below = f"{path}[{key}]" if "/" in key or "." in key else f"{path}.{key}"
            yield from _differences(wanted.get(key, _ABSENT), got.get(key, _ABSENT), below)
    elif isinstance(wanted, list) and isinstance(got, list):
        pairs = zip_longest(wanted, got, fillvalue=_ABSENT)
        for index, (one, other) in enumerate(pairs):
            yield from _differences(one, other, f"{path}[{index}]")
    elif type(wanted) is not type(got) or wanted != got:  # True equals 1
        yield f"wanted {path}: {_shown(wanted)}, got {_shown(got)}"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "none"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return shorten(text, _LONGEST_VALUE)
