"""Placement at binding: reviews of Bindings, the known pods and nodes, who has which GPU.

`reviews` turns bytes into an answer; `binder` decides, and records its decision before the API
server may go on; `tracker` follows pods and nodes; `tidying` removes entries no pod needs any more.
"""
