"""What `vramwarden explain` says: facts of one pod or workload in, a report out.

| module | |
| --- | --- |
| explain | begin here: which state a pod or a workload is in, and who explains that |
| waiting | a pod without a node |
| bound | a pod with a node: waits for a GPU, runs, was stopped, ended |
| plugins | a pod whose GPU NVIDIA's device plugin gives: a slice (MIG), a slot of time-slicing |
| untranslated | a pod that has no VRAM, though it may ask for some |
| room | which nodes have room, by our own `place`, and what would make some |
| eligible | which nodes the pod may run on, by what it selects |
| held | who holds a pod to its cap, and what the driver denied it |
| stops | what the pod's enforcer says it did; what it held, and the pods before it, in words |
| report | the facts and the report, values only |
"""
