"""The desired state of a set, and of the caBundles that go with it: pure decisions.

`rotate.advance` decides for the only owner of a set, `replica.due` for one of several that share
it. May import: `certs.pki`; `certs.stores`, of which it knows nothing, carries
its decisions out.
"""
