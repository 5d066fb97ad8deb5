"""Problems of a cluster: pure functions that take facts of a snapshot and return `Problem`s.

`check` prints those of the installation and of nodes, `explain` those of a pod, `top` those of
GPUs, and `report` those of pods under the policy.
"""
