"""The pure core of vramwarden: values in, values out.

`make lint` checks the first two of four rules:

1. No code reads a file, a clock, an API, a GPU or the environment. Time and chance are arguments.
2. Only the pure parts of the standard library are imported, and jsonpatch in `pod.patch`.
3. Pods stay plain dicts, so that unknown fields survive. All other values are frozen.
4. A pod passed to a function is never changed: new dicts share the unchanged parts.
"""
