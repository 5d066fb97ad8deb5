"""The sidecar `vram-enforcer` as part of a pod: container, user, profiles, recognition.

`core.enforcement` holds what the program inside decides. May import what `core.admission` may.
"""
