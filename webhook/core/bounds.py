"""Limits on untrusted input, and the resources that they protect.

Kubernetes' lengths of names are in `webhook.names`. The enforcer has a separate table.
"""

from __future__ import annotations

from typing import Final

# Lengths of strings from others. They protect memory, the log, and messages that quote them.
MAX_WORD_LENGTH: Final = 64  # a name or an amount: a label has 63 at most, a UUID 36
MAX_UUID_LENGTH: Final = 48  # a GPU's UUID; NVML's have 40 characters
MAX_KEY_LENGTH: Final = 128  # a key in the path of a template
MAX_STRING_LENGTH: Final = 256  # a string of an object; a driver's name has at most 63 characters
MAX_REASON_LENGTH: Final = 500  # the reason why a pod of a node cannot be counted
MAX_PATH_LENGTH: Final = (
    512  # path of a field; the longest has the key of an annotation, 317 characters
)
MAX_SENTENCE_LENGTH: Final = 1024
"""Maximum length of the reason for which a pod waits, is denied or was stopped, also in the log
and the audit log. The reason may quote a tenant, the API server or another webhook. The
kubelet keeps 50 MiB of the log. vramwarden's own sentences take at most half of this."""
MAX_REFERENCE_LENGTH: Final = 1024  # the name of an image or a user in a single message
MAX_WHOLE_GPUS_LENGTH: Final = (
    2048  # whole GPUs in an assignment list; the longest text has about 1,100
)

# Time and memory of one object's review.
MAX_SHOWN_FINDINGS: Final = (
    100  # in one message; a pod with 500 containers, or a file, may have 500
)
MAX_DEMAND_FINDINGS: Final = 16  # in one list of amounts
MAX_TEXT_LENGTH: Final = 16 * 1024
"""Maximum number of characters of all annotations that inject devices (sixteen GPUs take 400),
and of a container's command line and variables, any of which may set a memory limit."""
MAX_INJECTING_ANNOTATIONS: Final = 64  # annotations of a pod that inject devices
MAX_ARGUMENTS: Final = 256  # arguments or variables that are searched for program flags
MAX_FRACTIONS: Final = 32  # memory fractions per container that are judged
MAX_HINT_KEYS: Final = 4096  # keys of one map; nothing else limits the keys of a workload
MAX_COMPARED_KEYS: Final = 32  # keys whose similarity to vramwarden's is computed, which takes time
MAX_COMPARED_LENGTH: Final = 80  # characters of such a key
MAX_QUANTITY_LENGTH: Final = 256  # no honest quantity is longer; limits the time for hostile input
MAX_EXPONENT: Final = 40  # beyond it a value exceeds int64 or is below a billionth for all digits
MAX_DIGITS: Final = 19  # digits of an amount that Kubernetes can count
MAX_TEMPLATE_DEPTH: Final = 64  # levels of nesting; the deepest known template is at level 8
MAX_VALUES: Final = 2**20  # values in one object: ten times as many as the API server can store
MAX_TEMPLATES: Final = 1000  # templates in one object

# Maximum numbers of list items that are read from stored objects.
MAX_GPU_COUNT: Final = 9999  # maximum of the annotation `gpu-count`: four digits
MAX_ENTRIES: Final = 512  # conditions, containers and statuses of an object
MAX_OWNERS: Final = 64  # owners of a pod

# Accepted numbers and times.
MAX_INT32: Final = 2**31 - 1  # a count, a process ID, an amount in another product's unit
MAX_RUN_STOPS: Final = 1_000  # stops in one run
MAX_TIME_S: Final = 2**53  # the largest integer that is exact in JSON
MAX_DELAY_S: Final = 86_400.0  # delay of the sentry for a pod's cap
MAX_GRACE_S: Final = 3_600.0  # maximum time between SIGTERM and SIGKILL, as in policies
MAX_TIME_DIGITS: Final = 12  # digits of a time in seconds
