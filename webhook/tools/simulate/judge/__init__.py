"""A cluster before vramwarden: what its pods ask of GPUs, and what others say of its nodes' GPUs.

`simulate --today` and the replays behind it read this. Sources are named in each file, by the paths
of the product's own repository.

May import: `core.nvidia`, `core.pod`.
"""
