"""The limiter: makes the node's driver enforce the caps of pods, on drivers from r615 on.

It is a separate program, since setting a limit needs CAP_SYS_ADMIN of the node, which neither the
sentry nor the agent has. From the cluster it reads only the node's assignment list. It reports to
the sentry by a file (`webhook.core.node.limiter_state`).

| API group | resource | verbs |
| --- | --- | --- |
| "" | configmaps, in the release's namespace | get, watch |

| thread | does |
| --- | --- |
| main | finds cgroups, sets and reads limits, writes the file |
| watcher | reports each change of the assignment list |
| watchdog | ends the program if a call of the driver has not returned for a minute |

A pod is on the list before it is bound, and the kubelet creates the pod's cgroup before its
sandbox. Therefore the cgroup has its limit before a process of the pod runs. The effect depends on
the driver's back end, which is detected by setting a limit on the limiter's own pod (`prove`):

| back end | a limit is | on the pod's cgroup | on a container's cgroup |
| --- | --- | --- | --- |
| misc | stored by the driver | soft and hard: the cap | the cap, if it has another limit |
| dmem | `dmem.max`, a file of the kernel | soft 0, hard the cap | the same, once it exists |

On misc the nearest cgroup with a limit counts, so a container's limit overrides its pod's limit. A
limit is never lowered and never removed while its pod exists.

May import: `webhook.node_programs`, `webhook.adapters`, `webhook.core` and `webhook.names`.
"""
