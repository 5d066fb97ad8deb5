"""In which line of a document something stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from webhook.adapters.yaml_documents import BoundedReader, StopError
from webhook.tools.shared.manifests.reading import KUBECTL

if TYPE_CHECKING:
    from webhook.adapters.yaml_documents import Path

_PART: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_UNREAD: Final = object()


@dataclass(slots=True)
class LineIndex:
    """The lines of one document that was read already; parsed again where one is asked for."""

    text: str
    first_line: int = 1
    """Of the text, in its file."""
    _root: Any = field(default=_UNREAD, init=False, repr=False)

    def of(self, path: Path) -> int:
        """Return the line of a path, or of the nearest thing around it."""
        if self._root is _UNREAD:
            try:
                self._root = next(BoundedReader(self.text, KUBECTL).documents(), None)
            except (StopError, yaml.YAMLError):  # JSON that is no YAML, as with tabs
                self._root = None
        return self.first_line + line_of(self._root, path)


def line_of(node: Any, path: Path) -> int:
    """Return the line of a path, or of the nearest thing around it, counted from 0."""
    line = node.start_mark.line if node else 0
    for part in path:
        if isinstance(part, int) and isinstance(node, yaml.SequenceNode) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(part, str) and isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == part]
            if not pairs:
                break
            line, node = pairs[0][0].start_mark.line, pairs[0][1]
        else:
            break
    return int(line)


def parts_of(shown: str) -> Path:
    """Read a field path as messages write it: `spec.containers[0].resources.limits[a.io/b]`."""
    return tuple(
        int(inner) if inner.isdecimal() else inner or outer for inner, outer in _PART.findall(shown)
    )
