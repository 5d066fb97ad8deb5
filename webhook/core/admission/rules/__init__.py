"""Rules that a pod must meet: one function each, from a `Case` to findings or warnings.

| module | content |
| --- | --- |
| `table` | the rules for each kind of pod, in the order of their findings |
| `case` | the input of the rules |
| `suggestions` | suggested amounts, and their bounds |
| `amounts` | the demand, bounds, classes, whole GPUs |
| `nodes` | nodes where the pod may run, resources of NVIDIA's device plugin |
| `isolation` | privileges, paths of the node, reserved names and annotations |
| `enforcement` | requirements of the sidecar and the sentry |
| `visible_devices` | variables and RuntimeClasses that show or hide GPUs |
| `device_injection` | annotations and mounts that show GPUs |
| `translation` | fields that translation writes |
| `changes` | updates of a stored pod, debugging containers |
| `hints` | warnings about keys that nothing of ours reads |
| `near_misses` | keys that are similar to ours |
| `programs` | warnings about programs that would take more than their share |
| `oversized_pods` | pods that are denied because they are too large to be judged |

The docstring of a rule has three labels: Rule, Fields, Allowed values.
"""
