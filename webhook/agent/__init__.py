"""The node agent: advertises on its node the GPUs that NVML reports, and reconciles it.

It reads NVML, its own node and who has its GPUs, and patches that node: capacity and allocatable
`vramwarden.io/vram`, the labels and the annotation of `webhook.names`. In a cluster it runs on each
GPU node, with the driver's library (`NVIDIA_DRIVER_CAPABILITIES=utility`), `NODE_NAME` from
`spec.nodeName`, and these rights. RBAC cannot narrow them to the agent's own node; an admission
policy can, by `authentication.kubernetes.io/node-name` in the extra fields of the user (KEP-4193).

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
| main | observes scans, reconciles the node with the inventory, beats; never asks a driver |
| scanner | opens NVML, scans, closes: an open NVML keeps the node's driver from being replaced |
| watcher | reports each change of the node |
| watcher | reports each change of the list of who has which of its GPUs |
| watcher | reports each change of the ResourceSlices of its node |
| watcher | reports each change of the node's `GPUNode` |
| writer | writes Events of the node, so that nobody waits for them |

A node whose GPUs somebody else gives away is not shared; see `core.node.sharing`. Which pods have
whole GPUs there the webhook's replicas say, whom the agent asks by a label of the node: it may not
read pods.

The largest free amount is advice for the scheduler (preferred node affinity), never a limit: what
is free is decided by the webhook. So it is shown in steps and at most each ten seconds, and where
that list cannot be read, the label stays as it is.
"""
