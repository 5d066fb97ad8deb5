"""Limits on input from outside, and the resources that they protect.

Kubernetes' lengths of names are in `webhook.names`, and the enforcer has a table of its own.
"""

from __future__ import annotations

from typing import Final

# Lengths of text from others: they protect memory, our log, and messages that quote the text.
LONGEST_WORD: Final = 64  # a name or an amount: a label has 63 at most, a UUID 36
LONGEST_UUID: Final = 48  # a GPU's; NVML's are of 40 characters
LONGEST_KEY: Final = 128  # a key in the path of a template
LONGEST_STORED: Final = 256  # a string of an object; a driver's name has at most 63 characters
LONGEST_REASON: Final = 500  # the reason for which a pod of a node cannot be counted
LONGEST_PATH: Final = 512  # a field's path; the longest has an annotation's key of 317 characters
LONGEST_SENTENCE: Final = 1024
"""Reason for which a pod waits, is denied or was stopped, also in our log and the audit log. It may
quote a tenant, the API server or another webhook, and the kubelet keeps 50 MiB of our log. Our
own sentences take at most half of this."""
LONGEST_REFERENCE: Final = 1024  # an image or a user's name, which is in a single message
LONGEST_WHOLE: Final = 2048  # whole GPUs in an assignment list; the longest text has about 1,100

# Time and memory of the review of one object.
SHOWN_FINDINGS: Final = 100  # in one message; a pod with 500 containers, or a file, may have 500
MOST_DEMAND_FINDINGS: Final = 16  # in one list of amounts
MOST_READ: Final = 16 * 1024
"""Characters of all annotations that inject devices (sixteen GPUs take 400), and of a container's
command line and variables, any of which may set a memory limit."""
MOST_INJECTED: Final = 64  # annotations of a pod that inject devices
MOST_TEXTS: Final = 256  # arguments or variables that are searched for flags of programs
MOST_FRACTIONS: Final = 32  # memory fractions in a container that are judged
MOST_HINT_KEYS: Final = 4096  # keys of one map; nothing else limits those of a workload
MOST_COMPARED: Final = 32  # keys whose similarity to ours is computed, which takes time
LONGEST_COMPARED: Final = 80  # characters of such a key
LONGEST_QUANTITY: Final = 256  # no honest quantity is longer; limits the time for hostile digits
LARGEST_EXPONENT: Final = 40  # beyond it, a value is over int64 or under a billionth for all digits
MOST_DIGITS: Final = 19  # of an amount that Kubernetes can count
DEEPEST_TEMPLATE: Final = 64  # levels of nesting; the deepest known template is at level 8
MOST_VALUES: Final = 2**20  # in one object: ten times as many as the API server can store
MOST_TEMPLATES: Final = 1000  # of one object

# Numbers of list items that are read of stored objects.
MOST_GPUS_ASKED: Final = 9999  # maximum of the annotation `gpu-count`: four digits
MOST_ENTRIES: Final = 512  # conditions, containers and statuses of an object
MOST_OWNERS: Final = 64  # of a pod

# Numbers and times that are accepted.
LARGEST_INT32: Final = 2**31 - 1  # a count, a process ID, an amount in another product's unit
MOST_RUN_STOPS: Final = 1_000  # in one run
LATEST_S: Final = 2**53  # the largest integer that is exact in JSON
LONGEST_LATE_S: Final = 86_400.0  # delay of the sentry for a pod's cap
LONGEST_GRACE_S: Final = 3_600.0  # between SIGTERM and SIGKILL, as in policies
LONGEST_TIME: Final = 12  # digits of a time in seconds
