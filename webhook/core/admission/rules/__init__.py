"""The rules that a pod must meet: one free function each, a pod in, findings out.

`amounts`    bounds, classes, whole GPUs
`nodes`      where the pod may run
`isolation`  process namespace, privileges, reserved names
`devices`    which GPUs a container sees
`changes`    what may not change after creation, and debugging containers
`keys`       keys that nothing reads: sentences, not findings

A rule's docstring says Rule, Fields, Allowed values. `core/admission/validation.py` puts them
together.
"""
