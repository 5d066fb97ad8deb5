"""Placement at binding: reviews of Bindings, pods and nodes as watched, and assignment lists.

`reviews` answers a review; `binder` decides. `assignment_lists` plans and writes all requests that
are queued for a node (`node_queue`) at once: of bindings, of `late` assignment, of garbage
collection (`assignment_gc`) and of answers to node agents (`whole_gpu_answers`). `maintenance` is
the thread of the latter two. `tracker` follows pods and nodes.
"""
