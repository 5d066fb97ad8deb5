"""What bounds whatever a command reads, and what each bound protects."""

from __future__ import annotations

from typing import Final

# Objects of a cluster that cost one request each, and texts that are read whole.
MOST_BETWEEN: Final = 16  # owners between a pod and what is explained, a request each
MOST_READ: Final = 20  # pods of it that are read whole, the newest
MOST_LOG_BYTES: Final = 2**20  # of a log that is asked for
MOST_LOG_LINES: Final = 500  # the newest; as many of the log before the last restart
MOST_ASKED: Final = 8  # nodes whose pods without a promise are read, by a request each
MOST_METRICS_BYTES: Final = 4 * 2**20  # of one replica's

# Files that people give a command.
DEEPEST_MANIFEST: Final = 100  # no Kubernetes object nests deeper; keeps recursion bounded
MAX_ALIASED: Final = 100_000  # values of all aliases together; go-yaml rejects as many
MAX_DIGITS: Final = 100  # longer integers are floats, or not read: nothing counts that far
LONGEST_VALUE: Final = 100  # characters of a text that count as one value where it is aliased
MOST_COMPARED_LINES: Final = 5000  # beyond, comparing takes longer than users wait
WIDEST_STEP: Final = 16  # columns by which new lines are indented in the ones above them
DEEPEST_COLUMN: Final = 256  # by which a new line is moved to where its neighbours stand
MOST_GROWTH: Final = 8  # characters that are written for each that was read, or is added
LEAST_WRITTEN: Final = 64 * 2**10  # characters of a document that are written in any case
