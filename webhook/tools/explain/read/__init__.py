"""Reads what `vramwarden explain` goes by, with the user's own rights.

What may not be read is left out and said. Only the pod, or the workload, has to be readable.
"""
