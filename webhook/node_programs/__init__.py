"""Code that the programs of a node share: agent, sentry and limiter.

webhook/decisions/05-two-daemonsets.md explains why the programs are separate. May import:
`webhook.adapters`, `webhook.core` and `webhook.names`. The sidecar does not import this package.
"""
