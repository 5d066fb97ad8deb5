"""Policy files: read, checked with all problems at once, built into `core.policy` values.

May import: `core.policy`, `core.admission` (to run a policy's own examples), `core.pod`,
`core.enforcement.bounds` and `adapters.yaml_documents`.
"""
