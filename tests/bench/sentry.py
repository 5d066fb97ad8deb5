"""Cost of a running sentry for its node: the real program with the stub as driver."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.sentry import nodes
from tests.sentry.scenarios import uid_of
from tests.support.nvml_stub import build
from webhook.core.node.limiter_state import (
    STATE_FILE,
    LimiterState,
    PodLimitState,
    write_limiter_state,
)
from webhook.core.nvidia.drivers import Proof

SECONDS = float(os.environ.get("BENCH_SENTRY_SECONDS", "40"))
GIB = 2**30
USED = {"within the caps": 4 * GIB, "fuller than a cap": 40 * GIB}
"""Used bytes of each GPU. Below the smallest cap, no pod can exceed its cap, and process lists
are read every ten seconds instead of every second."""


def limited(folder):
    """Write the files of a limiter that limits all pods of the scenario; return the folder."""
    gpus = [f"GPU-{number:08}-2222-3333-4444-555555555555" for number in range(8)]
    held = (PodLimitState(uid_of(n + 1), gpus[n % 8], 8 * GIB, GIB, late=False) for n in range(32))
    proof = Proof(holds=True, back_end="misc")
    state = LimiterState(written_s=time.time(), started_s=1.0, proof=proof, limited=tuple(held))
    (folder / STATE_FILE).write_text(write_limiter_state(state))
    return folder


def bench_sentry():
    print()
    if reason := nodes.missing():
        print(f"the sentry: skipped: {reason}")
        return
    print("the sentry with 8 GPUs and 32 pods, 4 on each, which the driver holds and which idle")
    for title, used_bytes in USED.items():
        with tempfile.TemporaryDirectory(prefix="vramwarden-bench-") as name:
            folder = Path(name)
            (folder / "node").mkdir()
            library = build(folder / "library")
            with nodes.Api(folder) as api:
                options = [f"--limiter-folder={limited(folder)}"]
                sent = {"used": used_bytes, "for_s": SECONDS, "options": options}
                cost = nodes.play(folder / "node", library, api, "measured", **sent)
        print(
            f"  {title:<26}{cost['rss_kb'] / 1000:6.1f} MB resident"
            f"{cost['cpu_percent']:8.3f} % of a core{cost['looks_per_s']:8.2f} looks/s"
            f"{cost['look_ms']:8.2f} ms each{cost['cpu_per_look_ms']:8.2f} ms of CPU each"
        )


if __name__ == "__main__":
    bench_sentry()
