"""Keys with our prefix that nothing reads: a typo must not silently mean "no limit"."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules.idioms import MEANT, SHOWN
from webhook.core.pod.findings import annotation_path
from webhook.names import (
    ADMITTED_ANNOTATION,
    ASKING_ANNOTATIONS,
    BINDING_ANNOTATIONS,
    IN_PLACE_OF_ANNOTATION,
    MANAGED_LABEL,
    PREFIX,
)

if TYPE_CHECKING:
    from webhook.core.admission.rules.case import Case

_OURS: Final = frozenset(
    {
        *ASKING_ANNOTATIONS,
        ADMITTED_ANNOTATION,
        IN_PLACE_OF_ANNOTATION,
        *BINDING_ANNOTATIONS,
        MANAGED_LABEL,
    }
)
_LONGEST_KEY: Final = len(PREFIX) + 63


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
    # Comparing words takes time, and a pod may have thousands of annotations.
    return (*labels, *map(_unread, unread[:SHOWN]))


def _unread(key: str) -> str:
    shown = key if len(key) <= _LONGEST_KEY else f"{key[:_LONGEST_KEY]}…"
    meant = get_close_matches(shown.removeprefix(PREFIX).lower(), MEANT, n=1)
    known = ", ".join(ASKING_ANNOTATIONS)
    what = f"did you mean {MEANT[meant[0]]}?" if meant else f"developers set {known}"
    return f"{annotation_path(shown)}: nothing reads this key; {what}"
