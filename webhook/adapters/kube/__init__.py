"""The only access to the Kubernetes API: requests, lists in pages, and `follow`.

| module | |
| --- | --- |
| kubeconfig | finds the API server, and who asks it |
| client | one request, a list page by page, a watch |
| person | who asks, where a command is run: as whom, and for how long |
| reading | reads what the API server sends in bounded memory, whatever tenants have stored |
| follow | reports what exists and each change of it, forever: of a collection or one object |
| placement | what placement reads, writes and follows |
| node_watch | one object for long, as each node follows its own: itself, who has its GPUs |
| events | events of pods and nodes |
| fence | the ConfigMap with the fence's rules, which all replicas write |
| gpu_nodes | the GPUNode of one node, as its sentry writes it |
| histories | VRAMHistory objects |
| namespaces | labels of namespaces, for which rules ask |
| registration | our webhook configurations: where /bind is called, whose they are |
| certificates | what replicas share of their certificates, for `certs` |

Nothing but `client` and `kubeconfig` imports `kubernetes`, and only the former `urllib3`. May
import: `webhook.core`, `webhook.names` and `certs`.
"""
