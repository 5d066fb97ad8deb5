"""JSON Patches (RFC 6902): derived from the edits of an object as they are made, and applied.

An edit is made in a copy of what it changes and written down as an operation, in one call, so that
nothing is compared afterwards and a patch costs as much as it says. What no edit touches is shared
with the object that came, which is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonpatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from webhook.core.pod.fields import Json

Operation = dict[str, Any]


class PatchError(RuntimeError):
    """A patch does not turn the object into the wanted one: a bug of ours."""


def apply_patch(document: Json, operations: Iterable[Operation]) -> Json:
    """Return the document with the operations applied; the document itself is not changed."""
    result: Json = jsonpatch.JsonPatch(list(operations)).apply(_copy(document), in_place=True)
    return result


class Draft:
    """An object as it will be, and the operations that make it so.

    Places are JSON pointers (RFC 6901). What is inside an item of a list is edited before the list
    itself is, since it is named by the item's index in the object that came.
    """

    __slots__ = ("_holders", "_new", "obj", "operations")

    def __init__(self, obj: Json) -> None:
        """Begin with an object, which is not changed itself."""
        self.obj: Json = obj.copy()
        """The object after all edits."""
        self.operations: list[Operation] = []
        self._holders: dict[str, Any] = {"": self.obj}
        """Copies of what is edited, and what an operation adds, by place."""
        self._new: set[str] = set()
        """The places that an operation adds: an edit there belongs to that operation."""

    def put(self, place: str, key: str, value: Any) -> None:
        """Set a field of the object at a place; the object is made where there is none, or null.

        The operation is "add" for a field that is there, too (RFC 6902, section 4.1): appliers
        differ on replacing a null.
        """
        holder = self._holders.get(place)
        if holder is None:
            holder = self._hold(place)
        holder[key] = value
        path = f"{place}/{_escaped(key)}"
        if path in self._holders:
            self._forget(path)
        if place not in self._new:
            self.operations.append({"op": "add", "path": path, "value": value})

    def remove(self, place: str, key: str | int) -> None:
        """Remove a field of the object at a place, or an item of the list there."""
        del self._hold(place)[key]
        path = f"{place}/{_escaped(key) if isinstance(key, str) else key}"
        self.operations.append({"op": "remove", "path": path})

    def insert(self, place: str, index: int, value: Any) -> None:
        """Insert an item into the list at a place."""
        self._hold(place).insert(index, value)
        self.operations.append({"op": "add", "path": f"{place}/{index}", "value": value})

    def append(self, place: str, key: str, present: list[Any], missing: list[Any]) -> None:
        """Append items to a list that is a field of the object at a place, and holds `present`."""
        if not present:
            if missing:
                self.put(place, key, missing)
            return
        for index, item in enumerate(missing, len(present)):
            self.insert(f"{place}/{key}", index, item)

    def change(self, place: str, key: str, before: list[Any], after: list[Any]) -> None:
        """Make another list of one that is a field of the object at a place, and holds `before`.

        Items that are the same objects stay as they are, and with them what a manifest says about
        them in comments; where some change places, the list is set as a whole.
        """
        if after is before:
            return
        edits = _edits(before, after) if before else None
        if edits is None:
            self.put(place, key, after)
            return
        removed, inserted = edits
        for index in reversed(removed):
            self.remove(f"{place}/{key}", index)
        for index in inserted:
            self.insert(f"{place}/{key}", index, after[index])

    def _forget(self, path: str) -> None:
        """Forget the copies of what was inside a field that is set anew."""
        for place in [place for place in self._holders if f"{place}/".startswith(f"{path}/")]:
            del self._holders[place]
            self._new.discard(place)

    def _hold(self, place: str) -> Any:
        """Return what may be edited at a place."""
        found = self._holders.get(place)
        if found is not None:
            return found
        above, _, name = place.rpartition("/")
        holder = self._hold(above)
        if type(holder) is list:
            index = int(name)
            found = holder[index] = holder[index].copy()
        elif holder.get(name) is None:
            found = {}
            self.put(above, name, found)
            self._new.add(place)
        else:
            found = holder[name] = holder[name].copy()
        self._holders[place] = found
        return found


def _edits(before: list[Any], after: list[Any]) -> tuple[list[int], list[int]] | None:
    """Return which items are gone, by index before, and which are new, by index after.

    None where one changed places.
    """
    kept = {id(item) for item in before}
    removed, inserted, position = [], [], 0
    for index, item in enumerate(after):
        if id(item) not in kept:
            inserted.append(index)
            continue
        while position < len(before) and before[position] is not item:
            removed.append(position)
            position += 1
        if position == len(before):
            return None
        position += 1
    return [*removed, *range(position, len(before))], inserted


def _copy(value: Any) -> Any:
    """Copy JSON deeply: copy.deepcopy takes five times as long."""
    if type(value) is dict:
        return {
            key: item if type(item) is str else _copy(item)  # most leaves are text
            for key, item in value.items()
        }
    return [_copy(item) for item in value] if type(value) is list else value


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1") if "/" in key or "~" in key else key
