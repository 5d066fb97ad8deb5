"""What several tools need: reading a cluster and manifests."""
