"""Code shared by the programs of a node: agent, sentry and limiter.

They are separate programs, see webhook/decisions/05-two-daemonsets.md. May import:
`webhook.adapters`, `webhook.core` and `webhook.names`. The sidecar does not import it.
"""
