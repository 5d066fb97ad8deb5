"""What agent, sentry and limiter share: programs for the GPUs of their node.

They stay programs of their own (webhook/decisions/05-two-daemonsets.md). May import:
`webhook.adapters`, `webhook.core` and `webhook.names`; the sidecar does not import it.
"""
