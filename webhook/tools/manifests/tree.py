"""JSON Patch edits of ruamel's commented tree.

Plain scalars stay strings, so unedited values do not change under any YAML
version.

yaml-edit (0.2.0, November 2026) was tried instead. It changes the meaning of documents with
anchors, inserts items between an item and the comment above it, and always indents by two.
"""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.tag import Tag
from ruamel.yaml.tokens import CommentToken

from webhook.adapters.yaml_documents import Path
from webhook.core.pod.patch import Operation
from webhook.tools.manifests.bounds import WIDEST_STEP
from webhook.tools.manifests.reading import Layout, needs_quotes

_UNFOLDED: Final = 2**30
_NEVER: Final = -1


class _TextResolver(VersionedResolver):
    """Resolver that reads every scalar as a string, except `<<`."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is not ScalarNode:
            return super().resolve(kind, value, implicit)
        is_merge = value == "<<" and implicit[0]
        return Tag(suffix="tag:yaml.org,2002:merge") if is_merge else self.DEFAULT_SCALAR_TAG


def edit_text(text: str, changes: Mapping[Path, Iterable[Operation]], layout: Layout) -> str:
    """Return the text of a document with JSON Patch operations applied at the paths."""
    yaml = YAML(typ="rt")
    yaml.Resolver = _TextResolver
    yaml.preserve_quotes = True
    yaml.width = _UNFOLDED
    dash = min(max(layout.dashes, key=layout.dashes.__getitem__, default=0), WIDEST_STEP)
    step = min(max(layout.steps, key=layout.steps.__getitem__, default=2), WIDEST_STEP)
    yaml.indent(mapping=step, sequence=dash + 2, offset=dash)
    tree = yaml.load(text)
    editor = _Editor(tree)
    for path, operations in changes.items():
        for operation in operations:
            editor.apply(path, operation)
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


class _Editor:
    """Applies edits to a tree. A node with several references is copied before its edit."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self._uses: Counter[int] = Counter()
        self._seen: dict[int, Any] = {}
        """Counted nodes keyed by ID. Keeps nodes alive, since Python may reuse a freed ID."""
        self._count(tree)

    def apply(self, at: Path, operation: Operation) -> None:
        """Apply an operation whose pointer is relative to the node at `at`."""
        pointer = operation["path"].split("/")[1:]
        parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer]
        path: list[str | int] = [*at, *parts]
        parents, last = path[:-1], path[-1]
        above, node = None, self._tree
        for part in parents:
            above, node = node, self._own(node, part)
        key: Any = int(last) if isinstance(node, CommentedSeq) else last
        if operation["op"] == "remove":
            _remove(node, key, above, parents[-1])
        elif isinstance(node, CommentedSeq) and operation["op"] == "add":
            below = _cut(*_last_leaf(node, key - 1)) if key else _cut_head(node, above, parents[-1])
            node.insert(key, _commented(operation["value"]))
            _paste(*_last_leaf(node, key), below)
        else:
            _put(node, key, operation["value"])

    def _count(self, node: Any) -> None:
        """Count references to each collection, and write empty nulls in flow style as `null`.

        A merge of a mapping counts as a reference, because an edit would change both.
        """
        if not isinstance(node, (CommentedMap, CommentedSeq)) or id(node) in self._seen:
            return
        self._seen[id(node)] = node
        node.anchor.always_dump = (
            node.anchor.value is not None
        )  # even if an edit removes the last alias
        for child in (*_children(node).values(), *_merged(node)):
            self._uses[id(child)] += 1
            self._count(child)
        if node.fa.flow_style():
            for key, child in _children(node).items():
                if type(child) is str and not child:
                    node[key] = "null"

    def _own(self, node: Any, part: str | int) -> Any:
        """Return a child that can be edited in place. Copy a shared child; replace null by {}."""
        key = int(part) if isinstance(node, CommentedSeq) else part
        child = node[key] if isinstance(node, CommentedSeq) or key in node else ""
        if not isinstance(child, (CommentedMap, CommentedSeq)):
            _put(node, key, {})
            child = node[key]
        elif self._uses[id(child)] > 1:
            self._uses[id(child)] -= 1
            child = copy.deepcopy(child)
            self._count(child)
            _drop_anchors(child)
            node[key] = child
        return child


def _children(node: Any) -> dict[Any, Any]:
    if isinstance(node, CommentedMap):
        return {key: node[key] for key in node}
    return dict(enumerate(node))


def _merged(node: Any) -> list[Any]:
    """Return the merged mappings. ruamel before 0.19 returns them with positions."""
    merged = node.merge if isinstance(node, CommentedMap) else ()
    return [item[1] if isinstance(item, tuple) else item for item in merged]


def _drop_anchors(node: Any) -> None:
    if isinstance(node, (CommentedMap, CommentedSeq)):
        node.yaml_set_anchor(None)
        for child in _children(node).values():
            _drop_anchors(child)


def _commented(value: Any) -> Any:
    """Convert a JSON value to nodes; ambiguous strings are quoted."""
    if isinstance(value, dict):
        return CommentedMap({key: _commented(item) for key, item in value.items()})
    if isinstance(value, list):
        return CommentedSeq(_commented(item) for item in value)
    if isinstance(value, str):
        return DoubleQuotedScalarString(value) if needs_quotes(value) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _put(node: Any, key: Any, value: Any) -> None:
    """Set a value. Comments below the old value are kept; comments inside it are removed."""
    value = _commented(value)
    present = key < len(node) if isinstance(node, CommentedSeq) else key in node
    if present:
        below = _cut(*_last_leaf(node, key))
        node[key] = value
    else:
        below = _cut(*_last_leaf(node, _last_key(node)))
        node[key] = value
    _paste(*_last_leaf(node, key), below)


def _remove(node: Any, key: Any, above: Any, above_key: Any) -> None:
    """Remove a value. Comments below the value move above the next value."""
    keys = list(_children(node))
    position = keys.index(key)
    below = _cut(*_last_leaf(node, key))
    del node[key]
    if position:
        _paste(*_last_leaf(node, keys[position - 1]), below)
    elif node:
        tokens = node.ca.items.setdefault(next(iter(_children(node))), [None, None, None, None])
        tokens[1] = [
            CommentToken(line.lstrip(" ") + "\n", CommentMark(len(line) - len(line.lstrip(" "))))
            for line in below.splitlines()
        ]
    else:
        above[above_key] = type(node)()
        if (
            above_key in above.ca.items
        ):  # comments above items, for which ruamel leaves a blank line
            above.ca.items[above_key][3:] = [None]
        _paste(above, above_key, below)


def _last_key(node: Any) -> Any:
    """Return the last key that is written in the node itself, not merged into it."""
    if isinstance(node, CommentedSeq):
        return len(node) - 1
    return next(reversed([key for key, _ in node.non_merged_items()]), None)


def _last_leaf(node: Any, key: Any) -> tuple[Any, Any]:
    """Return node and key of a value's last line. ruamel attaches comments below to them."""
    while key is not None and key != _NEVER:
        child = node[key]
        is_block = isinstance(child, (CommentedMap, CommentedSeq)) and not child.fa.flow_style()
        if not is_block or not child:
            break
        node, key = child, _last_key(child)
    return node, key


def _slot(node: Any) -> int:
    """Return the index of the trailing comment in ruamel's list of comments."""
    return 0 if isinstance(node, CommentedSeq) else 2


def _cut(node: Any, key: Any) -> str:
    """Remove and return the comment lines below a leaf, but not the comment on its line."""
    tokens = node.ca.items.get(key)
    token = tokens[_slot(node)] if tokens else None
    if token is None:
        return ""
    line, newline, below = token.value.partition("\n")
    token.value = line + newline
    return str(below)


def _cut_head(node: CommentedSeq, above: Any, key: Any) -> str:
    """Remove and return the comment lines between a list's key and its first item.

    ruamel stores such lines twice. Without a comment on the key's line, they are a list.
    """
    beside, lines, *_ = node.ca.comment or (None, None)
    if beside is not None:
        line, newline, below = beside.value.partition("\n")
        beside.value = line + newline
        return str(below)
    if not lines:
        return ""
    node.ca.comment[1] = None
    if isinstance(above, CommentedMap):
        above.ca.items.pop(key, None)
    return "".join(" " * line.start_mark.column + line.value for line in lines)


def _paste(node: Any, key: Any, below: str) -> None:
    if not below:
        return
    tokens = node.ca.items.setdefault(key, [None, None, None, None])
    token = tokens[_slot(node)]
    if token is None:
        tokens[_slot(node)] = CommentToken("\n" + below, CommentMark(0), None)
    else:
        token.value = token.value + below
