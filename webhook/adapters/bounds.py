"""Bounds of policies, reviews and a node's files, and the purpose of each."""

from __future__ import annotations

from typing import Final

# Policy fields: protect authors from typing errors, and keep messages readable.
LONGEST_LINE: Final = 200  # characters of a title, which is part of one line of a message
LONGEST_HOST_PATH: Final = 4096  # PATH_MAX of Linux
MOST_CPU: Final = 1024  # more than a node has; catches sizes such as 64Mi, which is a number, too
LEAST_CPU_LIMIT: Final = "10m"  # the sidecar's start takes half a second of a core
LEAST_MEMORY: Final = 48 * 2**20  # the sidecar takes 18 MB without NVML; a probe may take as much

# Decoding: limits time and memory.
MOST_POLICY_BYTES: Final = 2**20  # bytes of a policy file; the size limit of a ConfigMap
MOST_YAML_VALUES: Final = 20_000  # values of a policy file, aliases expanded
DEEPEST_YAML: Final = 40  # nesting levels of a policy file
MOST_REVIEW_VALUES: Final = 2**18
"""Maximum number of values in a review. Decoded they take at most 32 MiB and 25 ms. Without the
bound, 8 MiB of `{"a":{}}` took 320 MiB and 560 ms, in a pod of 256 MiB. The largest pod that is
judged, with 8,192 variables and their managed fields, has 180,000 values in an update."""

# Node: the port for probes, and files in /proc.
MOST_CONNECTIONS: Final = 32
"""Maximum number of open connections. Beyond it, the oldest connection of the address with the most
is closed. A probe sends its request immediately, so it is never the oldest for long."""
MAX_PROBE_BYTES: Final = 16 * 2**10  # bytes read of a probe's request, which has about 200
MOST_MOUNTS_BYTES: Final = 2**20
"""Maximum size of a process's mountinfo. The enforcer has a few dozen mounts, but a tenant can make
any number of them in its own mount namespace."""
MOST_OF_NODE_BYTES: Final = 2**28
"""Maximum size of the node's mountinfo: about 200 bytes for each volume, and at most 100,000 mounts
(`fs.mount-max`)."""
LONGEST_MOUNT_BYTES: Final = 2**14  # bytes of a line; the enforcer's are far shorter
