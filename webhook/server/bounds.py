"""Limits on the resources that the webhook's clients may use, including memory for stored state."""

from __future__ import annotations

from typing import Final

# Connections and memory of a replica. Any pod that reaches the port can use them.
MAX_CONNECTIONS: Final = 512  # all clients together
MAX_CONNECTIONS_PER_ADDRESS: Final = 128
"""Maximum number of connections from one untrusted address. An API server keeps up to 25 idle
connections (client-go). In a burst it calls the webhook for up to 200 changes at once
(`--max-mutating-requests-inflight`), which replicas share."""
MAX_TRUSTED_ADDRESSES: Final = 256  # a cluster has few API servers
MAX_LARGE_BYTES: Final = 24 * 2**20
"""Maximum memory for large bodies in flight. Clients beyond it are asked to retry.

One untrusted address gets at most a third, and all untrusted addresses together two thirds. Small
bodies are limited only by the number of connections.
"""
MAX_TIME_PER_ADDRESS: Final = 0.25
"""Part of each second in which reviews from one untrusted address may be judged.

A usual review takes 0.4 ms, and ten times as long on a node whose CPUs are all busy. An API server
that is not trusted yet therefore gets 600 or 60 responses per second, and some hundreds at once.
"""
MAX_BURST_PER_ADDRESS_S: Final = 1.0
MAX_TIME_OF_UNTRUSTED: Final = 0.5  # part of each second for all untrusted addresses together
MAX_BURST_OF_UNTRUSTED_S: Final = 0.5  # an API server waits 2 s for the response to a Binding
MAX_HEAD_BYTES: Final = 32 * 2**10  # head and chunk framing; an API server sends 300 bytes
MAX_HEADERS: Final = 100  # an API server sends six
MAX_CHUNKS: Final = 4096
"""Maximum number of chunks in a body of unknown length. An API server announces the length. One
chunk costs as much as 64 KiB in one piece."""
MAX_UNSENT_BYTES: Final = 64 * 2**10  # unread responses; beyond it no request is read
MAX_BODY_BYTES: Final = 8 * 2**20  # a review has two objects of at most 3 MiB each, and options
MAX_BINDING_BYTES: Final = 256 * 2**10  # mostly annotations, whose size the API server limits
MAX_BUFFERED_BYTES: Final = 64 * 2**20  # waiting Bindings; beyond it the scheduler has to retry
MAX_WAITING_BINDINGS: Final = 1024  # far more than kube-scheduler sends (by default 50 per second)

# Log lines. The kubelet keeps 50 MiB of a pod's log.
MAX_LINE_BYTES: Final = 16 * 2**10
MAX_ITEMS: Final = 16  # list items per log line
MAX_TRACE: Final = 4096  # characters of a traceback, of which the end is kept
MAX_WARNINGS: Final = 20  # warnings about a policy in one log line

# Memory for histories, and its distribution among namespaces.
MAX_QUEUED: Final = 10_000
"""Maximum number of terminating pods, of remembered ended pods, of ended pods in the queue, and
of workloads with runs to write."""
MAX_HISTORIES: Final = 4_096
"""Maximum number of histories in memory and in the API server, of at most 6 KiB each, in total
24 MiB. At the limit a new history replaces the oldest one of the namespace with the most
histories, if that has at least two more than the new history's namespace. Otherwise the new
history is not created."""
MAX_CACHED_ADVICE: Final = 1_024  # warnings
MAX_HISTORIES_PER_NAMESPACE: Final = 512
"""Each new pod name or label can start another history."""

# Writes to the API server.
MAX_WAITING_UPDATES: Final = 10
"""Maximum number of pending pods whose message is updated per `ANNOTATE_EVERY_S`. Each pod that
starts or ends on a full node changes the largest free amount, and therefore the message of
every pod that is pending there. The first message of a pod is written at once."""
