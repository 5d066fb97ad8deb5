"""A node's GPUs over time, and what the node should show of them.

The node agent's decisions: what a scan changes (`inventory`), what the node should carry (`state`),
which reports of it are old (`echo`), how often it is patched (`allowance`), when a driver needs a
new container (`driver`), and which names its GPUs have for pods (`access`). May import:
`core.nvidia`, `core.pod` and `webhook.names`.
"""
