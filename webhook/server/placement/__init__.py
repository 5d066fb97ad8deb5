"""Placement at binding: reviews of Bindings, watched pods and nodes, and assignment lists.

`reviews` answers a review, and `binder` decides. `assignment_lists` plans and writes all queued
requests for a node (`node_queue`) at once. Bindings, `late_assigner`, `assignment_gc` and
`whole_gpu_answers` queue these requests. `maintenance` is the thread of the last two. `tracker`
follows pods and nodes.
"""
