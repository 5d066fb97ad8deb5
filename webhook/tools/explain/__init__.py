"""The command `explain`: why a pod waits, was denied or stopped, or has its GPU."""
