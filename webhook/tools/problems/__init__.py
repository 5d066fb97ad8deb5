"""Problems of a cluster: pure functions from facts of a snapshot to `Problem`s.

`check` prints problems of the installation and of nodes, `explain` of a pod, `top` of GPUs, and
`report` of pods under the policy.
"""
