"""Problems of a cluster: pure functions from what a snapshot holds to `Problem`.

`check` prints those of the installation and of nodes, `explain` those of a pod and what it depends
on, `top` those of GPUs, `report` those of pods under the policy.
"""
