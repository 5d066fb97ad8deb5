"""The rules that a pod must meet: one free function each, a `Case` in, findings out.

`table`        which rules judge which pod, in the order of their findings
`case`         what they judge
`amounts`      the demand, bounds, classes, whole GPUs
`plugin`       slices and slots of NVIDIA's device plugin
`nodes`        where the pod may run
`isolation`    privileges, paths of the node, reserved names and marks
`enforcement`  needs of the sidecar and the sentry, to stop what exceeds a cap
`devices`      which GPUs a container sees by its variables
`injection`    the other ways by which a container is shown GPUs: annotations, mounts
`translation`  what translation edits, and what it added
`changes`      what may not change after creation, and debugging containers
`hints`        names that nothing of ours reads: warnings, not findings
`programs`     programs that would take more than their share: warnings, not findings
`visibility`   fields that hide a pod's own GPU: warnings, not findings
`suggestions`  bounds on what a pod asks for, and the amounts that messages suggest
`complexity`   which of the pods that are too large to be judged are denied

A rule's docstring says Rule, Fields, Allowed values.
"""
