"""A node's GPUs over time, what the node should show of them, and whose its processes are.

The sentry reads pods from cgroups (`cgroups`). The node agent's decisions: what a scan changes
(`inventory`), whether its GPUs are shared at all (`sharing`), which names they have for pods
(`access`), what the node should carry (`state`), how often it is patched, which reports of it are
old and how it loses its startup taint (`patching`), and when a driver needs a new container
(`driver`). May import: `core.nvidia`, `core.pod` and `webhook.names`.
"""
