"""Prove a patch: jsonpatch applies it, and validation accepts what it makes.

A patch is derived from the edits that translation makes and is not applied where it is sent. Laws
in the tests hold for drawn pods; this holds for pods that people really create, a sample of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from webhook.core.admission.decide import Phase, decide
from webhook.core.pod.patch import Operation, PatchError, apply_patch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.core.pod.review import Request
    from webhook.core.policy.cluster import Cluster
    from webhook.core.policy.values import Policy


def prove(request: Request, patch: Sequence[Operation], policy: Policy, cluster: Cluster) -> None:
    """Apply a patch and decide again; raises PatchError where it does not hold (a bug).

    | the pod with the patch | |
    | --- | --- |
    | cannot be made: an operation names what is not there | does not hold |
    | would be mutated again | does not hold |
    | would not be stored: the validating phase finds something | does not hold |
    | is decided as it is in both phases | holds |

    The API server rejects a pod whose patch does not apply, even where `failurePolicy` is Ignore.
    """
    patched = replace(request, obj=apply_patch(request.obj, patch))
    for phase in Phase:
        again = decide(patched, policy, cluster, phase)
        if not again.allowed or again.patch:
            why = again.message or ", ".join(operation["path"] for operation in again.patch)
            raise PatchError(f"a patch applies, but its pod is not as wanted ({phase}: {why})")
