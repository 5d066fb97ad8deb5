"""Bounds on the size of policies, reviews and a node's files, each with its reason."""

from __future__ import annotations

from typing import Final

# Policy fields: the bounds catch typing errors and keep messages readable.
LONGEST_LINE: Final = 200  # characters of a title, which has to fit on one line of a message
LONGEST_HOST_PATH: Final = 4096  # PATH_MAX of Linux
MOST_CPU: Final = 1024  # more cores than any node has; catches sizes, as 64Mi is a number
LEAST_CPU_LIMIT: Final = "10m"  # the sidecar needs half a second of one core to start
LEAST_MEMORY: Final = 48 * 2**20  # the sidecar takes 18 MB without NVML; a probe can take as much

# Decoding: the bounds limit time and memory.
MOST_POLICY_BYTES: Final = 2**20  # bytes of a policy file; a ConfigMap cannot be larger
MOST_YAML_VALUES: Final = 20_000  # values of a policy file after aliases are expanded
DEEPEST_YAML: Final = 40  # nesting levels of a policy file
MOST_REVIEW_VALUES: Final = 2**18
"""Maximum number of values in a review. Decoding this many takes at most 32 MiB and 25 ms.
Without the bound, 8 MiB of `{"a":{}}` took 320 MiB and 560 ms, in a pod of 256 MiB. The
largest pod that the webhook judges has 8,192 variables and their managed fields. Its update
has 180,000 values."""

# Node: the bounds concern the probe port and files in /proc.
MOST_CONNECTIONS: Final = 32
"""Maximum number of open connections. If it is exceeded, the client address with the most
connections loses its oldest one. Probes are not affected, since they send their request
immediately."""
MAX_PROBE_BYTES: Final = 16 * 2**10  # bytes read of a probe's request, which has about 200
MOST_MOUNTS_BYTES: Final = 2**20
"""Maximum size of a process's mountinfo, in bytes. The enforcer has a few dozen mounts, but a
tenant can create any number of mounts in its own mount namespace."""
MOST_OF_NODE_BYTES: Final = 2**28
"""Maximum size of the node's mountinfo, in bytes: about 200 per volume, for at most 100,000
mounts (`fs.mount-max`)."""
LONGEST_MOUNT_BYTES: Final = 2**14  # bytes of a mountinfo line; the enforcer's are far shorter
