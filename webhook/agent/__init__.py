"""The node agent: advertises the GPUs that NVML reports on its node, and keeps the node up to date.

The agent reads NVML, its own node and the node's assignment list. It patches that node: capacity
and allocatable `vramwarden.io/vram`, and the labels and annotations of `webhook.names`. In a
cluster it runs on each GPU node with the driver's library (`NVIDIA_DRIVER_CAPABILITIES=utility`),
`NODE_NAME` from `spec.nodeName`, and the permissions below. RBAC cannot restrict them to the
agent's own node. An admission policy can do so by the key `authentication.kubernetes.io/node-name`
in the user's extra fields (KEP-4193).

| API group | resource | verbs |
| --- | --- | --- |
| "" | nodes | get, watch, patch |
| "" | nodes/status | patch |
| resource.k8s.io | resourceslices | list, watch |
| vramwarden.io | gpunodes | get, watch |
| events.k8s.io | events, in the namespace `default` | create, patch |
| "" | configmaps, in the release's namespace | get, watch |

| thread | does |
| --- | --- |
| main | applies reports, patches the node, writes the heartbeat; never calls the driver |
| scanner | opens NVML, scans, closes: an open NVML keeps the node's driver from being replaced |
| watcher | reports each change of the node |
| watcher | reports each change of the node's assignments |
| watcher | reports each change of the node's ResourceSlices |
| watcher | reports each change of the node's `GPUNode` |
| writer | writes Events of the node, so that no other thread waits for them |

A node whose GPUs have another allocator is not shared; see `core.node.sharing`. The agent has no
permission to read pods. It sets a label of the node to ask the webhook for pods with whole GPUs.

The largest free amount is a hint for the scheduler (preferred node affinity), never a limit: the
webhook decides about free memory. The label changes in steps, at most every ten seconds, and stays
unchanged while the assignment list cannot be read.
"""
