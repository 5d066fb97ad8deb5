"""The sentry: measures the GPU memory of pods from outside the pods, and enforces their caps.

A sidecar runs in its tenant's pod, often as the tenant's user. The sentry runs once per node, in a
pod with `hostPID`, and applies the same rules. It stops pods by Sidecar later than a healthy
sidecar would. For pods by Sentry it is the only enforcer. It finds pods in the node's assignment
list and cannot read them from the API. Its permissions are:

| API group | resource | verbs |
| --- | --- | --- |
| "" | configmaps, in the release's namespace | get, watch |
| "" | nodes | get |
| "" | pods/status | patch |
| events.k8s.io | events | create, patch |
| vramwarden.io | gpunodes | get, create, patch |

| thread | does |
| --- | --- |
| main | scans, judges, stops, reports, reads the limiter's file; never waits for the API server |
| watcher | reports each change of the assignment list |
| writer | writes Events and conditions, and waits for the API server |
| writer | writes the newest figures as the node's `GPUNode`, at most once in 15 s |
| reports | reads the reports of sidecars: the names of their processes |
| server | answers probes and serves metrics |

Effect of the assignment list:

| the list | a pod on the list | a pod that is not on the list |
| --- | --- | --- |
| was never read | | none: absent from the metrics |
| was read, and its changes are reported | may be stopped | its memory is unmanaged after a minute |
| was read, and cannot be watched now | may be stopped: only ended pods leave the list | none |

A pod that left the list and still holds memory, for example after a forced deletion, may be stopped
by its last assignment until it holds none.

May import: `webhook.node_programs`, `webhook.adapters`, `webhook.core` and `webhook.names`.
"""
