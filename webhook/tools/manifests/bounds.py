"""Bounds of the manifests that people give a command."""

from __future__ import annotations

from typing import Final

DEEPEST_MANIFEST: Final = 100  # no Kubernetes object nests deeper; keeps recursion bounded
MAX_ALIASED: Final = 100_000  # values of all aliases together; go-yaml rejects as many
MAX_DIGITS: Final = 100  # longer integers are floats, or not read: nothing counts that far
LONGEST_VALUE: Final = 100  # characters of a text that count as one value where it is aliased
MOST_COMPARED_LINES: Final = 5000  # beyond, comparing takes longer than users wait
WIDEST_STEP: Final = 16  # columns by which new lines are indented in the ones above them
DEEPEST_COLUMN: Final = 256  # by which a new line is moved to where its neighbours stand
MOST_GROWTH: Final = 8  # characters that are written for each that was read, or is added
LEAST_WRITTEN: Final = 64 * 2**10  # characters of a document that are written in any case
