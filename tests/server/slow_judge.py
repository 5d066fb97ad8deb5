"""The server, whose judgement of large reviews takes long; run as `python -m`."""

from __future__ import annotations

import time

from webhook.cli.main import main
from webhook.server import reviews

SLOW_S = 3.0


def slow(request, policy, cluster, phase):
    """Keep the interpreter busy, as a rule with a bad bound would."""
    if "note" in request.obj["metadata"].get("annotations", {}):
        end = time.monotonic() + SLOW_S
        while time.monotonic() < end:
            sum(range(1000))
    return _decide(request, policy, cluster, phase)


_decide = reviews.decide

if __name__ == "__main__":
    reviews.decide = slow
    main()
