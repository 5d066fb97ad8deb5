"""The enforcer: the program of the sidecar `vram-enforcer`.

It needs the standard library, `pynvml` and the few files of `webhook.core` and `webhook.adapters`
that it imports; nothing else of this project's dependencies is in its image.
"""
