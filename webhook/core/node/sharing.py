"""Decision whether a node's GPUs are shared by memory: each GPU has one allocator.

GPUs with another allocator are not shared unless a cluster admin wants both. Other allocators are
device plugins that offer whole GPUs, other products that share GPUs, and DRA drivers. A node begins
to be shared only once its GPUs are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Scan, find_skip_reasons
from webhook.core.node.node_fields import (
    SharingCode,
    SharingVerdict,
    is_advertised,
    node_annotations,
    node_labels,
    read_vram_bytes,
)
from webhook.core.node.other_allocators import (
    allocator_sentence,
    find_exclusion,
    find_other_allocator,
    limited_sentence,
)
from webhook.core.node.state import NodeState, build_withdrawn_state
from webhook.core.pod.quantity import MIB
from webhook.names import (
    NODE_DRA_ANNOTATION,
    NODE_QUESTION_LABEL,
    NODE_SHARE_LABEL,
    NODE_SHARING_ANNOTATION,
)

FREE_BYTES: Final = 256 * MIB
"""Maximum memory in use on a GPU that counts as free, in bytes.

A CUDA context takes more. A display server or a persistence daemon takes less.
"""


class Shared(Enum):
    """Results of the decision on a node's GPUs."""

    YES = "they are advertised"
    DRAINING = "what pods have stays advertised; nothing more is promised"
    NO = "they are not advertised; what was advertised is withdrawn"
    NOT_YET = "they will be advertised, but cannot be yet; only the verdict is written"


@dataclass(frozen=True, slots=True)
class SharingDecision:
    """Decision on a node's GPUs."""

    shared: Shared
    reason: EventReason | None = None
    """Reason of the Event that reports the decision; None for no Event."""
    sentence: str = ""
    """Cause and remedy; empty if the GPUs are shared."""

    def verdict(self, unshared: str, *, has_gpus: bool) -> SharingVerdict:
        """Return the node's verdict; `unshared` is the sentence about GPUs without memory."""
        if self.shared is not Shared.YES:
            waits = SharingCode.IN_USE if self.reason else SharingCode.SETTLING
            codes = {Shared.NO: SharingCode.NOT_SHARED, Shared.DRAINING: SharingCode.DRAINING}
            return SharingVerdict(codes.get(self.shared, waits), self.sentence)
        if not has_gpus:
            return SharingVerdict(SharingCode.NONE_FIT, unshared or _NO_GPU)
        if unshared:
            return SharingVerdict(SharingCode.SOME_UNFIT, unshared)
        return SharingVerdict(SharingCode.SHARED, "its GPUs are shared by memory")


_NO_GPU: Final = "the driver shows no GPU that could be shared (MIG mode?); see its agent's log"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingInputs:
    """Facts about a node that its object does not show."""

    dra_drivers: tuple[str, ...] | None = ()
    """DRA drivers that offer the GPUs in ResourceSlices; None if slices cannot be read."""
    age_s: float = float("inf")
    """Time since the node was created, in seconds."""
    is_settling: bool = False
    """True if no other allocator is found, but one was found a moment ago, or may appear soon."""
    is_advertised: bool
    draining_reason: str = ""
    """Reason why the node was draining at the last decision; empty if it was not."""
    has_pods: bool | None
    """True if pods have VRAM on the node; None if unknown."""
    in_use: tuple[str, ...] | None
    """UUIDs from `find_gpus_in_use`; None if unknown."""
    whole_pods: tuple[str, ...] | None = ()
    """First pods with whole GPUs on the node, as `namespace/name`; None if not known yet."""
    whole_count: int = 0
    """Number of pods with whole GPUs, if `whole_pods` does not list all of them."""
    documentation_url: str = ""


def judge(node: Mapping[str, Any], inputs: SharingInputs) -> SharingDecision:
    """Decide whether a node's GPUs are shared.

    | offered | `share` | advertised | pods | in use | shared | reason |
    | --- | --- | --- | --- | --- | --- | --- |
    | no | absent or true | no | - | no | YES | - |
    | no | absent or true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | no | absent or true | no | - | unknown | NOT_YET | - |
    | no | absent or true | yes or draining | - | - | YES | - |
    | settles | absent | no | - | no or unknown | NOT_YET | - |
    | settles | absent | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | settles | absent | yes | - | - | YES | - |
    | settles | absent | draining | - | - | DRAINING | SharedBesidePlugin |
    | yes or settles | true | no | - | no | YES | - |
    | yes or settles | true | no | - | yes | NOT_YET | DrainWholeGPUPods |
    | yes or settles | true | no | - | unknown | NOT_YET | - |
    | yes or settles | true | yes or draining | - | - | YES | - |
    | yes | absent | no | - | - | NO | GPUsNotShared |
    | yes | absent | yes or draining | no | - | NO | GPUsNotShared |
    | yes | absent | yes or draining | yes or unknown | - | DRAINING | SharedBesidePlugin |
    | - | false | no | - | - | NO | - |
    | - | false | yes or draining | no | - | NO | - |
    | - | false | yes or draining | yes or unknown | - | DRAINING | SharedUntilPodsEnd |
    | - | anything else | no | - | - | NO | GPUsNotShared |
    | - | anything else | yes or draining | no | - | NO | GPUsNotShared |
    | - | anything else | yes or draining | yes or unknown | - | DRAINING | SharedUntilPodsEnd |

    Offered is what `find_other_allocator` finds. Advertised and draining are inputs. In use is a
    GPU (`find_gpus_in_use`) or, if `share` is absent, one that a pod has whole. Capacity is never
    lowered under a pod: the kubelet would fail that pod when it restarts.
    """
    label = node_labels(node).get(NODE_SHARE_LABEL)
    found = find_other_allocator(node, inputs.dra_drivers, inputs.age_s)
    stays = inputs.is_advertised and inputs.has_pods is not False
    reason = EventReason.BESIDE_PLUGIN if label is None else EventReason.UNTIL_PODS_END
    if label not in {None, "true"}:
        found = find_exclusion(str(label))
    if found and label != "true":
        if stays:
            then = " while pods may have VRAM here, so a card may be given twice"
            sentence = allocator_sentence(found, then, inputs.documentation_url)
            return SharingDecision(Shared.DRAINING, reason, sentence)
        sentence = allocator_sentence(found, "", inputs.documentation_url)
        return SharingDecision(
            Shared.NO, None if label == "false" else EventReason.NOT_SHARED, sentence
        )
    settles = inputs.is_settling and label is None
    if inputs.is_advertised:
        if settles and inputs.draining_reason:
            reason = EventReason.BESIDE_PLUGIN
            return SharingDecision(Shared.DRAINING, reason, inputs.draining_reason)
        return SharingDecision(Shared.YES)
    whole_pods = inputs.whole_pods if label is None else ()
    if inputs.in_use or whole_pods:
        return SharingDecision(Shared.NOT_YET, EventReason.DRAIN, _in_use(inputs, whole_pods or ()))
    waits = [
        what
        for what, is_awaited in (
            ("the driver", inputs.in_use is None),
            ("a replica of the webhook", whole_pods is None),
            ("any sign of another allocator", settles),
        )
        if is_awaited
    ]
    if waits:
        sentence = f"its agent waits for {', '.join(waits)}; if it still does in ten minutes, see "
        return SharingDecision(Shared.NOT_YET, sentence=f"{sentence}the agent's log")
    return SharingDecision(Shared.YES)


def _in_use(inputs: SharingInputs, whole_pods: tuple[str, ...]) -> str:
    then = "; drain the whole-GPU pods first: the node is shared once its GPUs are free"
    if whole_pods:
        what = "pods have whole GPUs, even if they use nothing"
        return limited_sentence(what, whole_pods, then, inputs.whole_count)
    return limited_sentence(
        "more than 256Mi, or an unknown amount, are in use", inputs.in_use or (), then
    )


def apply_sharing(
    node: Mapping[str, Any],
    whole: NodeState,
    sharing: SharingDecision,
    *,
    promised_bytes: int | None = None,
    question: str = "",
    dra_drivers: tuple[str, ...] = (),
    unshared: str = "",
) -> NodeState:
    """Return the desired state of a node, given its state if the GPUs are shared (`whole`).

    `promised_bytes` is the amount assigned to its pods, None if unknown. `question` is the question
    for pods with whole GPUs, empty for none. `dra_drivers` are the DRA drivers that offer its GPUs.
    They are stored for the next agent, which starts before they register again. `unshared`: see
    `Inventory`.

    On a node that shows no shared GPUs nothing is withdrawn: its labels belong to another
    controller and may select the node for the agent. A draining node shows the amount assigned to
    its pods, or keeps its amount while that is unknown. Its verdict stays while a decision is
    pending.
    """
    shared, is_shown = sharing.shared, is_advertised(node)
    state = {Shared.NO: build_withdrawn_state(), Shared.NOT_YET: NodeState()}.get(shared, whole)
    if state == build_withdrawn_state() and not is_shown:
        state = NodeState()
    amount = state.vram_bytes
    if shared is Shared.DRAINING and amount:
        amount = read_vram_bytes(node) or amount
        amount = amount if promised_bytes is None else min(promised_bytes, state.vram_bytes or 0)
    marks = {NODE_DRA_ANNOTATION: ",".join(dra_drivers)[:MAX_STRING_LENGTH] or None}
    if shared is not Shared.NOT_YET or not is_shown:
        verdict = sharing.verdict(unshared, has_gpus=bool(state.vram_bytes))
        marks[NODE_SHARING_ANNOTATION] = str(verdict)
    return replace(
        state,
        vram_bytes=amount,
        labels={
            **state.labels,
            **_marked(node_labels(node), {NODE_QUESTION_LABEL: question or None}),
        },
        annotations={**state.annotations, **_marked(node_annotations(node), marks)},
    )


def _marked(carried: Mapping[str, Any], marks: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the marks to set, and None for marks to remove that the node carries."""
    return {key: value for key, value in marks.items() if value or key in carried}


def find_gpus_in_use(scan: Scan | None) -> tuple[str, ...] | None:
    """Return the UUIDs of GPUs with more than 256Mi, or an unknown amount, in use.

    GPUs that would not be shared are left out. Returns None if the driver did not respond.
    """
    if scan is None or scan.failed:
        return None
    aside = find_skip_reasons(scan)
    return tuple(
        gpu.uuid
        for gpu in scan.gpus
        if gpu.uuid not in aside and (gpu.used_bytes is None or gpu.used_bytes > FREE_BYTES)
    )
