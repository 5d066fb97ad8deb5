"""What bounds callers of the webhook and what they leave in its memory, and why."""

from __future__ import annotations

from typing import Final

# Connections and the memory of a replica, from whoever reaches its port.
MAX_CONNECTIONS: Final = 512  # of all callers
MAX_PER_ADDRESS: Final = 128
"""Of one that is not trusted. An API server keeps up to 25 idle (client-go); in a burst it calls us
for up to 200 changes at once (`--max-mutating-requests-inflight`), which replicas share."""
MAX_TRUSTED: Final = 256  # addresses that are trusted; a cluster has few API servers
MAX_LARGE_BYTES: Final = 24 * 2**20
"""Of large bodies that are being received or answered; callers beyond that are asked to retry.

A third of it is the most of an address that is not trusted, two thirds of all of those. Small
bodies are bounded by the number of connections, and always pass.
"""
MAX_TIME_OF_ADDRESS: Final = 0.25
"""Part of each second in which reviews from one untrusted address may be judged.

A usual review takes 0.4 ms, and ten times as long on a node whose CPUs are all busy: an API server
that is not known yet gets 600 or 60 answers a second, and some hundreds at once.
"""
MAX_AT_ONCE_OF_ADDRESS_S: Final = 1.0
MAX_TIME_OF_UNTRUSTED: Final = 0.5  # part of each second for all untrusted addresses together
MAX_AT_ONCE_OF_UNTRUSTED_S: Final = 0.5  # an API server waits 2 s for the answer to a Binding
MAX_HEAD_BYTES: Final = 32 * 2**10  # all but the body, chunks' framing too; an API server sends 300
MAX_HEADERS: Final = 100  # an API server sends six
MAX_CHUNKS: Final = 4096
"""Of a body whose length is not announced, as an API server announces it: each costs as much as
64 KiB in one piece would."""
MAX_UNSENT_BYTES: Final = 64 * 2**10  # of answers not read, before we read no further request
MAX_BODY_BYTES: Final = 8 * 2**20  # a review has two objects, of 3 MiB at most each, and options
MAX_BINDING_BYTES: Final = 256 * 2**10  # mostly annotations, which the API server bounds so
MAX_BUFFERED_BYTES: Final = 64 * 2**20  # of Bindings waiting; beyond, the scheduler is to retry
MAX_WAITING_BINDINGS: Final = 1024  # far more than kube-scheduler sends (by default 50 a second)

# The log, of which the kubelet keeps 50 MiB.
MAX_LINE_BYTES: Final = 16 * 2**10  # of a line
MAX_ITEMS: Final = 16  # of a list in it
MAX_TRACE: Final = 4096  # characters of a traceback, its last
MOST_WARNINGS: Final = 20  # of a policy, in one line

# The memory of histories, and who shares it.
MOST_HELD: Final = 10_000
"""Of each: pods about to end, pods whose end was heard, ends that wait for the thread, workloads
whose runs wait to be written."""
MOST_KNOWN: Final = 4_096
"""Number of histories in memory and in the API server, each of at most some 6 KiB: 24 MiB. Beyond
it a new one takes the place of the oldest of the namespace that has most, if that has at least two
more than the new one's namespace. Otherwise it is not begun."""
MOST_SAID: Final = 1_024  # sentences that are remembered, each with its history
MOST_OF_NAMESPACE: Final = 512
"""Number of histories of a namespace, in which each name or label of a pod can make one."""

# The API server, which we ask and tell.
MOST_TOLD: Final = 10
"""So many pods are told so within `TELL_EVERY_S`: each pod that starts or ends on a full node
changes the largest free amount, and so what all say who wait there. Where more wait they are told
less often; the first time each is told at once."""
