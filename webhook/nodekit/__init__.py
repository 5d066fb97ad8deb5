"""What the node agent and the sentry share: programs for the GPUs of their node.

Their accounts, rights and DaemonSets stay two: the agent may patch nodes and sees no process of
others, the sentry sees all of them and may patch nothing of nodes. May import: `webhook.adapters`,
`webhook.core` and `webhook.names`; the sidecar does not import it.
"""
