"""The review of a pod: from a request and a policy to a decision.

`decide` reads the demand, lets the rules of `rules/table.py` judge, translates a copy and derives
the patch; the webhook, the command `admit` and the examples of policies all call it. May import:
`core.policy`, `core.nvidia`, `core.pod` and `webhook.names`; it knows nothing of nodes, bindings or
what the enforcer decides.
"""
