"""JSON Patches (RFC 6902): derived from the edits of an object as they are made, and applied.

Nothing is built or compared that is not sent, so that a patch costs as much as it says. The object
that came is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import jsonpatch

from webhook.core.pod.fields import Json

Operation = dict[str, Any]

_WORTH_CONDENSING: Final = 4
"""Operations: of a few, what is saved is less than what the field adds to the answer."""


class PatchError(RuntimeError):
    """A patch does not hold: a bug of ours."""


def apply_patch(document: Json, operations: Iterable[Operation]) -> Json:
    """Return the document with the operations applied; neither is changed, or shared with it.

    Raises PatchError where one names what is not there.
    """
    # jsonpatch 1.33 puts values in as they are, where a later operation would change them.
    patch = jsonpatch.JsonPatch(_copy([*operations]))
    try:
        result: Json = patch.apply(_copy(document), in_place=True)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise PatchError(f"a patch does not apply: {error}") from error
    return result


class Edits:
    """The edits of an object, each written down as the operations that make it.

    Places are JSON pointers (RFC 6901) of what is there, or was put there. What is inside an item
    of a list is edited before the list itself is, since it is named by the item's index in the
    object that came. Fields are set by "add", whether they are there or not (RFC 6902, section
    4.1): appliers differ on replacing a null.
    """

    __slots__ = ("operations",)

    def __init__(self) -> None:
        """Begin without any."""
        self.operations: list[Operation] = []

    def put(self, place: str, key: str, value: Any) -> None:
        """Set a field of the object at a place."""
        if "/" in key or "~" in key:
            key = _escaped(key)
        self.operations.append({"op": "add", "path": f"{place}/{key}", "value": value})

    def remove(self, place: str, key: str) -> None:
        """Remove a field of the object at a place."""
        self.operations.append({"op": "remove", "path": f"{place}/{_escaped(key)}"})

    def merge(
        self, place: str, key: str, present: Mapping[str, Any] | None, entries: Mapping[str, Any]
    ) -> None:
        """Set entries of a map that is a field of the object at a place, and is `present`."""
        if not entries:
            return
        if present is None:
            self.put(place, key, entries)
            return
        for name, value in entries.items():
            self.put(f"{place}/{key}", name, value)

    def append(self, place: str, key: str, present: list[Any], missing: list[Any]) -> None:
        """Append items to a list that is a field of the object at a place, and is `present`."""
        if present:
            for index, item in enumerate(missing, len(present)):
                self.insert(f"{place}/{key}", index, item)
        elif missing:
            self.put(place, key, missing)

    def change(self, place: str, key: str, present: list[Any], after: list[Any]) -> None:
        """Make another list of one that is a field of the object at a place, and is `present`.

        Items are matched by their names, so that of those that stay nothing is said but what
        differs, and a manifest keeps its comments; where names cannot tell, the list is set whole.
        """
        if after is present:
            return
        before = _by_name(present)
        wanted = _by_name(after) if before else None
        if before is None or wanted is None or not _same_order(before, wanted):
            self.put(place, key, after)
            return
        here = f"{place}/{key}"
        for index, name in reversed([*enumerate(before)]):
            if name not in wanted:
                self.remove_item(here, index)
        for index, (name, item) in enumerate(wanted.items()):
            if name not in before:
                self.insert(here, index, item)
            elif before[name] is not item:
                self.rewrite(f"{here}/{index}", before[name], item)

    def rewrite(self, place: str, present: Json, after: Json) -> None:
        """Make another object of the one at a place, which is `present`, field by field."""
        for key in present:
            if key not in after:
                self.remove(place, key)
        for key, value in after.items():
            if key not in present or present[key] != value:
                self.put(place, key, value)

    def insert(self, place: str, index: int, value: Any) -> None:
        """Insert an item into the list at a place."""
        self.operations.append({"op": "add", "path": f"{place}/{index}", "value": value})

    def remove_item(self, place: str, index: int) -> None:
        """Take an item out of the list at a place."""
        self.operations.append({"op": "remove", "path": f"{place}/{index}"})


def condense(document: Json, operations: Sequence[Operation], field: str) -> Sequence[Operation]:
    """Say the same with one operation for all that changes inside a field of the document.

    The API server works less for it: it decodes and encodes what is on the way of each operation
    (evanphx/json-patch, `partialDoc`), which for the dozen in a pod's `spec` takes more than half
    as long again as to take all of it again. `make bench` shows what that saves.
    """
    inside = f"/{field}/"
    edits = [operation for operation in operations if operation["path"].startswith(inside)]
    if len(edits) < _WORTH_CONDENSING:
        return operations
    copies = copy = _Copy({field: document[field]})
    before = ""
    for operation in edits:
        place, _, last = operation["path"].rpartition("/")
        if place != before:  # many follow one another
            before, copy = place, copies
            for name in place.split("/")[1:]:
                copy = copy.inner(name)
        copy.edit(operation["op"], last, operation.get("value"))
    rest = [operation for operation in operations if not operation["path"].startswith(inside)]
    return [{"op": "replace", "path": f"/{field}", "value": copies.value[field]}, *rest]


class _Copy:
    """A copy of an object or a list, and of what is edited inside of it: no more than that."""

    __slots__ = ("_inner", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._inner: dict[str, _Copy] = {}

    def inner(self, name: str) -> _Copy:
        """Return the copy of what is at a name or an index, made when it is first asked for."""
        found = self._inner.get(name)
        if found is None:
            key = int(name) if type(self.value) is list else _unescaped(name)
            self.value[key] = self.value[key].copy()
            found = self._inner[name] = _Copy(self.value[key])
        return found

    def edit(self, op: str, name: str, value: Any) -> None:
        """Add or remove what is at a name or an index."""
        if type(self.value) is list:
            self._inner.clear()  # indices may change
            if op == "add":
                self.value.insert(int(name), value)
            else:
                del self.value[int(name)]
            return
        self._inner.pop(name, None)
        if op == "add":
            self.value[_unescaped(name)] = value
        else:
            del self.value[_unescaped(name)]


def _by_name(items: list[Any]) -> dict[str, Json] | None:
    """Index items by name; None where one has none, or two share one."""
    named = {item.get("name"): item for item in items}
    return named if len(named) == len(items) and None not in named else None


def _same_order(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    kept = [name for name in before if name in after]
    return kept == [name for name in after if name in before]


def _copy(value: Any) -> Any:
    """Copy JSON deeply: copy.deepcopy takes five times as long."""
    if type(value) is dict:
        return {
            key: item if type(item) is str else _copy(item)  # most leaves are text
            for key, item in value.items()
        }
    return [_copy(item) for item in value] if type(value) is list else value


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~") if "~" in key else key


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
