"""Where a set lies, and the decisions applied there: in a folder, or shared by replicas.

A folder is read and written here. What replicas share is reached through the protocol
`share.SharedCluster`, which somebody else fulfils. May import: `certs.rotation` and `certs.pki`.
"""
