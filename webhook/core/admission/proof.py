"""Prove a decision's patch: applied by jsonpatch (RFC 6902), it makes what validation accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from webhook.core.pod.patch import PatchError, apply_patch

if TYPE_CHECKING:
    from webhook.core.admission.decide import Decision
    from webhook.core.pod.request import Request
    from webhook.core.policy.values import Policy


def prove(request: Request, decision: Decision, policy: Policy) -> None:
    """Apply a patch as the API server will; raises PatchError where it does not hold (a bug)."""
    del policy
    if apply_patch(request.obj, decision.patch) != decision.obj:
        raise PatchError("a patch applies, but not to the wanted pod")
