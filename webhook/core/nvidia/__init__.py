"""What is specific to NVIDIA: drivers, and how its container runtime is asked for GPUs.

A second vendor would be a room beside this one. May import: `core.pod` and `webhook.names`.
"""
