"""Views of a pod's JSON that need no policy. Only `patch` imports jsonpatch."""
