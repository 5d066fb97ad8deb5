"""What several tools need: the one reader of nodes and pods, manifests, JSON and tables.

`facts`, `node` and `pod` do no I/O, so that each `judge` may import them.
"""
