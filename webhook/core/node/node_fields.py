"""Fields of a Node that the agent writes: parsing and encoding.

The annotation `vramwarden.io/gpus` lists the node's GPUs. The annotation `vramwarden.io/sharing` is
the verdict on the node, written as `Code: sentence`. Replicas, sentries and tools read both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, Self

from webhook.core.bounds import MAX_STRING_LENGTH
from webhook.core.formatting import PLAUSIBLE_GPU_BYTES, replace_unprintable
from webhook.core.pod.fields import Json, as_object
from webhook.core.pod.gpus import (
    MAX_FAULT_LENGTH,
    MAX_GPUS,
    MAX_PRODUCT_LENGTH,
    Gpu,
    is_valid_gpu_id,
)
from webhook.core.pod.quantity import MIB, parse_quantity_or
from webhook.core.pod.whole_gpus import is_positive_amount
from webhook.names import NODE_GPUS_ANNOTATION, NODE_SHARING_ANNOTATION, VRAM_RESOURCE


def node_labels(node: Mapping[str, Any]) -> Json:
    """Return the labels of a node."""
    return as_object(as_object(node.get("metadata")).get("labels"))


def node_annotations(node: Mapping[str, Any]) -> Json:
    """Return the annotations of a node."""
    return as_object(as_object(node.get("metadata")).get("annotations"))


def read_vram_bytes(node: Mapping[str, Any]) -> int:
    """Return the VRAM in a node's capacity in bytes; 0 if it is missing or malformed."""
    return int(read_vram_amount(node.get("status") or {}, "capacity") or 0)


def read_vram_amount(status: Mapping[str, Any], part: str) -> Fraction | None:
    """Return the VRAM in a part of a node's status, in bytes; None if missing or malformed."""
    return parse_quantity_or((status.get(part) or {}).get(VRAM_RESOURCE, ""), None)


def is_advertised(node: Mapping[str, Any]) -> bool:
    """Return True if a node shows shared GPUs, so that a starting agent keeps sharing them.

    The list of GPUs or the capacity decides. Labels do not count, since autoscalers set them in
    advance.
    """
    capacity = (node.get("status") or {}).get("capacity") or {}
    return bool(read_gpus(node)[0]) or is_positive_amount(capacity.get(VRAM_RESOURCE, 0))


class SharingCode(StrEnum):
    """Codes of the verdict on a node's sharing.

    `make generate` writes the table of codes from them. The sentence after a code gives cause and
    remedy for the node.
    """

    means: str

    def __new__(cls, value: str, means: str) -> Self:
        """Return a member whose value is `value`."""
        code = str.__new__(cls, value)
        code._value_ = value
        code.means = means
        return code

    SHARED = ("Shared", "every GPU of the node that has memory to share is shared")
    SOME_UNFIT = (
        "SomeGPUsUnfit",
        "the node is shared, except for GPUs without memory of their own",
    )
    NONE_FIT = ("NoUsableGPU", "the node has no GPU that could be shared")
    NOT_SHARED = (
        "NotShared",
        "another allocator gives the GPUs away, or the label `share` is not `true`",
    )
    IN_USE = (
        "InUse",
        "the node is shared once no pod has a whole GPU and at most 256Mi are in use on each",
    )
    SETTLING = (
        "Settling",
        "the agent still waits for the driver, a replica, or signs of another allocator",
    )
    DRAINING = (
        "Draining",
        "another allocator came, or `share` changed: pods keep their VRAM, and no other gets any",
    )


_CODES: Final = {code.value: code for code in SharingCode}
_OPEN: Final = frozenset({SharingCode.SHARED, SharingCode.SOME_UNFIT})


@dataclass(frozen=True, slots=True)
class SharingVerdict:
    """Verdict on a node's sharing."""

    code: SharingCode
    sentence: str
    """Cause and remedy; at most 256 printable characters are written and read."""

    def __str__(self) -> str:
        return f"{self.code}: {replace_unprintable(self.sentence, MAX_STRING_LENGTH)}"


def read_verdict(node: Mapping[str, Any]) -> SharingVerdict | None:
    """Return the verdict in a node's annotation; None if it is missing or malformed."""
    code, colon, sentence = str(_sharing_annotation(node) or "").partition(": ")
    if code not in _CODES or not colon:
        return None
    return SharingVerdict(_CODES[code], replace_unprintable(sentence, MAX_STRING_LENGTH))


def explain_closed(node: Mapping[str, Any]) -> str:
    """Return the reason why a node gives further pods no GPU; empty if it gives them GPUs.

    | the annotation | closed |
    | --- | --- |
    | absent | no |
    | Shared or SomeGPUsUnfit | no |
    | any other code | yes, with its sentence |
    | anything else | yes |

    An agent writes the annotation before it advertises a GPU, and restores it if it is removed.
    """
    verdict = read_verdict(node)
    if verdict is None:
        is_absent = _sharing_annotation(node) is None
        return "" if is_absent else f"its annotation {NODE_SHARING_ANNOTATION} cannot be read"
    return "" if verdict.code in _OPEN else verdict.sentence or str(verdict.code)


def _sharing_annotation(node: Mapping[str, Any]) -> object:
    return as_object(as_object(node.get("metadata")).get("annotations")).get(
        NODE_SHARING_ANNOTATION
    )


def write_gpus(gpus: Iterable[Gpu]) -> str:
    """Return the value of the annotation `vramwarden.io/gpus`."""
    return json.dumps([_encode_gpu(gpu) for gpu in gpus], separators=(",", ":"))


def _encode_gpu(gpu: Gpu) -> Json:
    total = {} if gpu.total_bytes is None else {"total": gpu.total_bytes}
    named = {"product": gpu.product, "index": gpu.index}
    health: Json = {} if gpu.healthy else {"healthy": False}
    health |= {"fault": gpu.fault} if gpu.fault else {}
    return {"uuid": gpu.uuid, "memory": gpu.memory_bytes, **total, **named, **health}


def read_gpus(node: Mapping[str, Any]) -> tuple[tuple[Gpu, ...], int]:
    """Return the GPUs in a node's annotation, and the number of malformed entries.

    An agent's token can write anything there, and UUIDs reach pods, lists and messages. Entries
    beyond the first `MAX_GPUS` count as malformed, and strings are made printable and truncated. A
    list that cannot be parsed counts as one malformed entry.
    """
    written = node_annotations(node).get(NODE_GPUS_ANNOTATION)
    if written is None:
        return (), 0
    try:
        listed = json.loads(written)
    except (ValueError, TypeError, RecursionError):
        listed = None
    entries = listed if isinstance(listed, list) else [None]
    gpus = [gpu for gpu in map(_read_gpu, entries[:MAX_GPUS]) if gpu is not None]
    unread = len(entries) - len(gpus)
    gpus.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple({gpu.uuid: gpu for gpu in gpus}.values()), unread


def _read_gpu(entry: Any) -> Gpu | None:
    match entry:
        case {"uuid": str(uuid), "memory": int(memory), "product": str(name), "index": int(index)}:
            amount_bytes = memory // MIB * MIB
            if is_valid_gpu_id(uuid, index) and MIB <= amount_bytes <= PLAUSIBLE_GPU_BYTES:
                healthy = entry.get("healthy") is not False
                return Gpu(
                    uuid=uuid,
                    memory_bytes=amount_bytes,
                    product=replace_unprintable(name, MAX_PRODUCT_LENGTH),
                    index=index,
                    total_bytes=_total(entry, amount_bytes),
                    healthy=healthy,
                    fault="" if healthy else _fault(entry.get("fault")),
                )
    return None


def _fault(fault: object) -> str:
    return replace_unprintable(fault, MAX_FAULT_LENGTH) if isinstance(fault, str) else ""


def _total(entry: Mapping[str, Any], usable_bytes: int) -> int | None:
    """Return a GPU's total memory; None if it is missing or out of range."""
    total = entry.get("total")
    return (
        total if isinstance(total, int) and usable_bytes <= total <= PLAUSIBLE_GPU_BYTES else None
    )
