"""The command `explain`: why a pod waits, was denied or stopped, or has the GPU that it has."""
