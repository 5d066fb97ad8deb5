"""`admit --migrate`: manifests of other products are rewritten, and then judged as ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from webhook.core.pod.findings import MalformedObjectError, quoted
from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.tools.admit.judge.migration.foreign_pod import Scale, read_foreign_pod
from webhook.tools.admit.judge.migration.notes import notes_about_object
from webhook.tools.admit.judge.migration.requests import PRODUCTS
from webhook.tools.admit.judge.migration.rewrite import migrate
from webhook.tools.admit.judge.verdict import Remark, request_for
from webhook.tools.shared.manifests.documents import changed, find_targets
from webhook.tools.shared.manifests.lines import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from webhook.adapters.yaml_documents import Path
    from webhook.core.pod.foreign import Product
    from webhook.core.pod.patch import Operation
    from webhook.tools.admit.judge.migration.foreign_pod import Migration
    from webhook.tools.shared.manifests.documents import ManifestDocument, ManifestObject, Target
    from webhook.tools.shared.manifests.lines import Lines

    Command = TypeVar("Command", bound=Callable[..., Any])

_WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where manifests come from, and what they leave open."""

    product: Product
    scale: Scale


@dataclass(frozen=True, slots=True)
class Moved:
    """A document, rewritten, and what became of each pod in it, by where it stands."""

    document: ManifestDocument
    migrations: dict[Path, Migration]


def moved(document: ManifestDocument, origin: Origin) -> Moved:
    """Rewrite a document; raises ManifestError where one of its objects is too large."""
    migrations: dict[Path, Migration] = {}
    changes: dict[Path, list[Operation]] = {}
    for target in find_targets(document.value):
        migration = _migration(target, origin)
        if migration is None:
            continue
        migrations[target.at] = migration
        for path, operations in target.changes(migration.operations).items():
            changes.setdefault(path, []).extend(operations)
    return Moved(changed(document, changes), migrations)


def _migration(target: Target, origin: Origin) -> Migration | None:
    """Rewrite one pod; None where there is none, or nobody can read it: admission says why."""
    if target.template is None:
        return None
    pod = request_for(target, "").obj
    try:
        source = read_foreign_pod(pod, target.found, target.owner)
        return migrate(source, origin.product, origin.scale)
    except MalformedObjectError:
        return None


def notes_about(found: ManifestObject, origin: Origin, lines: Lines) -> tuple[Remark, ...]:
    """Return what has no counterpart of an object that holds no pod."""
    return tuple(
        Remark(lines.of((*found.at, *parts_of(note.path))), str(note), path=note.path)
        for note in notes_about_object(found.value, found.kind, found.version, origin.product)
    )


def migrate_options(command: Command) -> Command:
    """Add the options of a migration, which `origin_of` reads."""
    options: Iterable[Callable[[Command], Command]] = (
        click.option(
            "--gpu-memory-unit",
            "unit",
            metavar="SIZE",
            callback=_size,
            help="With --migrate: what one of the product's units of memory is, where its "
            "installation changes that, e.g. 1Mi.  [default: hami 1Mi, gpushare 1Gi]",
        ),
        click.option(
            "--gpu-memory",
            "gpu_memory",
            metavar="SIZE",
            callback=_size,
            help="With --migrate: what a whole GPU becomes, e.g. 16Gi; percentages and fractions "
            "are parts of it.",
        ),
        click.option(
            "--migrate",
            "product",
            type=click.Choice([*PRODUCTS]),
            help="First rewrite manifests that ask another product, as their author would do it; "
            "print them so, and judge them.",
        ),
    )
    for option in options:
        command = option(command)
    return command


def origin_of(product: str | None, gpu_bytes: int | None, unit_bytes: int | None) -> Origin | None:
    """Return where manifests come from; None without a migration. Raises click.UsageError."""
    given = {"--gpu-memory": gpu_bytes, "--gpu-memory-unit": unit_bytes}
    if product is None:
        for name, value in given.items():
            if value is not None:
                raise click.UsageError(f"{name} is for --migrate; add --migrate, or remove it")
        return None
    found = PRODUCTS[product]
    if unit_bytes is not None and not found.has_configurable_unit:
        raise click.UsageError(f"--migrate {product} has no unit; remove --gpu-memory-unit")
    if product == _WHOLE and gpu_bytes is None:
        raise click.UsageError(
            "--migrate whole needs to know what a whole GPU becomes; add --gpu-memory 16Gi, for "
            "example"
        )
    return Origin(found, Scale(gpu_bytes, unit_bytes))


def _size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Read a size in bytes."""
    if value is None:
        return None
    try:
        return parse_vram(value)
    except QuantityError as error:
        raise click.BadParameter(f"{quoted(value)} {error}") from None
