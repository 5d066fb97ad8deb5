"""Placement at binding: reviews of Bindings, the known pods and nodes, who has which GPU.

`reviews` turns bytes into an answer; `binder` decides, and records its decision before the API
server may go on, for all at once who stand in the same of its `lines`; `tracker` follows pods and
nodes; `late` gives GPUs to pods that were bound without us; `tidying` removes entries no pod needs
any more.
"""
