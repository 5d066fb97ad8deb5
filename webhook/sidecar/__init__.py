"""The enforcer: the program of the sidecar `vram-enforcer`.

Its image has the standard library, `pynvml`, and only the few files of `webhook.core` and
`webhook.adapters` that it imports.
"""
