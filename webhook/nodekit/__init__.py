"""What the node agent and the sentry share: programs for the GPUs of their node.

They stay two programs (webhook/decisions/05-two-daemonsets.md). May import: `webhook.adapters`,
`webhook.core` and `webhook.names`; the sidecar does not import it.
"""
