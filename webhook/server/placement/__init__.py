"""Placement at binding: reviews of Bindings, what is known of pods and nodes, who has which GPU.

`reviews` turns bytes into an answer; `binder` decides and enters what it decided before the API
server may go on; `tracker` follows pods and nodes; `tidying` takes out what no pod uses any more.
"""
