"""NVIDIA's drivers, container runtime and device plugin, and environment variables of programs.

A second vendor would be a second package. May import: `core.pod` and `webhook.names`.
"""
