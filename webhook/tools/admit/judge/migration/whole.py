"""Whole GPUs, and replicas of time-slicing: NVIDIA's device plugin names no amount of memory.

| limits (else requests) of a container | here |
| --- | --- |
| nvidia.com/gpu: N | the amount that is given for a whole GPU, gpu-count N |
| nvidia.com/gpu.shared: N | that amount on one GPU: replicas, however many, may be of one |

MIG slices stay as they are: they are GPUs of their own.

Sources: README.md of NVIDIA/k8s-device-plugin ("Shared Access to GPUs": `renameByDefault`, and that
more replicas promise no more of a GPU).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Final

from webhook.core.pod.foreign import SHARED_GPU, WHOLE_GPU
from webhook.names import GPU_COUNT_ANNOTATION
from webhook.tools.admit.judge.migration.amounts import (
    by_container,
    gpu_count,
    part_of_gpu,
    whole_number,
)
from webhook.tools.admit.judge.migration.values import NotCarriedError, Note, Product, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from webhook.core.pod.views import Container
    from webhook.tools.admit.judge.migration.source import Source
    from webhook.tools.admit.judge.migration.values import Asked, Scale


def _read(source: Source, scale: Scale) -> Asked:
    asked = by_container(source, partial(_share, scale=scale))
    return replace(asked, notes=tuple(_several_replicas(source))) if asked.shares else asked


def _several_replicas(source: Source) -> Iterator[Note]:
    for container in source.pod.containers:
        path, replicas = whole_number(container, SHARED_GPU) or ("", 0)
        if replicas > 1:
            detail = f"{replicas} replicas become one share, since they promised no second GPU"
            yield Note(path, f'{detail}; for two GPUs add {GPU_COUNT_ANNOTATION}: "2"')


def _share(container: Container, *, scale: Scale) -> Share | None:
    at, replicas = whole_number(container, SHARED_GPU) or ("", 0)
    path, count = whole_number(container, WHOLE_GPU) or ("", 0)
    if replicas and count:
        raise NotCarriedError(at, f"stands beside {WHOLE_GPU}; keep one")
    if not replicas and not count:
        return None
    amount_bytes = part_of_gpu(path or at, "asks for a GPU", Fraction(1), scale.gpu_bytes)
    return Share(amount_bytes, gpu_count(path, count) if count else 1)


PRODUCT: Final = Product(
    name="whole GPUs",
    read=_read,
    resources={WHOLE_GPU: "", SHARED_GPU: ""},
    gives_gpus_by_container=True,
)
"""`--migrate whole`."""
