"""A share in place of one whole GPU, for pods of a rule with `translateWholeGPU`.

So manifests written for whole GPUs are shared unchanged. Such a pod asked for nothing of ours, so
it is never denied for what is wrong with a share: then it keeps its GPU.

| the pod asks for, at its creation | becomes |
| --- | --- |
| VRAM, readably or not | judged as it is; beside a whole GPU it is denied |
| `nvidia.com/gpu: 1` in one container | a share, with a warning; for the exceptions see below |
| `nvidia.com/gpu` in several containers, or more than one | left as it is, in silence |
| other resources for whole GPUs, or a resource claim, too | left as it is, in silence |
| a limit that differs from the request, or no limit | left to the rules about whole GPUs |

| of those with one GPU in one container | becomes |
| --- | --- |
| under action Audit, or Ignore | left as it is, in silence |
| while a rollout observes | left as it is; a warning says what it will be |
| denied as a pod with a share | left as it is; a warning says why |
| any other | a share |

The mutating phase alone does it, on pods that are created; a pod that was stored with its whole GPU
keeps it, and one that comes with the share is a pod with a demand like any other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from webhook.core.pod.fields import items
from webhook.core.pod.findings import quoted
from webhook.core.pod.foreign import WHOLE_GPU
from webhook.core.pod.patch import Edits
from webhook.core.pod.quantity import amount_or, format_bytes
from webhook.core.pod.views import Container, Pod
from webhook.core.policy.values import Action, Policy, Rule
from webhook.names import GPU_MEMORY_ANNOTATION, IN_PLACE_OF_ANNOTATION

_KINDS: Final = ("limits", "requests")
_SHOWN_RULE: Final = 40
"""Of a rule's name: the API server cuts long warnings, and what to do stands at their end."""


class Offer(NamedTuple):
    """A share that a pod may have in place of its one whole GPU."""

    edits: Edits
    """What turns the pod into one that asks for the share, and is otherwise as it was."""
    path: str
    """Where it asks for the whole GPU."""
    rule: str
    amount: str

    def said(self, *, foreseen: bool) -> str:
        """What its author reads where the pod gets the share, or will get it after a rollout."""
        when = "after the rollout, " if foreseen else ""
        more = "" if foreseen else "; for a whole GPU ask your platform team"
        return (
            f"{self.path}: {when}rule {self.rule} gives {self.amount} of a GPU in place of a whole "
            f"one; for another size write {GPU_MEMORY_ANNOTATION} in its place{more}"
        )

    def declined(self, why: str) -> str:
        """Say to its author that the pod keeps the whole GPU, and why."""
        return (
            f"{self.path}: the pod keeps its whole GPU, for a share of {self.amount} by rule "
            f"{self.rule} would be denied: {why}"
        )


def offer(pod: Pod, rule: Rule, policy: Policy) -> Offer | None:
    """Return what a pod without a demand may have in place of a whole GPU; None for nothing."""
    if rule.translate_whole_gpu_bytes is None or rule.action in {Action.AUDIT, Action.IGNORE}:
        return None
    container = _only_user(pod, policy)
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
    asked = {
        GPU_MEMORY_ANNOTATION: f"{container.name}={amount}",
        IN_PLACE_OF_ANNOTATION: WHOLE_GPU,
    }
    edits.merge("/metadata", "annotations", metadata.get("annotations"), asked)
    path = f"{container.path}.resources.limits[{WHOLE_GPU}]"
    return Offer(edits, path, quoted(rule.name, _SHOWN_RULE), amount)


def _only_user(pod: Pod, policy: Policy) -> Container | None:
    """Return the container with one whole GPU, where that is all that the pod has of GPUs."""
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
    if found is None or items(pod.spec, "resourceClaims", "spec"):
        return None
    limit = found.resources("limits").get(WHOLE_GPU)
    request = found.resources("requests").get(WHOLE_GPU, limit)
    return found if amount_or(limit, None) == amount_or(request, None) == 1 else None
