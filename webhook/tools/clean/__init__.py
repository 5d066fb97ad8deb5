"""`vramwarden clean`: remove what an uninstalled release left in the cluster."""
