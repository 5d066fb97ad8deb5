"""Failures of requests to the API server."""

from __future__ import annotations

import re
from typing import Final

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
CONFLICT, GONE, GATEWAY_TIMEOUT = 409, 410, 504
_RETRYABLE: Final = frozenset({429, 500, 502, 503, GATEWAY_TIMEOUT})
"""HTTP status codes of an overloaded or failing API server, or of a proxy in front of it."""

_is_rbac_message: Final = re.compile(r' cannot \S+ (resource|path) "').search
"""Matches messages of RBAC. Messages of admission plugins do not match."""


class KubeError(Exception):
    """A failed request; the message is one sentence."""

    def __init__(
        self,
        sentence: str,
        *,
        code: int = 0,
        api_message: str = "",
        retry_after_s: float = 0.0,
        slow: bool = False,
        unauthorized: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.code = code
        """HTTP status code; 0 if there was no response."""
        self.api_message = api_message
        self.retry_after_s = retry_after_s
        self.slow = slow or code == GATEWAY_TIMEOUT
        """True if the API server took too long, perhaps because of the size of the request."""
        self.unauthorized = unauthorized or code == UNAUTHORIZED
        """True if the API server rejects the credentials, or the impersonation."""

    @property
    def not_found(self) -> bool:
        """True if the object does not exist."""
        return self.code == NOT_FOUND

    @property
    def forbidden(self) -> bool:
        """True if a permission is missing, or an admission webhook or policy denied the request."""
        return self.code == FORBIDDEN and not self.unauthorized

    @property
    def lacks_right(self) -> bool:
        """True if RBAC rejected the request before admission."""
        return self.forbidden and bool(_is_rbac_message(self.api_message))

    @property
    def lacks_webhook(self) -> bool:
        """True if the API server could not call a webhook with `failurePolicy: Fail`."""
        return "failed calling webhook" in self.api_message

    @property
    def conflict(self) -> bool:
        """True if the object has changed since it was read, or its name is already taken."""
        return self.code == CONFLICT

    @property
    def expired(self) -> bool:
        """True if the version to watch from, or the list's next page, has expired: list again."""
        return self.code == GONE

    @property
    def is_inconclusive(self) -> bool:
        """True if the request failed without revealing anything about the object."""
        return self.retryable or self.unauthorized or self.forbidden

    @property
    def retryable(self) -> bool:
        """True if the same request may soon succeed."""
        return self.code == 0 or self.code in _RETRYABLE


class NoClusterError(KubeError):
    """No configuration names an API server, or it is unusable."""

    retryable = False

    def __init__(self, sentence: str, *, is_named: bool = False) -> None:
        super().__init__(sentence)
        self.is_named = is_named
        """True if the user named the unusable part; see `KubeconfigError`."""
