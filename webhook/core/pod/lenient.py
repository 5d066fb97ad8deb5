"""Parts of what somebody stored, read without an error: what is not of its type is empty.

For what is shown or compared alone. What decides about a pod reads it by `fields`, which never
takes a malformed field for an absent one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webhook.core.pod.fields import Json


def as_object(value: object) -> Json:
    """Return an object as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def as_objects(value: object, most: int | None = None) -> list[Json]:
    """Return the objects among the first of a list; none of anything else."""
    return [one for one in value[:most] if isinstance(one, dict)] if isinstance(value, list) else []
