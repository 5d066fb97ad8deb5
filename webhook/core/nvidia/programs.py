"""Memory that programs may use, and the environment variables that state it.

Each container with VRAM gets two variables: its amount per GPU and its fraction of the GPU. They
are first in `env`, so later entries and `args` can refer to them by `$(NAME)`. A rule can add
variables that frameworks read.

A pod may be created again with variables written earlier: restored, copied, applied with another
amount, or changed by another webhook. Entries of `env` are recognized by name and content:

| entry of `env` | written by vramwarden |
| --- | --- |
| `VRAMWARDEN_GPU_MEMORY_MIB` with a number | yes |
| `VRAMWARDEN_GPU_MEMORY_FRACTION` from vramwarden's annotation | yes |
| either name with another value | no: the user set it, and it stays |

Functions that edit a list of variables return the same list, not a copy, if nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, takewhile
from typing import Final, NamedTuple

from webhook.core.bounds import MAX_DIGITS
from webhook.core.formatting import format_amount, format_exact
from webhook.core.pod.fields import Json
from webhook.core.pod.quantity import MIB
from webhook.names import (
    GPU_MEMORY_FRACTION_ANNOTATION,
    GPU_MEMORY_FRACTION_ENV,
    GPU_MEMORY_MIB_ENV,
)

FRACTION_REFERENCE: Final = f"$({GPU_MEMORY_FRACTION_ENV})"
"""Reference that the kubelet replaces by the fraction, in `args` and in values of later
variables."""

CONTEXT_BYTES: Final = 900 * MIB
"""Margin for a CUDA context and its libraries, in bytes, which the driver counts in addition to the
framework's allocations. On an H100 a context took 518 MiB, PyTorch with its libraries up to 866
MiB.

`core.enforcement.driver_limit` limits the context without libraries.
"""


def usable_bytes(cap_bytes: int) -> int:
    """Return the bytes that a framework may allocate: the cap less a margin, at least half."""
    return max(cap_bytes - CONTEXT_BYTES, cap_bytes // 2)


class Program(StrEnum):
    """Programs that a rule's `programs` may name."""

    JAX = "jax"
    TENSORFLOW = "tensorflow"
    JAX_FRACTION = "jax-fraction"
    PYTORCH = "pytorch"
    CUPY = "cupy"
    JULIA = "julia"
    OLLAMA = "ollama"


DEFAULT_PROGRAMS: Final = (Program.JAX, Program.TENSORFLOW)
"""Programs whose environment variables work with any image and are read by no other program."""


class ProgramVariable(NamedTuple):
    """An environment variable that a program reads."""

    name: str
    value: str
    """Value with `{usable}` for the usable bytes and `{context}` for Ollama's context length."""
    instead: tuple[str, ...] = ()
    """Conflicting variables: this one is not added if one of them is set."""

    @property
    def needs_fraction(self) -> bool:
        """True if the value refers to the fraction, which not every pod has."""
        return FRACTION_REFERENCE in self.value

    @property
    def names_amount(self) -> bool:
        """True if the value is an exact amount of memory, which users are not expected to write."""
        return "{usable}" in self.value

    def entry(self, cap_bytes: int) -> Json:
        """Return the entry of `env` for a container with this cap per GPU."""
        usable = usable_bytes(cap_bytes)
        value = self.value.replace("{usable}", str(usable))
        return {"name": self.name, "value": value.replace("{context}", _ollama_context(usable))}


PROGRAM_VARIABLES: Final[dict[str, tuple[ProgramVariable, ...]]] = {
    # Grow on demand, instead of taking three quarters of the GPU: jaxlib/xla_client.py.
    Program.JAX: (ProgramVariable("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),),
    # Grow on demand, instead of taking the whole GPU: TensorFlow, "Limiting GPU memory growth".
    Program.TENSORFLOW: (ProgramVariable("TF_FORCE_GPU_ALLOW_GROWTH", "true"),),
    # A fraction of the total. jaxlib 0.4.36 reads this name, 0.4.30 does not. It raises an error if
    # the old name is also set, even by the image. wheels 2.9.1 and 2.10.0. Earlier versions read
    # only the older name, and raise an error for an unknown option, so the new name breaks no older
    # PyTorch.
    Program.JAX_FRACTION: (
        ProgramVariable(
            "XLA_CLIENT_MEM_FRACTION", FRACTION_REFERENCE, ("XLA_PYTHON_CLIENT_MEM_FRACTION",)
        ),
    ),
    # Read from 2.10 on, and the older name takes precedence there: c10/cuda/CUDAAllocatorConfig.h
    # of the wheels 2.9.1 and 2.10.0. Earlier versions read only the older name. They raise for an
    # unknown option in it, but the new name breaks no older PyTorch.
    Program.PYTORCH: (
        ProgramVariable(
            "PYTORCH_ALLOC_CONF",
            f"per_process_memory_fraction:{FRACTION_REFERENCE}",
            ("PYTORCH_CUDA_ALLOC_CONF",),
        ),
    ),
    # Bytes without a unit, which would raise an error: cupy/cuda/memory.pyx, _parse_limit_string.
    # Settings that grow with the GPU can be limited: loaded models, parallel requests, context
    # length.
    Program.CUPY: (ProgramVariable("CUPY_GPU_MEMORY_LIMIT", "{usable}"),),
    # Bytes, from 3.13 on: CUDA.jl, parse_limit.
    Program.JULIA: (ProgramVariable("JULIA_CUDA_HARD_MEMORY_LIMIT", "{usable}"),),
    # Ollama has no memory limit. OLLAMA_GPU_OVERHEAD is an amount to leave free, so computing it
    # needs the GPU's total. The settings that grow with the GPU can be bounded: loaded models,
    # requests, context length.
    Program.OLLAMA: (
        ProgramVariable("OLLAMA_MAX_LOADED_MODELS", "1"),
        ProgramVariable("OLLAMA_NUM_PARALLEL", "1"),
        ProgramVariable("OLLAMA_CONTEXT_LENGTH", "{context}"),
    ),
}

_GIB: Final = 1024 * MIB
_REFERENCES: Final = tuple(f"$({name})" for name in (GPU_MEMORY_MIB_ENV, GPU_MEMORY_FRACTION_ENV))
_FRACTION_FIELD: Final = {"fieldPath": f"metadata.annotations['{GPU_MEMORY_FRACTION_ANNOTATION}']"}


def _ollama_context(usable: int) -> str:
    """Return the context length that Ollama would choose for a GPU of that size.

    Ollama reads the size of the whole GPU, so a pod with a part of it needs this setting
    (server/routes.go, Serve).
    """
    if usable >= 47 * _GIB:
        return "262144"
    return "32768" if usable >= 23 * _GIB else "4096"


def set_cap_variables(env: list[Json], cap_bytes: int | None, *, fraction: bool) -> list[Json]:
    """Set a container's two variables of its cap, in front of all others.

    `cap_bytes` is None for a container without VRAM. `fraction` is True if the pod has a fraction
    that applies to this container. Variables of `configure_programs` are removed if they were
    written for another amount, or for a fraction that no longer exists. Entries of another webhook
    may come first unless they refer to vramwarden's.
    """
    wanted = _ours(cap_bytes, fraction=fraction)
    if not env:
        return wanted or env
    ours = [entry for entry in env if _is_ours(entry)]
    rest = [entry for entry in env if not _is_ours(entry)] if ours else env
    taken = {entry["name"] for entry in rest}
    wanted = [entry for entry in wanted if entry["name"] not in taken]
    if ours == wanted:
        before = takewhile(lambda entry: not _is_ours(entry), env) if ours else ()
        if not any(map(_refers_to_ours, before)):
            return env
    else:
        stale = list(_outdated_variables(ours, cap_bytes, fraction=fraction))
        rest = [entry for entry in rest if entry not in stale]
    return [*wanted, *rest]


def configure_programs(env: list[Json], programs: tuple[str, ...], cap_bytes: int) -> list[Json]:
    """Add the variables of programs, unless they or conflicting ones are set.

    Variables that need the fraction are added only if the container has it.
    """
    names = {entry["name"] for entry in env}
    added = []
    for setting in chain.from_iterable(PROGRAM_VARIABLES[program] for program in programs):
        if setting.name in names or not names.isdisjoint(setting.instead):
            continue
        if setting.needs_fraction and GPU_MEMORY_FRACTION_ENV not in names:
            continue
        added.append(setting.entry(cap_bytes))
        names.add(setting.name)
    return [*env, *added] if added else env


def _ours(cap_bytes: int | None, *, fraction: bool) -> list[Json]:
    if cap_bytes is None:
        return []
    amount = {"name": GPU_MEMORY_MIB_ENV, "value": str(cap_bytes // MIB)}
    return [amount, _FRACTIONS[0]] if fraction else [amount]


# The API server adds `apiVersion` to a manifest that lacks it.
_FRACTIONS: Final[tuple[Json, ...]] = tuple(
    {"name": GPU_MEMORY_FRACTION_ENV, "valueFrom": {"fieldRef": {**version, **_FRACTION_FIELD}}}
    for version in ({"apiVersion": "v1"}, {})
)


def _refers_to_ours(entry: Json) -> bool:
    value = entry.get("value")
    return type(value) is str and any(reference in value for reference in _REFERENCES)


def _is_ours(entry: Json) -> bool:
    return _shown_bytes(entry) is not None or entry in _FRACTIONS


def _shown_bytes(entry: Json) -> int | None:
    value = entry.get("value")
    if entry["name"] != GPU_MEMORY_MIB_ENV or type(value) is not str:
        return None
    if len(value) > MAX_DIGITS or not (value.isascii() and value.isdigit()):
        return None
    return int(value) * MIB


def _outdated_variables(
    ours: list[Json], cap_bytes: int | None, *, fraction: bool
) -> Iterator[Json]:
    shown_bytes = next(filter(None, map(_shown_bytes, ours)), None)
    changed = shown_bytes is not None and shown_bytes != cap_bytes
    lost_fraction = not fraction and any(entry in _FRACTIONS for entry in ours)
    if not changed and not lost_fraction:
        return
    for setting in chain.from_iterable(PROGRAM_VARIABLES.values()):
        if (setting.names_amount and changed) or (setting.needs_fraction and lost_fraction):
            yield setting.entry(shown_bytes or 0)


LARGEST_GPU_BYTES: Final = 288 * 2**30
"""Memory of the largest single GPU sold in 2026 (B300, MI355X), in bytes."""

SMALLEST_USEFUL_BYTES: Final = 600 * 2**20
"""Amount in bytes below which too little memory is left after a CUDA context, which takes 518 MiB
on an H100.

`core.enforcement.driver_limit` uses it as the size of the largest context.
"""


def warn_of_size(asked: int, largest_bytes: int | None = None) -> str:
    """Return a warning if a pod requests more than any GPU has; empty otherwise.

    `largest_bytes` is the cluster's largest GPU. If it is None (unknown), the largest GPU sold
    counts.
    """
    has_bytes = LARGEST_GPU_BYTES if largest_bytes is None else largest_bytes
    if asked <= has_bytes:
        return ""
    which = "any GPU sold has" if largest_bytes is None else "the largest GPU here has"
    why = f"{format_exact(asked)} is more than {which}: this pod will never start"
    return f"ask for {format_amount(has_bytes, down=True)} or less; {why}"
