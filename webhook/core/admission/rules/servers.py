"""Servers of models that take most of a GPU whatever its share: a warning names what bounds them.

Checked in each project's source: no variable bounds what vLLM (vllm/config/cache.py) and SGLang
(docs/advanced_features/server_arguments.md) take; Text Generation Inference (launcher/src/main.rs)
reads one that no other program does. Triton Inference Server takes no memory that its models do not
need, and its `--model-load-gpu-limit` counts what others use on the GPU as well
(src/backend_model_instance.cc), so there is nothing to suggest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

from webhook.core.admission.rules.hints import SHOWN
from webhook.core.bounds import LONGEST_REFERENCE, MOST_READ, MOST_TEXTS
from webhook.core.nvidia.programs import FRACTION_REFERENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from webhook.core.admission.rules.case import Case
    from webhook.core.pod.views import Container


@dataclass(frozen=True, slots=True)
class Server:
    """A server of models, by the name of its image."""

    name: str
    image: re.Pattern[str]
    """Found in the last part of an image's name, where words end at `-`, `_` or `.`."""
    flag: str
    """Takes a share of the GPU's memory."""
    bounded: re.Pattern[str]
    """Found in `command`, `args` or `env` where something bounds it already."""
    reads_env: bool = False


def _word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){text}(?![a-z0-9])")


SERVERS: Final = (
    Server(
        "vLLM",
        _word("vllm"),
        "--gpu-memory-utilization",
        re.compile("gpu[-_]memory[-_]util|kv[-_]cache[-_]memory|--config(?![-_])|GPU_MEMORY_UTIL"),
    ),
    Server(
        "SGLang",
        _word("sglang"),
        "--mem-fraction-static",
        re.compile(
            "mem[-_]fraction[-_]static|max[-_]total[-_]tokens|--config(?![-_])|MEM_FRACTION_STATIC"
        ),
    ),
    Server(
        "Text Generation Inference",
        _word("(?:text-generation-inference|tgi)"),
        "--cuda-memory-fraction",
        re.compile("cuda[-_]memory[-_]fraction|CUDA_MEMORY_FRACTION"),
        reads_env=True,
    ),
)


def unbounded_servers(case: Case) -> tuple[str, ...]:
    """Rule: a server of models that would take most of a GPU is limited to its share.

    Fields: spec.[initContainers,containers][*].image, .command, .args, .env of containers with VRAM
    Allowed values: another image; one of SERVERS with what bounds it, or more than can be read

    It returns warnings and not findings: an image's name is no proof of what it runs.
    """
    if case.asked is None:
        return ()
    return tuple(islice(_warnings(case, case.asked.amounts), SHOWN))


def _warnings(case: Case, amounts: Collection[str]) -> Iterator[str]:
    known = case.rule.chooses_gpus and len(amounts) == 1
    for container in case.pod.containers:
        server = _server(container) if container.name in amounts else None
        if server is None or _may_be_bounded(container, server):
            continue
        value = FRACTION_REFERENCE if known else "0.1 for a tenth of the GPU"
        yield (
            f"{container.path}.args: {server.name} takes most of a GPU, beyond this container's "
            f"share, and would be stopped; add {server.flag}={value}"
        )


def _server(container: Container) -> Server | None:
    image = container.raw.get("image")
    if type(image) is not str or len(image) > LONGEST_REFERENCE:
        return None
    return _runs(image)


@lru_cache(maxsize=256)
def _runs(image: str) -> Server | None:
    # registry.example:5000/vllm/name:tag@sha256:digest
    name = image.rpartition("/")[2].partition(":")[0].lower()
    return next((server for server in SERVERS if server.image.search(name)), None)


def _may_be_bounded(container: Container, server: Server) -> bool:
    """Say whether something bounds a server, or might in what is too much to read."""
    if server.reads_env and container.raw.get("envFrom"):
        return True
    texts: list[str] = []
    for field in ("command", "args"):
        value = container.raw.get(field) or []
        if type(value) is not list or len(value) > MOST_TEXTS:
            return True
        texts += [text for text in value if type(text) is str]
    env = container.env()
    if len(env) > MOST_TEXTS:
        return True
    for entry in env:
        texts += [entry["name"], entry.get("value") or ""]
    return sum(map(len, texts)) > MOST_READ or any(map(server.bounded.search, texts))
