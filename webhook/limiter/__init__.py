"""The limiter: has a node's driver hold pods to their caps, where the driver can (r615 or newer).

A program of its own, since setting a limit takes CAP_SYS_ADMIN of the node, which the sentry and
the agent do not have. It reads the node's list of who has which GPUs and knows nothing else of the
cluster; what it did is in a file for the sentry (`webhook.core.node.limiter_state`).

| API group | resource | verbs |
| --- | --- | --- |
| "" | configmaps, in the release's namespace | get, watch |

| thread | does |
| --- | --- |
| main | finds cgroups, sets and reads limits, writes the file |
| watcher | reports each change of the list of who has which of the node's GPUs |
| watchdog | ends the program where the driver has kept the main one waiting for a minute |

A pod is on the list before it is bound, and the kubelet makes its cgroup before its sandbox: so the
limit stands on the pod's cgroup before anything of it runs. What the driver does with it depends on
its back end, which is found by what a set on our own pod does to our container (`proof.py`):

| back end | a limit is | on the pod's cgroup | on each container's |
| --- | --- | --- | --- |
| misc | kept by the driver, by cgroup | soft and hard: the cap | ours where somebody set another |
| dmem | `dmem.max`, a file of the kernel | soft 0, hard the cap | the same, as it appears |

On misc the nearest cgroup with a limit counts, so a container's own replaces its pod's.
A limit is never made less and never taken away while its pod lives.

May import: `webhook.node_programs`, `webhook.adapters`, `webhook.core` and `webhook.names`.
"""
