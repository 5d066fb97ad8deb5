"""Policy files: read, checked with all problems at once, built into `core.policy` values.

May import: `core.policy`, `core.admission` (to run a policy's own examples), `core.pod`,
`core.nvidia`, `core.enforcement.parameters`, `webhook.names`, `adapters.bounds`
and `adapters.yaml_documents`.
"""
