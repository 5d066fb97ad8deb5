"""Decisions about a node's GPUs, and the owners of its processes.

| module | content |
| --- | --- |
| access | device names for pods, and when only a new container restores access to the driver |
| autoscaling | node templates for autoscalers |
| cgroups | the pod and container of a process |
| events | reasons of Events |
| inventory | the GPUs over time, as scans change them |
| limiter_state | the file by which the limiter reports to the sentry |
| node_fields | labels, annotations and capacity of a Node |
| other_allocators | device plugins and DRA drivers that also allocate the GPUs |
| patches | patches of the Node |
| sharing | whether the GPUs are shared |
| state | desired state of the Node |

May import: `core.nvidia`, `core.pod` and `webhook.names`.
"""
