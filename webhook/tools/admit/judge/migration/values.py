"""What is known of a product, and what becomes of one pod that was written for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.core.pod.patch import Operation
    from webhook.tools.admit.judge.migration.source import Source


class NotCarriedError(ValueError):
    """What a pod asks for has no counterpart, or cannot be read."""

    def __init__(self, path: str, detail: str) -> None:
        """Take the field's path within the pod, and what is wrong and what to do."""
        super().__init__(detail)
        self.note = Note(path, detail)


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that its author should know, and the field that it is about."""

    path: str
    """Within the pod."""
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


class Share(NamedTuple):
    """What one container asks for."""

    memory_bytes: int
    """On each of its GPUs, in whole MiB."""
    gpu_count: int


@dataclass(frozen=True, slots=True)
class Scale:
    """What manifests leave open, and a cluster's configuration says."""

    gpu_bytes: int | None = None
    """What a whole GPU becomes, and what percentages and fractions are parts of."""
    unit_bytes: int | None = None
    """What one of the product's units of memory is; None for the product's own default."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks the other product for."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    """By container."""
    problems: tuple[Note, ...] = ()
    """Why shares could not be read; none is carried over then."""
    notes: tuple[Note, ...] = ()
    """What of it is carried over in another way."""
    annotations: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Which of the pod's keys ours replace."""


@dataclass(frozen=True, slots=True)
class Product:
    """Another product: how it is asked, and which of its names have no counterpart.

    Patterns are those of a shell. What has none and does no harm stays; resources go, since nobody
    offers them and a pod that names them beside a share is denied.
    """

    name: str
    read: Callable[[Source, Scale], Asked]
    unit_bytes: int | None = None
    """What one of its units of memory is by default; None where that cannot be configured."""
    resources: Mapping[str, str] = field(default_factory=dict)
    """Those that go, by pattern, and what goes with them; empty where nothing is lost."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """In node selectors."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment: those that stay, by pattern, and why they do nothing any more."""
    objects: Mapping[str, str] = field(default_factory=dict)
    """Its own kinds of objects, as `group/Kind`."""
    schedulers: frozenset[str] = frozenset()
    """Its own, which would look for its requests."""
    gives_gpus_by_container: bool = False
    """Whether each container of a pod may get another GPU."""

    def schedules(self, name: object) -> bool:
        """Say whether a scheduler is the product's own; in a manifest a name may be anything."""
        return isinstance(name, str) and name in self.schedulers


@dataclass(frozen=True, slots=True)
class Migration:
    """What becomes of one pod or pod template."""

    product: str
    operations: tuple[Operation, ...] = ()
    """The edits, by pointers into what stands at the template's place."""
    asks: str = ""
    """Our annotations, as lines; empty where the pod asks for none."""
    notes: tuple[Note, ...] = ()
    problems: tuple[Note, ...] = ()
    """Why it stays as it was."""
