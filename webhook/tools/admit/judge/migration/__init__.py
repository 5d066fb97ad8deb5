"""Manifests of other products, rewritten to ask vramwarden: a pod template in, edits and notes out.

`rewrite.py` is where to start; each product has a file, and `products.py` is the table of them.
Sources are named in each file, by the paths of the product's own repository.

May import: `core.policy`, `core.nvidia`, `core.pod`.
"""
