"""A node's GPUs over time, and what the node should show of them.

The node agent's thinking. May import: `core.nvidia`, `core.pod` and `webhook.names`.
"""
