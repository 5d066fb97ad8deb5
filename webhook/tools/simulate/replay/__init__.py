"""Replays of a cluster's pods under a policy, for `vramwarden simulate`; pure, beside the core.

May import: `core.placement`, `core.today`, `core.pod` and `webhook.names`; nothing in production
imports it.
"""
