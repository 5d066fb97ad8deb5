"""The binding of a pod: which of a node's GPUs it gets, and the list of who has which.

May import: `core.policy`, `core.nvidia`, `core.pod` and `webhook.names`, `pods` also the bounds of
`core.enforcement`; it knows nothing of how a pod was admitted.
"""
