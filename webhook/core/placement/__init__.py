"""Placement: which GPUs of a node a pod gets when it is bound, and the node's assignment list.

May import `core.policy`, `core.nvidia`, `core.pod` and `webhook.names`; `cap_terms` also imports
the bounds of `core.enforcement`. It does not depend on admission.
"""
