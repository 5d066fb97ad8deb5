"""What bounds whatever comes from outside, and what each bound protects.

Kubernetes' own lengths of names are in `webhook.names`; what the enforcer needs, in its own table.
"""

from __future__ import annotations

from typing import Final

# Texts that somebody else wrote: memory, our log, and the messages that quote them.
LONGEST_WORD: Final = 64  # a name or an amount: a label has 63 at most, a UUID 36
LONGEST_UUID: Final = 48  # a GPU's; NVML's are of 40 characters
LONGEST_KEY: Final = 128  # a key of a template that a path has
LONGEST_STORED: Final = 256  # a text of an object; a driver's name has at most 63
LONGEST_REASON: Final = 500  # why a pod of a node cannot be counted
LONGEST_PATH: Final = 512  # a field's path: the longest has an annotation's key of 317 in it
LONGEST_SENTENCE: Final = 1024
"""Why a pod waits, is denied or was stopped, in our log and in the audit log, too: it may
quote a tenant, the API server or somebody's webhook, and the kubelet keeps 50 MiB of our log. The
longest of our own take half of this."""
LONGEST_REFERENCE: Final = 1024  # an image or a user's name, which stands in one message
LONGEST_WHOLE: Final = 2048  # of whole GPUs in a list; the longest that is written has some 1,100

# The time and the memory that a review of one object takes.
SHOWN_FINDINGS: Final = 100  # in a message: a pod of 500 containers, or a file, can have 500
MOST_DEMAND_FINDINGS: Final = 16  # of a list that has more than this wrong nobody reads the rest
MOST_READ: Final = 16 * 1024
"""Characters of all annotations that inject devices, where 400 name sixteen GPUs, and of
a container's texts together: what bounds memory may stand in any of them."""
MOST_INJECTED: Final = 64  # annotations of a pod that inject devices
MOST_TEXTS: Final = 256  # arguments, or variables, in which a program's flags are sought
MOST_FRACTIONS: Final = 32  # that programs of a container get, and that are judged
MOST_HINT_KEYS: Final = 4096  # keys of one map; a workload's own are bounded by nobody before
MOST_COMPARED: Final = 32  # keys that are compared with ours letter by letter, which takes time
LONGEST_COMPARED: Final = 80  # characters of such a key
LONGEST_QUANTITY: Final = 256  # none honest is longer; keeps hostile digits from costing time
LARGEST_EXPONENT: Final = 40  # beyond: over int64 or under a billionth whatever its digits
MOST_DIGITS: Final = 19  # of an amount that Kubernetes can count
DEEPEST_TEMPLATE: Final = 64  # of a value: the deepest template that we know of stands at 8
MOST_VALUES: Final = 2**20  # of one object: ten times as many as the API server would store
MOST_TEMPLATES: Final = 1000  # of one object

# Lists of stored objects, which are read so far and no further.
MOST_GPUS_ASKED: Final = 9999  # as the annotation `gpu-count` may say: four digits
MOST_ENTRIES: Final = 512  # conditions, containers and statuses of an object
MOST_OWNERS: Final = 64  # of a pod

# Numbers and times that are believed.
LARGEST_INT32: Final = 2**31 - 1  # of a count, a process's ID, another product's units
MOST_RUN_STOPS: Final = 1_000  # counted of one run
LATEST_S: Final = 2**53  # the largest time that JSON carries exactly
LONGEST_LATE_S: Final = 86_400.0  # for which a cap may come later than its pod
LONGEST_GRACE_S: Final = 3_600.0  # between SIGTERM and SIGKILL, as in policies
LONGEST_TIME: Final = 12  # digits of a time in seconds
