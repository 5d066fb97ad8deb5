"""The server, whose judgement of a pod takes the seconds that the pod says; run as `python -m`."""

from __future__ import annotations

import time

from webhook.cli.main import main
from webhook.server import reviews

SECONDS = "seconds"
"""The annotation that says how long."""


def slow(request, policy, cluster, phase):
    """Keep the interpreter busy, as a rule with a bad bound would."""
    end = time.monotonic() + float(request.obj["metadata"].get("annotations", {}).get(SECONDS, 0))
    while time.monotonic() < end:
        sum(range(1000))
    return _decide(request, policy, cluster, phase)


_decide = reviews.decide

if __name__ == "__main__":
    reviews.decide = slow
    main()
