"""What bounds a policy, a review and a node's files, and what each bound protects."""

from __future__ import annotations

from typing import Final

# A policy, beside its YAML: who writes it and who reads its messages.
LONGEST_LINE: Final = 200  # a title stands on one line of a message
LONGEST_HOST_PATH: Final = 4096  # Linux opens no longer path (PATH_MAX)
MOST_CPU: Final = 1024  # typing errors: more than a node has; a size such as 64Mi is a number, too
LEAST_CPU_LIMIT: Final = "10m"  # the sidecar, whose start takes half a second of a core
LEAST_MEMORY: Final = 48 * 2**20  # it takes 18 MB without NVML; a probe may be an interpreter more

# Bytes that become values: the time and the memory that decoding takes.
MOST_POLICY_BYTES: Final = 2**20  # a file: as much as a ConfigMap holds
MOST_YAML_VALUES: Final = 20_000  # of a file, aliases expanded
DEEPEST_YAML: Final = 40  # of its values
MOST_REVIEW_VALUES: Final = 2**18
"""Values in a review. Decoded, as many take 32 MiB and 25 ms at most, whatever they are; 8 MiB of
`{"a":{}}` took 320 MiB and 560 ms, in a pod of 256 MiB. The largest pod that is judged, with 8,192
variables and the fields that the API server records of each, comes to 180,000 on an update."""

# A node: the port for its probes, and the files of a process.
MOST_CONNECTIONS: Final = 32
"""For one more the oldest is closed, of the address with most: a probe sends its request at once,
so it is never the oldest for long, whatever others keep open."""
MAX_PROBE_BYTES: Final = 16 * 2**10  # a probe sends 200. What follows is not read
MOST_MOUNTS_BYTES: Final = 2**20
"""Of a process's mountinfo: the enforcer has a few dozen mounts, a tenant in a namespace of its own
as many as it likes."""
MOST_OF_NODE_BYTES: Final = 2**28
"""Of the node's mountinfo, some 200 for each volume; it has 100,000 mounts at most, by
`fs.mount-max`."""
LONGEST_MOUNT_BYTES: Final = 2**14  # of a line; the enforcer's are far shorter
