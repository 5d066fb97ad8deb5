"""What an AdmissionReview asks; reviews of pods and of bindings begin with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.core.pod.fields import Json


@dataclass(frozen=True, slots=True)
class Request:
    """What an AdmissionReview asks, in the terms of admission/v1."""

    uid: str
    kind: str
    """`Pod` for the core group's Pod; another kind with its group otherwise."""
    operation: str
    subresource: str
    namespace: str
    name: str
    dry_run: bool
    obj: Json
    old: Json
    user: str = ""
    groups: tuple[str, ...] = ()
    namespace_labels: Mapping[str, str] | None = None
    """Those for which rules ask. None where they are not known: no review carries them."""
