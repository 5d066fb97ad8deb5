"""Rules about translation: what it edits has the right types, and what it added is present."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from webhook.core.admission.accounting import counted_for, uncounted
from webhook.core.admission.gate import has_gate, has_gate_volume
from webhook.core.admission.mutation import mutate_pod
from webhook.core.admission.rules.other_webhooks import image_setting
from webhook.core.admission.sidecar.placing import missing_enforcer
from webhook.core.bounds import LONGEST_STORED
from webhook.core.nvidia.variables import chooses_devices, shows_all, shows_chosen
from webhook.core.pod.fields import items, mapping, text
from webhook.core.pod.findings import Finding, Reason, quoted
from webhook.core.pod.views import MARK
from webhook.names import ADMITTED_ANNOTATION, MANAGED_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container

_SHOWN_DIFFERENCES: Final = 4


def translatable(case: Case) -> tuple[()]:
    """Rule: the fields that translation edits have the types of Kubernetes' API.

    Fields: spec.affinity.nodeAffinity, spec.tolerations, spec.volumes
    Allowed values: absent, or objects and lists as the API has them; raises MalformedObjectError
    """
    spec = case.pod.spec
    affinity = mapping(mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    path = "spec.affinity.nodeAffinity"
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = items(mapping(affinity, field, path), "nodeSelectorTerms", f"{path}.{field}")
    for index, term in enumerate(terms):
        items(term, "matchExpressions", f"{path}.{field}.nodeSelectorTerms[{index}]")
    items(affinity, "preferredDuringSchedulingIgnoredDuringExecution", path)
    items(spec, "tolerations", "spec")
    items(spec, "volumes", "spec")
    return ()


def translated(case: Case) -> Iterator[Finding]:
    """Rule: a pod with a demand has all that translation adds, unharmed, when it is stored.

    Fields: all that translation writes, except advice to the scheduler
    Allowed values: what it writes; with runtimeClassName Auto any RuntimeClass, or none

    A pod admitted under the policy in force must be exactly what translation would make of it. One
    that bears another policy's digest was translated by a replica that loaded its policy a moment
    earlier or later; it is held to what no policy changes. In both cases advice to the scheduler
    may be missing: releases differ in it, other webhooks may change it, and no limit rests on it.
    """
    pod, demand, policy = case.pod, case.demand, case.policy
    mark = MARK.fullmatch(pod.annotations.get(ADMITTED_ANNOTATION, ""))
    if mark and mark["digest"] != policy.short_digest:
        missing = list(_missing_essentials(case))
    else:
        edits = mutate_pod(pod, demand, case.rule, policy, case.cluster, case.enforcer, stored=True)
        # Sorted, so that the marks come first: without them the call was skipped.
        missing = [_dotted(path) for path in sorted(one["path"] for one in edits.operations)]
    for container in pod.enforcers:
        path = f"{container.path}.image"
        if path in missing and container.raw.get("image"):
            missing.remove(path)
            yield Finding(Reason.UNMUTATED, path, _rewritten_image(container, case))
    if missing:
        shown = list(dict.fromkeys(missing))
        more = f" and {len(shown) - _SHOWN_DIFFERENCES} more" * (len(shown) > _SHOWN_DIFFERENCES)
        detail = (
            "create the pod again; if that does not help, tell your platform team that "
            "vramwarden's mutating webhook did not run, or that another webhook changed the pod "
            f"after it (missing: {', '.join(shown[:_SHOWN_DIFFERENCES])}{more})"
        )
        yield Finding(Reason.UNMUTATED, shown[0], detail)


def _rewritten_image(enforcer: Container, case: Case) -> str:
    """Return the sentence about a sidecar's image that another webhook has rewritten."""
    found, wanted = text(enforcer.raw, "image", enforcer.path), case.rule.enforcement.image
    before, after = (quoted(image, LONGEST_STORED) for image in (wanted, found))
    return (
        f"ask your platform team to write {image_setting(case, found)}; another webhook changed "
        f"the image from {before} to {after}"
    )


def _missing_essentials(case: Case) -> Iterator[str]:
    pod, demand, enforcer, rule = case.pod, case.demand, case.enforcer, case.rule
    counted = counted_for(pod, demand, rule, case.policy, case.cluster, stored=True)
    gated = False
    for container in pod.containers:
        visible = list(filter(chooses_devices, container.env()))
        if container.name not in demand.amounts:
            if not visible:
                yield f"{container.path}.env"
            continue
        yield from uncounted(container, counted)
        shown = len(visible) == 1 and (shows_chosen(visible[0]) or shows_all(visible[0]))
        if visible if rule.leaves_to_plugin else not shown:
            yield f"{container.path}.env"
        elif any(map(shows_chosen, visible)):  # by a rule of that policy that places at binding
            gated = True
            if enforcer is None and not has_gate(container.raw):
                yield f"{container.path}.volumeMounts"
    if gated and not has_gate_volume(pod.spec):
        yield "spec.volumes"
    if pod.labels.get(MANAGED_LABEL) != "true":
        yield f"metadata.labels[{MANAGED_LABEL}]"
    if enforcer is not None:
        yield from missing_enforcer(pod, enforcer)
    elif pod.enforcers:
        yield f"{pod.enforcers[0].path}.name"  # a rule without a sidecar takes it out


def _dotted(pointer: str) -> str:
    """Show a JSON pointer as a field path, as deep as a reader needs to find the place."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    match parts:
        case ["metadata", ("annotations" | "labels") as kind, key, *_]:
            return f"metadata.{kind}[{key}]"
    shown = ""
    for part in parts[:4]:
        shown += f"[{part}]" if part.isdigit() else f".{part}" if shown else part
    return shown
