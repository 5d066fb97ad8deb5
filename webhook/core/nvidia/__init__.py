"""What is specific to NVIDIA: drivers, how its runtime is asked for GPUs, variables of programs.

A second vendor would be a room beside this one. May import: `core.pod` and `webhook.names`.
"""
