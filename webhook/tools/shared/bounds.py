"""What bounds whatever a command reads, and what each bound protects."""

from __future__ import annotations

from typing import Final

# What a cluster tells whoever asks it: the memory and the time of one command.
MOST_TERMS: Final = 256  # of a selection, of tolerations; more than admission lets pass
MOST_NAMES: Final = 10_000  # that are compared, and workloads of a group that are counted
LONGEST_NAMED: Final = 100  # characters of a rule's name, of a card's
LONGEST_COUNT: Final = 4  # digits of a pod's count of GPUs
MOST_WHOLE: Final = 100  # pods without a node that are read whole
MOST_OWNED: Final = 500  # objects of a workload
MOST_BETWEEN: Final = 16  # owners between a pod and what is explained, a request each
MOST_READ: Final = 20  # pods of it that are read whole, the newest
MOST_EVENTS: Final = 50  # of an object
MOST_LOG_BYTES: Final = 2**20  # of a log that is asked for
MOST_LOG_LINES: Final = 500  # the newest; as many of the log before the last restart
LONGEST_LOG_LINE: Final = 16 * 2**10  # characters; the enforcer's own have at most some thousand
LONGEST_LOG_COMMAND: Final = 120  # characters of a command in it
MOST_ASKED: Final = 8  # nodes whose pods without a promise are read, by a request each
MOST_REPLICAS: Final = 16  # of the webhook, whose metrics are read
MOST_METRICS_BYTES: Final = 4 * 2**20  # of one replica's
MOST_GROUPS: Final = 500  # of a report; pods of further ones are counted alone
MOST_NODE_GPUS: Final = 256  # no machine has as many; a node's labels may say any number

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
