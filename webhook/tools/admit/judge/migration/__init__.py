"""Manifests of other products, rewritten to ask vramwarden: a pod template in, edits and notes out.

`rewrite.py` is where to start; `requests.py` reads what a pod asks a product for. What else is
known of the products is in `core.pod.other_products`.

May import: `core.policy`, `core.nvidia`, `core.pod`.
"""
