"""A server with slow decisions, whose duration is a pod annotation; run with `python -m`."""

from __future__ import annotations

import time

from webhook.cli.main import main
from webhook.server import reviews

SECONDS = "seconds"
"""Annotation with the duration of the decision, in seconds."""


def slow(request, policy, cluster, phase):
    """Keep the interpreter busy, like a rule without a good limit."""
    end = time.monotonic() + float(request.obj["metadata"].get("annotations", {}).get(SECONDS, 0))
    while time.monotonic() < end:
        sum(range(1000))
    return _decide(request, policy, cluster, phase)


_decide = reviews.decide

if __name__ == "__main__":
    reviews.decide = slow
    main()
