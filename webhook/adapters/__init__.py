"""Outside things, one in each room: what reads and writes, so that the core need not.

`kube`         the API server: the only door to it
`policy`       policy files: YAML in, a policy or all its problems out
`nvml`         the driver, through pynvml
`surroundings`  what the self-test may believe here: namespaces, permission, kernel
`review_json`  the JSON of AdmissionReviews
`node_processes`  the processes of a node's pods: whose they are, and how to stop one
`yaml_documents`  bounded YAML with line numbers, for policies and manifests
`processes`    processes and their cgroups, through /proc and pidfds
`journal`      one JSON line per event, and once what stays as it is
`plain_port`   the port for probes and metrics, which every pod may reach

An adapter may import the core, and no other adapter but the last four; `kube` may import `certs`.
"""
