"""Migration of other products' manifests: turns a pod template into edits and notes.

Start at `rewrite.py`; `requests.py` parses a product's requests. Other facts about the
products are in `core.pod.other_products`.

May import: `core.policy`, `core.nvidia`, `core.pod`.
"""
