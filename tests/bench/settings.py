"""Settings of a run, from environment variables; see README.md."""

from __future__ import annotations

import os

ONLY = os.environ.get("BENCH_ONLY", "").replace(",", " ").split()
# The commit before reviews became faster: the baseline until a release is tagged.
BASELINE = os.environ.get("BENCH_BASELINE", "a3f7560")
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "11"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "0.6"))
PODS = int(os.environ.get("BENCH_PODS", "40"))
CHART, ATTRIBUTE = os.environ.get("BENCH_CHART"), os.environ.get("BENCH_ATTRIBUTE")
CORES = sorted(os.sched_getaffinity(0))
