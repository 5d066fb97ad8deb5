"""NVIDIA's drivers, container runtime, device plugin, and the variables that programs read.

A second vendor would be a second package. May import: `core.pod` and `webhook.names`.
"""
