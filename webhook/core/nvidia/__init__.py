"""What is specific to NVIDIA: drivers, and the variables of its container runtime.

A second vendor would be a room beside this one. May import: `core.pod` and `webhook.names`.
"""
