"""Rules about the fields that translation writes, and about changes to them by other webhooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from webhook.core.admission.accounting import count_amounts, find_missing_amounts
from webhook.core.admission.gate import has_gate, has_gate_volume
from webhook.core.admission.mutation import mutate_pod
from webhook.core.admission.rules.case import Case
from webhook.core.admission.sidecar.injection import (
    Change,
    find_changes,
    image_repository,
    missing_enforcer_parts,
)
from webhook.core.bounds import MAX_STRING_LENGTH, MAX_WORD_LENGTH
from webhook.core.formatting import shorten
from webhook.core.nvidia.variables import chooses_devices, shows_all, shows_bound_gpus
from webhook.core.pod.fields import as_object, get_object, get_objects, get_string
from webhook.core.pod.findings import Finding, Reason, quote
from webhook.core.pod.views import ADMITTED_PATTERN
from webhook.names import ADMITTED_ANNOTATION, MANAGED_LABEL

_SHOWN_DIFFERENCES: Final = 4
_FIELD: Final = re.compile(r"spec\.\w+\[\d+\][^[]*|.*", re.DOTALL)
"""Regular expression for the part of a path that a finding names: a container's field without
the items of its lists."""


def valid_field_types(case: Case) -> tuple[()]:
    """Rule: the fields that translation edits have the types of the Kubernetes API.

    Fields: spec.affinity.nodeAffinity, spec.tolerations, spec.volumes
    Allowed values: absent, or objects and lists as in the API; raises MalformedObjectError
    """
    spec = case.pod.spec
    affinity = get_object(get_object(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    path = "spec.affinity.nodeAffinity"
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = get_objects(get_object(affinity, field, path), "nodeSelectorTerms", f"{path}.{field}")
    for index, term in enumerate(terms):
        get_objects(term, "matchExpressions", f"{path}.{field}.nodeSelectorTerms[{index}]")
    get_objects(affinity, "preferredDuringSchedulingIgnoredDuringExecution", path)
    get_objects(spec, "tolerations", "spec")
    get_objects(spec, "volumes", "spec")
    return ()


def complete_translation(case: Case) -> Iterator[Finding]:
    """Rule: a pod with a demand has all that translation writes, unchanged, when it is stored.

    Fields: all that translation writes, except advice to the scheduler
    Allowed values: those of translation; with runtimeClassName Auto any RuntimeClass, or none

    A pod admitted under the current policy must equal the result of its translation. A pod with
    another policy's digest was translated by a replica that loaded its policy a moment earlier or
    later. It must have what no policy changes. In both cases advice to the scheduler may be
    missing: releases differ in it, other webhooks may change it, and no limit depends on it.
    """
    mark = ADMITTED_PATTERN.fullmatch(case.pod.annotations.get(ADMITTED_ANNOTATION, ""))
    if mark and mark["digest"] != case.policy.short_digest:
        lacks = {path: Change(path, "", None) for path in _missing_essentials(case)}
    else:
        lacks = _differences(case)
    for container in case.pod.enforcers:
        path, found = f"{container.path}.image", get_string(container.raw, "image", container.path)
        if found and path in lacks:
            before, after = (
                quote(one, MAX_STRING_LENGTH) for one in (lacks.pop(path).wanted, found)
            )
            detail = (
                f"ask your platform team to write {image_setting(case, found)}; another webhook "
                f"changed the image from {before} to {after}"
            )
            yield Finding(Reason.UNMUTATED, path, detail)
    if lacks:
        shown = ", ".join(map(_describe_change, islice(lacks.values(), _SHOWN_DIFFERENCES)))
        more = f" and {len(lacks) - _SHOWN_DIFFERENCES} more" * (len(lacks) > _SHOWN_DIFFERENCES)
        detail = (
            "create the pod again; if that does not help, tell your platform team that "
            "vramwarden's mutating webhook did not run, or that another webhook changed the pod "
            f"after it ({shown}{more})"
        )
        yield Finding(Reason.UNMUTATED, _FIELD.findall(next(iter(lacks)))[0], detail)


def _differences(case: Case) -> dict[str, Change]:
    """Return the differences between a pod and its translation, keyed by path."""
    pod, wanted = case.pod, case.enforcer
    edits = mutate_pod(pod, case.demand, case.rule, case.policy, case.cluster, wanted, stored=True)
    found: dict[str, Change] = {}
    within_sidecars = tuple(f"/spec/{each.field}/{each.index}/" for each in pod.enforcers)
    # Sorted, so that the label and annotations come first: if they are missing, the mutating call
    # was skipped.
    for edit in sorted(edits.operations, key=itemgetter("path")):
        if not edit["path"].startswith(within_sidecars):
            keys = edit["path"].split("/")
            parts = [key.replace("~1", "/").replace("~0", "~") for key in keys]
            is_item = edit["op"] == "add" and parts[-1].isdigit()  # later items move back
            present = None if is_item else _value_at(pod.raw, parts[1:])
            path = _field_path(parts[1:])
            found[path] = Change(path, edit.get("value"), present)
    if wanted is not None and len(pod.enforcers) == 1:
        for change in find_changes(pod.enforcers[0], wanted, stored=True):
            path = f"{pod.enforcers[0].path}.{change.path}"
            found[path] = change._replace(path=path)
    return found


def _value_at(value: Any, parts: list[str]) -> Any:
    for key in parts:
        if isinstance(value, list):
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = as_object(value).get(key)
    return value


def _describe_change(change: Change) -> str:
    if change.found is None:
        return f"missing: {change.path}"
    if change.wanted is None:
        return f"added: {change.path}: {_shown(change.found)}"
    return f"changed: {change.path} from {_shown(change.wanted)} to {_shown(change.found)}"


def _shown(value: Any) -> str:
    return quote(value) if isinstance(value, str) else shorten(json.dumps(value), MAX_WORD_LENGTH)


def _missing_essentials(case: Case) -> Iterator[str]:
    pod, demand, enforcer, rule = case.pod, case.demand, case.enforcer, case.rule
    counted = count_amounts(pod, demand, rule, case.policy, case.cluster, stored=True)
    gated = False
    for container in pod.containers:
        visible = list(filter(chooses_devices, container.env()))
        if container.name not in demand.amounts:
            if not visible:
                yield f"{container.path}.env"
            continue
        yield from find_missing_amounts(container, counted)
        shows_gpus = len(visible) == 1 and (shows_bound_gpus(visible[0]) or shows_all(visible[0]))
        if visible if rule.uses_device_plugin else not shows_gpus:
            yield f"{container.path}.env"
        elif any(map(shows_bound_gpus, visible)):  # the rule of that policy chooses GPUs at binding
            gated = True
            if enforcer is None and not has_gate(container.raw):
                yield f"{container.path}.volumeMounts"
    if gated and not has_gate_volume(pod.spec):
        yield "spec.volumes"
    if pod.labels.get(MANAGED_LABEL) != "true":
        yield f"metadata.labels[{MANAGED_LABEL}]"
    if enforcer is not None:
        yield from missing_enforcer_parts(pod, enforcer, demand)
    elif pod.enforcers:
        yield f"{pod.enforcers[0].path}.name"  # removed by a rule without a sidecar


def _field_path(parts: list[str]) -> str:
    """Return the parts of a JSON pointer as a field path, no deeper than needed."""
    match parts:
        case ["metadata", ("annotations" | "labels") as kind, key, *_]:
            return f"metadata.{kind}[{key}]"
    path = ""
    for part in parts[:4]:
        path += f"[{part}]" if part.isdigit() else f".{part}" if path else part
    return path


def mirrored_sidecar(case: Case) -> Iterator[str]:
    """Rule: the sidecar's image is the one that translation writes.

    Fields: spec.initContainers[*].image
    Allowed values: any, since translation replaces it. It returns a warning if the image has the
    same name and tag in another registry: a webhook that redirects image pulls wrote it
    """
    if len(case.pod.enforcers) != 1 or case.enforcer is None:
        return
    (sidecar,), wanted = case.pod.enforcers, case.enforcer["image"]
    found = get_string(sidecar.raw, "image", sidecar.path)
    if found == wanted or found.rpartition("/")[2] != wanted.rpartition("/")[2]:
        return
    yield (
        f"{sidecar.path}.image: ask your platform team to write {image_setting(case, found)} if "
        f"nodes pull only from there; it was restored to {quote(wanted, MAX_STRING_LENGTH)}"
    )


def image_setting(case: Case, image: str) -> str:
    """Return the chart or policy settings that give the sidecar another image."""
    repository, rule = image_repository(image), quote(case.rule.name)
    tag, _, digest = image[len(repository) :].partition("@")
    lines = f"enforcer.repository: {quote(repository, MAX_STRING_LENGTH)}"
    if digest:
        lines += f" and enforcer.digest: {quote(digest, MAX_STRING_LENGTH)}"
    elif not case.rule.enforcement.image.endswith(tag):
        lines += f" and enforcer.tag: {quote(tag[1:])}"
    return f"{lines} (or enforcement.image of rule {rule})"


def mention_other_webhooks(finding: Finding) -> Finding:
    """Return a finding that mentions other webhooks.

    Used for a pod that vramwarden may have translated before.
    """
    if "another webhook" in finding.detail:
        return finding
    late = "another webhook may have changed the pod after vramwarden"
    return replace(finding, detail=f"{finding.detail}; {late}")
