"""Shares in place of one whole GPU, for pods of a rule with `translateWholeGPU`.

Pods can share GPUs although their manifests request whole GPUs. Such a pod does not itself request
VRAM. If a share would be denied, the pod keeps its whole GPU.

| the pod requests at its creation | result |
| --- | --- |
| VRAM, readable or not | judged unchanged; together with a whole GPU it is denied |
| `nvidia.com/gpu: 1` in one container | a share, with a warning; exceptions below |
| `nvidia.com/gpu` in several containers, or more than one | unchanged, without a warning |
| also other resources for whole GPUs, or a resource claim | unchanged, without a warning |
| a limit that differs from the request, or no limit | left to the rules about whole GPUs |

| pod with one GPU in one container | result |
| --- | --- |
| under action Audit, or Ignore | unchanged, without a warning |
| during a rollout in Observe | unchanged; a warning announces the share |
| denied as a pod with a share | unchanged; a warning gives the reason |
| any other | a share |

Only the mutating phase of a creation replaces a whole GPU. A stored pod keeps its whole GPU. A pod
that already has the share is an ordinary pod with a demand.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from webhook.core.pod.fields import get_objects
from webhook.core.pod.findings import quote
from webhook.core.pod.other_products import WHOLE_GPU
from webhook.core.pod.patch import Edits
from webhook.core.pod.quantity import format_bytes, parse_quantity_or
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.model import Action, Policy, Rule
from webhook.names import GPU_MEMORY_ANNOTATION, IN_PLACE_OF_ANNOTATION

_KINDS: Final = ("limits", "requests")
_MAX_RULE_NAME: Final = 40
"""Maximum length of a rule's name in a warning, in characters. The API server cuts long
warnings, which end with the advice."""


class ShareOffer(NamedTuple):
    """Share of a GPU that a pod may get in place of its one whole GPU."""

    edits: Edits
    """Edits by which the pod requests the share instead of the whole GPU."""
    path: str
    rule: str
    amount: str

    def notice(self, *, foreseen: bool) -> str:
        """Return the warning that the pod gets the share, now or after the rollout."""
        when = "after the rollout, " if foreseen else ""
        more = "" if foreseen else "; for a whole GPU ask your platform team"
        return (
            f"{self.path}: {when}rule {self.rule} gives {self.amount} of a GPU in place of a whole "
            f"one; for another size write {GPU_MEMORY_ANNOTATION} in its place{more}"
        )

    def rejection(self, why: str) -> str:
        """Return the warning that the pod keeps the whole GPU, with the reason."""
        return (
            f"{self.path}: the pod keeps its whole GPU, for a share of {self.amount} by rule "
            f"{self.rule} would be denied: {why}"
        )


def offer_share(pod: Pod, rule: Rule, policy: Policy) -> ShareOffer | None:
    """Return the share for a pod without a demand, or None if the pod does not qualify."""
    if rule.translate_whole_gpu_bytes is None or rule.action in {Action.AUDIT, Action.IGNORE}:
        return None
    container = _only_gpu_container(pod, policy)
    if container is None:
        return None
    amount = format_bytes(rule.translate_whole_gpu_bytes)
    edits = Edits()
    place = f"/spec/{container.field}/{container.index}/resources"
    for kind in _KINDS:
        if WHOLE_GPU in container.resources(kind):
            edits.remove(f"{place}/{kind}", WHOLE_GPU)
    metadata = pod.raw.get("metadata")
    if metadata is None:
        edits.put("", "metadata", metadata := {})
    annotations = {
        GPU_MEMORY_ANNOTATION: f"{container.name}={amount}",
        IN_PLACE_OF_ANNOTATION: WHOLE_GPU,
    }
    edits.merge("/metadata", "annotations", metadata.get("annotations"), annotations)
    path = f"{container.path}.resources.limits[{WHOLE_GPU}]"
    return ShareOffer(edits, path, quote(rule.name, _MAX_RULE_NAME), amount)


def _only_gpu_container(pod: Pod, policy: Policy) -> Container | None:
    """Return the container with one whole GPU, or None if the pod requests any other GPU."""
    found: Container | None = None
    for container in (*pod.containers, *pod.enforcers):
        limits, requests = container.resources("limits"), container.resources("requests")
        for name in filter(policy.is_whole_gpu, {**limits, **requests}):
            if name != WHOLE_GPU:
                return None
        if WHOLE_GPU in limits or WHOLE_GPU in requests:
            if found is not None:
                return None
            found = container
    if found is None or get_objects(pod.spec, "resourceClaims", "spec"):
        return None
    limit = found.resources("limits").get(WHOLE_GPU)
    request = found.resources("requests").get(WHOLE_GPU, limit)
    return (
        found if parse_quantity_or(limit, None) == parse_quantity_or(request, None) == 1 else None
    )
