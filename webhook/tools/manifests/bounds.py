"""Bounds of manifests."""

from __future__ import annotations

from typing import Final

DEEPEST_MANIFEST: Final = 100  # levels of nesting; no Kubernetes object has more
MAX_ALIASED: Final = 100_000  # values of all aliases together; go-yaml rejects the same number
MAX_DIGITS: Final = 100  # longer integers are read as floats, or rejected
LONGEST_VALUE: Final = 100  # characters of an aliased text that count as one value
MOST_COMPARED_LINES: Final = 5000  # comparing more lines takes too long
WIDEST_STEP: Final = 16  # maximum indentation of new lines, in columns
DEEPEST_COLUMN: Final = 256  # maximum shift of a new line, in columns
MOST_GROWTH: Final = 8  # characters written for each character that was read or added
LEAST_WRITTEN: Final = 64 * 2**10  # characters of a document that may always be written
