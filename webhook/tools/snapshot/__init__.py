"""What a command knows of a cluster, read with the user's own rights."""
