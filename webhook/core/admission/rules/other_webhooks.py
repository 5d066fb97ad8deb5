"""Rules about what other webhooks changed in a pod that was translated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from webhook.core.admission.rules.case import Case
from webhook.core.admission.sidecar.recognition import repository_of
from webhook.core.bounds import LONGEST_STORED
from webhook.core.pod.fields import text
from webhook.core.pod.findings import Finding, quoted


def mirrored_sidecar(case: Case) -> Iterator[str]:
    """Rule: the sidecar's image is the one that translation writes.

    Fields: spec.initContainers[*].image
    Allowed values: any, since translation replaces it: it returns a warning if the image is the
    same name and tag of another registry, as a webhook leaves it that has images pulled elsewhere
    """
    if len(case.pod.enforcers) != 1 or case.enforcer is None:
        return
    (sidecar,), wanted = case.pod.enforcers, case.enforcer["image"]
    found = text(sidecar.raw, "image", sidecar.path)
    if found == wanted or found.rpartition("/")[2] != wanted.rpartition("/")[2]:
        return
    yield (
        f"{sidecar.path}.image: ask your platform team to write {image_setting(case, found)} if "
        f"nodes pull only from there; it was restored to {quoted(wanted, LONGEST_STORED)}"
    )


def image_setting(case: Case, image: str) -> str:
    """Return the lines that give the sidecar another image, of the chart's values or the policy."""
    repository, rule = repository_of(image), quoted(case.rule.name)
    tag, _, digest = image[len(repository) :].partition("@")
    lines = f"enforcer.repository: {quoted(repository, LONGEST_STORED)}"
    if digest:
        lines += f" and enforcer.digest: {quoted(digest, LONGEST_STORED)}"
    elif not case.rule.enforcement.image.endswith(tag):
        lines += f" and enforcer.tag: {quoted(tag[1:])}"
    return f"{lines} (or enforcement.image of rule {rule})"


def found_late(finding: Finding) -> Finding:
    """Return a finding on a pod that vramwarden may have translated before; it names the others."""
    if "another webhook" in finding.detail:
        return finding
    late = "another webhook may have changed the pod after vramwarden"
    return replace(finding, detail=f"{finding.detail}; {late}")
