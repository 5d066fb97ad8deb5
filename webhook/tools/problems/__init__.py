"""Problems of a cluster: pure functions from facts of a snapshot to `Problem`s.

`check` prints those of the installation and of nodes, `explain` those of a pod, `top` those of
GPUs, and `report` those of pods under the policy.
"""
