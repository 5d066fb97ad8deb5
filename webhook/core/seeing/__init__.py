"""What people are shown: figures of nodes, histories of workloads, and what follows from both.

Values in, values out; who reads or writes them in the API server is elsewhere. From below:

| module or room | |
| --- | --- |
| words | amounts, times and counts, as people read them |
| nodes, node_writes | the figures of a node: the object `GPUNode`; when the sentry writes it |
| workloads | whose workload a pod is |
| histories | what its pods held: the object `VRAMHistory`, and the advice that follows |
| endings | a run of a history, read from a pod that ended |
| pods, top | a pod as a user sees it; `vramwarden top`: who holds what |
| explaining/ | `vramwarden explain`: why a pod waits, was denied, was stopped |
| checks/ | `vramwarden check`: what a cluster lacks, and the cure |

May import: every other room of `webhook.core`, and `webhook.names`.
"""
