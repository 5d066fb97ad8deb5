"""What a set, and the caBundles that go with it, should become: pure decisions.

`rotate.advance` decides for whoever owns a set, `replica.due` for one of several that share it. May
import: `certs.pki` and `certs.errors`; what it decides is carried out by `certs.stores`, of which
it knows nothing.
"""
