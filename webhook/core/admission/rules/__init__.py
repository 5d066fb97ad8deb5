"""The rules that a pod must meet: one free function each, a `Case` in, findings out.

`table`        which rules judge which pod, in the order of their findings
`case`         what they judge
`amounts`      the demand, bounds, classes, whole GPUs
`nodes`        where the pod may run
`isolation`    privileges, reserved names
`enforcement`  what the sidecar needs to do its work
`devices`      which GPUs a container sees
`translation`  what translation edits, and what it added
`changes`      what may not change after creation, and debugging containers
`keys`         keys that nothing reads: warnings, not findings

A rule's docstring says Rule, Fields, Allowed values.
"""
