"""The most expensive reviews of each operation and phase, found by search: up to 64 KiB, and 3 MiB.

The search climbs by numbers of calls, which do not depend on the machine, and then times the
result. Each review meets a server with a new policy, so its patch is proven too.
"""

from __future__ import annotations

import os
import time
from operator import itemgetter
from random import Random

from tests.support.call_count import calls
from tests.support.random_reviews import OPERATIONS, answer, drawn, fitting
from webhook.core.admission.decision import Phase

TRIES = int(os.environ.get("BENCH_TRIES", "300"))
"""Number of tries per operation and phase; large reviews get a quarter."""
SIZES = {"64 KiB": (64 * 2**10, 1), "3 MiB": (3 * 2**20, 4)}


def climbed(random, operation, phase, most_bytes, tries):
    """Return calls, parts and body of the most expensive review found."""
    best = (0, {}, b"")

    def tried(parts):
        parts, body = fitting(random, operation, parts, most_bytes)
        return calls(answer(operation, phase, parts, body)), parts, body

    for number in range(tries):
        # A tenth of the tries start from scratch, so that the search leaves local maxima.
        before, most = ({}, 12) if number < tries // 10 else (best[1], 4)
        best = max(best, tried(drawn(random, before, most)), key=itemgetter(0))
    least = best[0] * 0.98
    for name in [*best[1]]:
        fewer = tried({item: value for item, value in best[1].items() if item != name})
        if fewer[0] >= least:  # this part does not add to the cost
            best = fewer
    return best


def bench_worst():
    print("the costliest reviews that were found, CPU in ms, the least of 5")
    print(f"  {'':<8}{'':<18}{'ms':>8}{'calls':>11}{'KiB':>7}  made of")
    for size, (most_bytes, fewer) in SIZES.items():
        for operation in OPERATIONS:
            for phase in Phase if operation != "bind" else [Phase.MUTATE]:
                random = Random(f"{size} {operation} {phase.value}")
                found = climbed(random, operation, phase, most_bytes, TRIES // fewer)
                count, parts, body = found
                taken_s = []
                for _ in range(5):
                    began_s = time.process_time()
                    answer(operation, phase, parts, body)()
                    taken_s.append(time.process_time() - began_s)
                title = operation if operation == "bind" else f"{operation} {phase.value}"
                ms, kib = min(taken_s) * 1e3, len(body) / 2**10
                print(f"  {size:<8}{title:<18}{ms:8.1f}{count:11,}{kib:7.0f}  {parts}", flush=True)
