"""Keys with our prefix that nothing reads: a typo must not silently mean "no limit"."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from webhook.core.pod.findings import annotation_path
from webhook.names import (
    ADMITTED_ANNOTATION,
    ASKING_ANNOTATIONS,
    BINDING_ANNOTATIONS,
    GPU_MEMORY_ANNOTATION,
    MANAGED_LABEL,
    PREFIX,
    VRAM_RESOURCE,
)

if TYPE_CHECKING:
    from webhook.core.admission.rules.case import Case

_OURS: Final = frozenset(
    {*ASKING_ANNOTATIONS, ADMITTED_ANNOTATION, *BINDING_ANNOTATIONS, MANAGED_LABEL}
)
_MEANT: Final = {key.removeprefix(PREFIX): key for key in ASKING_ANNOTATIONS} | {
    # The resource asks for the same, so its name is a likely guess at the annotation's.
    VRAM_RESOURCE.removeprefix(PREFIX): GPU_MEMORY_ANNOTATION
}
_LONGEST_KEY: Final = len(PREFIX) + 63
# Comparing words takes time, and a pod may have thousands of annotations.
_SHOWN: Final = 10


def unread_keys(case: Case) -> tuple[str, ...]:
    """Rule: every annotation with our prefix is one that we read, and no label asks for VRAM.

    Fields: metadata.annotations, metadata.labels
    Allowed values: any key without our prefix; the keys that developers set and those that we set

    It returns warnings and not findings, because such a pod is valid. A node's keys count as unread
    too, since `gpu-memory-mib` on a pod is meant as a limit.
    """
    pod = case.pod
    unread = [key for key in pod.annotations if key.startswith(PREFIX) and key not in _OURS]
    misplaced = [
        key for key in ASKING_ANNOTATIONS if key in pod.labels and key not in pod.annotations
    ]
    if not unread and not misplaced:
        return ()
    labels = [
        f"metadata.labels[{key}]: as a label it asks for nothing; write it under "
        "metadata.annotations"
        for key in misplaced
    ]
    return (*labels, *map(_unread, unread[:_SHOWN]))


def _unread(key: str) -> str:
    shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
    meant = get_close_matches(shown.removeprefix(PREFIX).lower(), _MEANT, n=1)
    known = ", ".join(ASKING_ANNOTATIONS)
    what = f"did you mean {_MEANT[meant[0]]}?" if meant else f"developers set {known}"
    return f"{annotation_path(shown)}: nothing reads this key; {what}"
