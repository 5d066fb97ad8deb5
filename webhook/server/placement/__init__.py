"""Placement at binding: reviews of Bindings, the known pods and nodes, who has which GPU.

`reviews` turns bytes into an answer; `binder` decides, and records its decision before the API
server may go on, for all at once who wait for the same node (`node_queue`); `tracker` follows pods
and nodes; `late` gives GPUs to pods that were bound without us; `tidying` removes entries no pod
needs any more.
"""
