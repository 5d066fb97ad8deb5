"""Limits on manifests."""

from __future__ import annotations

from typing import Final

DEEPEST_MANIFEST: Final = 100  # maximum nesting depth; no Kubernetes object is deeper
MAX_ALIASED: Final = 100_000  # maximum number of values in all aliases; the limit of go-yaml
MAX_DIGITS: Final = 100  # maximum length of an integer; longer ones are read as floats, or rejected
LONGEST_VALUE: Final = 100  # maximum length of an aliased string that counts as one value
MOST_COMPARED_LINES: Final = 5000  # maximum number of lines compared; more take too long
WIDEST_STEP: Final = 16  # maximum indentation of new lines, in columns
DEEPEST_COLUMN: Final = 256  # maximum shift of a new line, in columns
MOST_GROWTH: Final = 8  # maximum number of characters written per character read or added
LEAST_WRITTEN: Final = 64 * 2**10  # number of characters of a document that may always be written
