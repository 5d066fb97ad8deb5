"""The sentry: measures the GPU memory of pods from outside, and holds them to their caps.

The sidecar lives in its tenant's pod, often as the tenant's user. The sentry runs once per node in
a pod with `hostPID`. It makes the same judgement, for pods by Sidecar later than a healthy sidecar
would, and for pods by Sentry as their only enforcer. It knows pods from the node's list, which it
reads as the node agent does. It has no right to read pods, and no other than these:

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
| watcher | reports each change of the list of who has which of the node's GPUs |
| writer | writes Events and conditions, and waits for the API server as long as that takes |
| writer | writes the newest figures as the node's `GPUNode`, at most one each 15 s |
| stats | reads what sidecars say by the names of their processes |
| server | answers probes and shows metrics |

What the list has to say before anything follows from it:

| the list | a pod on it | a pod that is not on it |
| --- | --- | --- |
| was never read | | nothing: absent from the metrics |
| was read, and is followed | may be stopped | held memory is unmanaged, a minute later |
| was read, and cannot be followed now | may be stopped: pods only leave it as they end | nothing |

Who left the list and holds memory still, as after a deletion by force, may be stopped by its last
assignment until it holds none.

May import: `webhook.node_programs`, `webhook.adapters`, `webhook.core` and `webhook.names`.
"""
