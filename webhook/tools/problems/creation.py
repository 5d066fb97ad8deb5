"""Problems that the API server reports when it denies a pod."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from webhook.core.formatting import join_names
from webhook.core.pod.demand import requests_vram
from webhook.core.pod.fields import as_objects, find_object
from webhook.core.pod.findings import MESSAGE_PREFIX, SEPARATOR, MalformedObjectError, Reason
from webhook.core.pod.other_products import OTHER_PRODUCTS_BY_RESOURCE
from webhook.names import API_GROUP, GPU_MEMORY_ANNOTATION, PREFIX, VRAM_RESOURCE
from webhook.tools.problems.problem import Code, Problem, Severity
from webhook.tools.snapshot.pod import ClusterPod

DENIED: Final = re.compile(r'admission webhook "[a-z]+\.vramwarden\.io" denied the request: ')
_OWN_WEBHOOKS: Final = f".{API_GROUP}"
_BY_SECOND_LINE: Final = re.compile(
    r"'vramwarden-second-line' .*: vramwarden: (create the pod again; .*)\. If it (.*)"
)
"""Regular expression for the fence's denial of an unmutated pod, and its advice if that
persists."""
_UNREACHABLE: Final = re.compile(r'failed calling webhook "([^"]{1,253})"')
_UNREACHABLE_CAUSES: Final = (
    ("signed by unknown authority", "the API server does not trust its certificate"),
    ("certificate has expired", "its certificate has expired"),
    ("no endpoints available", "no replica is ready"),
    ("connection refused", "nothing listens where its Service leads"),
    ("deadline exceeded", "it does not answer in time"),
    ("not found", "its Service is gone"),
)
"""Pairs of a substring of the API server's error and the cause it indicates."""
_REASONS: Final = {reason.value: reason for reason in Reason}
_FIELD: Final = re.compile(r"(spec\.[a-zA-Z]+)\[(\d{1,4})\]\.resources\.[a-z]+\[([^\]]{1,317})\]: ")
ASK: Final = "ask your platform team"


def unreachable_cause(text: str) -> tuple[str, str] | None:
    """Return the webhook that could not be called and the cause, or None for other denials."""
    found = _UNREACHABLE.search(text)
    if found is None:
        return None
    whys = (why for words, why in _UNREACHABLE_CAUSES if words in text)
    return found[1], next(whys, "the API server does not reach it")


def is_own_denial(text: str) -> bool:
    """Return True if vramwarden denied the pod or its webhook could not be called."""
    if unreachable := unreachable_cause(text):
        return unreachable[0].endswith(_OWN_WEBHOOKS)
    return bool(DENIED.search(text) or _BY_SECOND_LINE.search(text))


def parse_denial(text: str, template: ClusterPod | None = None) -> Iterator[Problem]:
    """Yield the problems in a denial: vramwarden's findings, or another denial's whole message.

    For a resource that the workload's `template` lacks, the fix states what may have added it.
    """
    if unreachable := unreachable_cause(text):
        webhook, why = unreachable
        ours = webhook.endswith(_OWN_WEBHOOKS)
        whose = "vramwarden's webhook" if ours else f"webhook {webhook} of another product"
        detail = f"the API server cannot call {whose} ({why}), so it denied the pod: {text}"
        fix = f"nothing is wrong with the pod: {ASK}" + (" (vramwarden check)" if ours else "")
        yield Problem(Code.WEBHOOK_UNREACHABLE, Severity.ERROR, detail, fix)
        return
    if found := _BY_SECOND_LINE.search(text):
        findings, remedy = found.groups()
        yield Problem(Reason.UNMUTATED, Severity.ERROR, findings, f"if it {remedy}")
        return
    denied = DENIED.search(text)
    if denied is None:
        yield Problem(Code.CREATION_DENIED, Severity.ERROR, text)
        return
    findings, _, guidance = text[denied.end() :].partition(f". {MESSAGE_PREFIX}")
    for line in findings.split(SEPARATOR):
        yield parse_finding(line, Severity.ERROR, template)
    if guidance:
        yield Problem(Code.CREATION_DENIED, Severity.INFO, f"{MESSAGE_PREFIX}{guidance}")


def parse_finding(line: str, severity: Severity, template: ClusterPod | None = None) -> Problem:
    """Parse a finding. A line that is no finding becomes `Code.CREATION_DENIED`."""
    reason, _, sentence = line.partition(": ")
    if reason not in _REASONS:
        return Problem(Code.CREATION_DENIED, severity, line)
    fix, field = "", _FIELD.match(sentence)
    if field and template:
        kind, index, resource = field.groups()
        listed = as_objects(find_object(template.raw, "spec").get(kind.removeprefix("spec.")))
        container = listed[int(index)] if int(index) < len(listed) else {}
        limits = find_object(container, "resources", "limits")
        if resource not in {**find_object(container, "resources", "requests"), **limits}:
            fix = f"the template has no {resource}: a LimitRange or another webhook wrote it"
    return Problem(_REASONS[reason], severity, sentence, fix)


def seems_to_request_vram(pod: ClusterPod) -> bool:
    """Return True if a pod requests VRAM, even in an unreadable way."""
    try:
        return requests_vram(pod.raw)
    except MalformedObjectError:
        return False


def find_foreign_requests(pod: ClusterPod) -> Iterator[Problem]:
    """Yield a problem for GPU memory requests that vramwarden does not read."""
    # Imported here, because it loads admission rules, which few pods need.
    from webhook.core.admission.rules.near_misses import comparable_keys, correction  # noqa: PLC0415

    found: dict[str, str] = {}
    for field in ("annotations", "labels"):
        entries = pod.part("metadata", field)
        for key in comparable_keys(entries):
            line = "" if key.startswith(PREFIX) else correction(key, str(entries[key]))
            if line:
                found[f"the {field.removesuffix('s')} {key}"] = line
    for container in as_objects(pod.part("spec").get("containers")):
        for key in find_object(container, "resources", "limits"):
            if key in OTHER_PRODUCTS_BY_RESOURCE or (
                key.startswith(PREFIX) and key != VRAM_RESOURCE
            ):
                found[f"the resource {key}"] = ""
    if found:
        line = next(filter(None, found.values()), f"{GPU_MEMORY_ANNOTATION}: 8Gi, for example")
        detail = f"vramwarden does not read {join_names(found)}"
        fix = f"{line}, as an annotation of the pod"
        yield Problem(Code.NOT_READ, Severity.INFO, detail, fix)
