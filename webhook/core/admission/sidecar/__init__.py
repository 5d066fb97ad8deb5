"""The sidecar `vram-enforcer` in a pod: its container, user, profiles and injection.

The sidecar program's decisions are in `core.enforcement`.
"""
