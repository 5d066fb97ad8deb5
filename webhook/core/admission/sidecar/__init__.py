"""The sidecar `vram-enforcer` as part of a pod: container, user, profiles, recognition.

What the program inside decides is in `core.enforcement`. May import what `core.admission` may.
"""
