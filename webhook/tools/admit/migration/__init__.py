"""Manifests of other products, rewritten for vramwarden: from a pod template to edits and notes.

Start at `rewrite.py`; `requests.py` reads a pod's requests to a product. Other facts about the
products are in `core.pod.other_products`.

May import: `core.policy`, `core.nvidia`, `core.pod`.
"""
