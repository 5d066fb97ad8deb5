"""Placement: the choice of a node's GPUs at binding, and the node's assignment list.

May import `core.policy`, `core.nvidia`, `core.pod` and `webhook.names`; `cap_terms` also imports
the bounds of `core.enforcement`. Placement does not depend on admission.
"""
