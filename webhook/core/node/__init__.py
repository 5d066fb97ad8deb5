"""A node's GPUs over time, what the node should show of them, and whose its processes are.

The sentry reads pods from cgroups (`cgroups`). The node agent's decisions: what a scan changes
(`inventory`), whether its GPUs are shared at all (`sharing`), which names they have for pods
(`access`), what the node should carry (`state`) and which taint it should lose (`taints`), which
reports of it are old (`echo`), how often it is patched (`allowance`), and when a driver needs a new
container (`driver`). May import: `core.nvidia`, `core.pod` and `webhook.names`.
"""
