"""Placement at binding: reviews of Bindings, watched pods and nodes, and assignment lists.

`reviews` answers a review; `binder` decides. `assignment_lists` plans and writes all requests that
are queued for a node (`node_queue`) at once. They are from bindings, `late_assigner`,
`assignment_gc` and `whole_gpu_answers`. `maintenance` is the thread of the latter two. `tracker`
follows pods and nodes.
"""
