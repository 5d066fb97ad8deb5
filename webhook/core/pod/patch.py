"""Derive a JSON Patch (RFC 6902) from a pod before and after, and prove it by applying it.

A differ that knows Kubernetes' lists needs a fraction of a general differ's time on a pod, and its
patches read like the change: containers, variables and volumes are matched by their `name`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jsonpatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from webhook.core.pod.fields import Json

Operation = dict[str, Any]


class PatchError(RuntimeError):
    """A derived patch does not turn the pod into the wanted one: a bug of ours."""


def make_patch(before: Json, after: Json) -> list[Operation]:
    """Return the operations that turn one JSON object into another; empty where they are equal."""
    return list(_diff_objects(before, after, ""))


def apply_patch(document: Json, operations: Iterable[Operation]) -> Json:
    """Return the document with the operations applied; the document itself is not changed."""
    result: Json = jsonpatch.JsonPatch(list(operations)).apply(_copy(document), in_place=True)
    return result


def proven_patch(before: Json, after: Json) -> list[Operation]:
    """Return `make_patch`, applied once in-process; raises PatchError where it does not hold.

    The API server rejects a pod whose patch does not apply, even where `failurePolicy` is Ignore.
    """
    operations = make_patch(before, after)
    try:
        holds = not operations or _applied(before, operations) == after
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise PatchError(f"a derived patch does not apply: {error}") from error
    if not holds:
        raise PatchError("a derived patch applies, but not to the wanted pod")
    return operations


def _diff(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if before is after:
        return
    if type(before) is dict and type(after) is dict:
        yield from _diff_objects(before, after, path)
    elif type(before) is list and type(after) is list:
        yield from _diff_lists(before, after, path)
    elif before != after or type(before) is not type(after):
        yield {"op": "replace", "path": path, "value": after}


def _diff_objects(before: Json, after: Json, path: str) -> Iterator[Operation]:
    for key, value in after.items():
        present = before.get(key)
        if present is value and value is not None:
            continue  # most of a pod; to build a path for each would take most of the time
        here = f"{path}/{_escape(key)}"
        if present is None and (value is not None or key not in before):
            # "add" also where there is a null: appliers differ on replacing one.
            yield {"op": "add", "path": here, "value": value}
        else:
            yield from _diff(before[key], value, here)
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}


def _diff_lists(before: list[Any], after: list[Any], path: str) -> Iterator[Operation]:
    """Diff two lists: by name where every item has its own, else item by item, else as a whole."""
    before_names, after_names = _names(before), _names(after)
    if before_names is not None and after_names is not None:
        kept = [name for name in before_names if name in after_names]
        if kept == [name for name in after_names if name in before_names]:
            yield from _diff_named(before_names, after_names, path)
            return
    if len(before) > len(after):
        yield {"op": "replace", "path": path, "value": after}
        return
    for index, value in enumerate(after):
        if index < len(before):
            yield from _diff(before[index], value, f"{path}/{index}")
        else:
            yield {"op": "add", "path": f"{path}/{index}", "value": value}


def _diff_named(before: dict[str, Json], after: dict[str, Json], path: str) -> Iterator[Operation]:
    """Diff lists of named objects whose common names stand in the same order."""
    for index, name in reversed(list(enumerate(before))):
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{index}"}
    for index, (name, value) in enumerate(after.items()):
        if name in before:
            yield from _diff(before[name], value, f"{path}/{index}")
        else:
            yield {"op": "add", "path": f"{path}/{index}", "value": value}


def _names(values: list[Any]) -> dict[str, Json] | None:
    """Index a list by `name`; None where an item has none or two share one."""
    named: dict[str, Json] = {}
    for value in values:
        name = value.get("name") if type(value) is dict else None
        if type(name) is not str or name in named:
            return None
        named[name] = value
    return named


class _SealedObject(dict[str, Any]):
    """An object that is not copied.

    jsonpatch copies each value deeply, in case a later operation reaches into it, which took half
    of the proof's time; a derived patch never does that.
    """

    def __deepcopy__(self, memo: object) -> _SealedObject:
        return self


class _SealedList(list[Any]):
    """A list that is not copied, for the same reason."""

    def __deepcopy__(self, memo: object) -> _SealedList:
        return self


def _applied(document: Json, operations: Iterable[Operation]) -> Json:
    """Apply operations one by one: a whole JsonPatch would build each of them twice.

    What they change is copied on the way to it, and the rest shared with the document: a pod may
    hold a million arguments that no patch touches.
    """
    result: Json = dict(document)
    copies = {id(result): result}
    for operation in operations:
        kind = jsonpatch.JsonPatch.operations[operation["op"]]
        sealed = _sealed(operation)
        _copy_way(result, sealed["path"].parts[:-1], copies)
        result = kind(sealed).apply(result)
    return result


def _copy_way(holder: Any, parts: Iterable[str], copies: dict[int, Any]) -> None:
    """Replace what is on the way to a place by shallow copies, each once; `copies` are by id."""
    for part in parts:
        try:
            key = int(part) if type(holder) is list else part
            value = holder[key]
        except (ValueError, LookupError, TypeError):
            return  # the operation itself says what is wrong with its path
        if id(value) not in copies and isinstance(value, dict | list):
            value = dict(value) if isinstance(value, dict) else list(value)
            holder[key] = copies[id(value)] = value
        holder = value


def _sealed(operation: Operation) -> Operation:
    sealed = {"op": operation["op"], "path": _pointer(operation["path"])}
    if "value" in operation:
        value = operation["value"]
        kind = type(value)
        sealed["value"] = (
            _SealedObject(value) if kind is dict else _SealedList(value) if kind is list else value
        )
    return sealed


# Patches have few different paths, and to parse one takes as long as to apply an operation.
_pointer = lru_cache(maxsize=4096)(jsonpatch.JsonPointer)


def _copy(value: Any) -> Any:
    """Copy JSON deeply: copy.deepcopy takes five times as long."""
    if type(value) is dict:
        return {
            key: item if type(item) is str else _copy(item)  # most leaves are text
            for key, item in value.items()
        }
    return [_copy(item) for item in value] if type(value) is list else value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1") if "/" in key or "~" in key else key
