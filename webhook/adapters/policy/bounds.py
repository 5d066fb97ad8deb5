"""What bounds a policy beside its YAML (`yaml_documents`), and what each bound is there for.

| bound | is there for |
| --- | --- |
| LABEL, SUBDOMAIN, KEY | Kubernetes: it takes no longer name, so no pod could have it |
| LINE, TEXT | messages: a title stands on one line of them, an image or a user's name in one |
| PATH | Linux, which opens no longer path (PATH_MAX) |
| MOST_GPUS | the demand of a pod, whose count has four digits |
| MOST_CPU | typing errors: more than a node has, and a size such as 64Mi is also a number |
| LEAST_CPU_LIMIT | the sidecar, whose start takes about half a second of a core |
| LEAST_MEMORY | the sidecar: 18 MB without NVIDIA's library; a probe may be an interpreter more |
| MOST_OBJECTS | the replicas, which read them all; together they have the bytes of one file |
| SHOWN_PROBLEMS | who reads what is wrong with a file |
| STATUS_PROBLEMS, STATUS_LETTERS | an object's status; its schema has the same bounds |
| COLUMN_LETTERS | the table that `kubectl get` prints |
"""

from __future__ import annotations

from typing import Final

from webhook.core.pod.quantity import MIB

LABEL: Final = 63
SUBDOMAIN: Final = 253
KEY: Final = SUBDOMAIN + 1 + LABEL
LINE: Final = 200
TEXT: Final = 1024
PATH: Final = 4096
MOST_GPUS: Final = 9999
MOST_CPU: Final = 1024
LEAST_CPU_LIMIT: Final = "10m"
LEAST_MEMORY: Final = 48 * MIB

MOST_OBJECTS: Final = 64
SHOWN_PROBLEMS: Final = 100
STATUS_PROBLEMS: Final = 20
STATUS_LETTERS: Final = 512
COLUMN_LETTERS: Final = 160
