"""The request of an AdmissionReview, and the HTTP status codes of denials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from webhook.core.pod.fields import Json

BAD_REQUEST: Final = 400
FORBIDDEN: Final = 403
UNAVAILABLE: Final = 503


# Not frozen, like `views.Pod`: each review creates one request.
@dataclass(slots=True, kw_only=True)
class Request:
    """Request of an AdmissionReview (admission/v1); immutable by convention."""

    uid: str
    kind: str
    """`Pod` for pods; `group/Kind` for kinds outside of the core group."""
    operation: str
    subresource: str
    namespace: str
    name: str
    dry_run: bool
    obj: Json
    old: Json
    user: str = ""
    groups: tuple[str, ...] = ()
