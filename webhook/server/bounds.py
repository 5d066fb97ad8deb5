"""Limits on what callers of the webhook may use, and on the memory that they leave behind."""

from __future__ import annotations

from typing import Final

# Connections and the memory of a replica; any pod that reaches the port can use them.
MAX_CONNECTIONS: Final = 512  # of all callers together
MAX_CONNECTIONS_PER_ADDRESS: Final = 128
"""Limit for an address that is not trusted. An API server keeps up to 25 idle connections
(client-go). In a burst it calls the webhook for up to 200 changes at once
(`--max-mutating-requests-inflight`), which replicas share."""
MAX_TRUSTED_ADDRESSES: Final = 256  # a cluster has few API servers
MAX_LARGE_BYTES: Final = 24 * 2**20
"""Memory for large bodies that are received or answered; callers beyond it are asked to retry.

One address that is not trusted gets at most a third of it, all of those together two thirds. Small
bodies are limited by the number of connections only.
"""
MAX_TIME_PER_ADDRESS: Final = 0.25
"""Part of each second in which reviews from one untrusted address may be judged.

A usual review takes 0.4 ms, and ten times as long on a node whose CPUs are all busy. An API server
that is not known yet therefore gets 600 or 60 answers per second, and some hundreds at once.
"""
MAX_BURST_PER_ADDRESS_S: Final = 1.0
MAX_TIME_OF_UNTRUSTED: Final = 0.5  # part of each second for all untrusted addresses together
MAX_BURST_OF_UNTRUSTED_S: Final = 0.5  # an API server waits 2 s for the answer to a Binding
MAX_HEAD_BYTES: Final = 32 * 2**10  # head and framing of chunks; an API server sends 300
MAX_HEADERS: Final = 100  # an API server sends six
MAX_CHUNKS: Final = 4096
"""Limit for a body of unknown length; an API server announces the length. One chunk costs the same
as 64 KiB in one piece."""
MAX_UNSENT_BYTES: Final = 64 * 2**10  # answers that the caller has not read; stops reading requests
MAX_BODY_BYTES: Final = 8 * 2**20  # a review has two objects, of 3 MiB at most each, and options
MAX_BINDING_BYTES: Final = 256 * 2**10  # mostly annotations, whose size the API server limits
MAX_BUFFERED_BYTES: Final = 64 * 2**20  # of waiting Bindings; beyond it the scheduler has to retry
MAX_WAITING_BINDINGS: Final = 1024  # far more than kube-scheduler sends (by default 50 a second)

# The log; the kubelet keeps 50 MiB of it.
MAX_LINE_BYTES: Final = 16 * 2**10
MAX_ITEMS: Final = 16  # of a list in a line
MAX_TRACE: Final = 4096  # characters of a traceback, its end
MAX_WARNINGS: Final = 20  # about a policy, in one line

# Memory for histories, and its distribution among namespaces.
MAX_QUEUED: Final = 10_000
"""Maximum number of: terminating pods, ended pods that are remembered, ends that wait for the
thread, and workloads with runs that wait to be written."""
MAX_HISTORIES: Final = 4_096
"""Number of histories in memory and in the API server. One takes at most 6 KiB, all together 24
MiB. Beyond it a new history replaces the oldest one of the namespace that has most, if that has at
least two more than the new one's namespace. Otherwise the new one is not started."""
MAX_CACHED_ADVICE: Final = 1_024  # sentences
MAX_HISTORIES_PER_NAMESPACE: Final = 512
"""A new name or label of a pod can start another history."""

# Writes to the API server.
MAX_WAITING_UPDATES: Final = 10
"""Number of waiting pods whose message is updated per `ANNOTATE_EVERY_S`. Each pod that starts or
ends on a full node changes the largest free amount, and with it the message of all pods that wait
there. If more pods wait, each is updated less often. The first message is written at once."""
