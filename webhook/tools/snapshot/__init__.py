"""Facts of a cluster, read with the user's own permissions."""
