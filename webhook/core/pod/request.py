"""The request of an AdmissionReview, and the HTTP status codes of denials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from webhook.core.pod.fields import Json

BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 503


# Not frozen, as `views.Pod`: each review makes one.
@dataclass(slots=True, kw_only=True)
class Request:
    """The request of an AdmissionReview, in the terms of admission/v1; immutable by convention."""

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
