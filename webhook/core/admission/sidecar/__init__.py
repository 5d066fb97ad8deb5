"""The sidecar `vram-enforcer` as part of a pod: its container, user, profiles and injection.

The decisions of the program inside are in `core.enforcement`.
"""
