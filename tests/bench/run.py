"""`make bench`: all tables, or those of BENCH_ONLY."""

from __future__ import annotations

import argparse
import sys

from tests.bench import settings
from tests.bench.attacks import bench_attacks
from tests.bench.creations import bench_creations
from tests.bench.decisions import bench_decisions
from tests.bench.enforcer import bench_enforcer
from tests.bench.lists import bench_lists
from tests.bench.orders import bench_orders
from tests.bench.over_tls import bench_over_tls
from tests.bench.placement import bench_placement
from tests.bench.replicas import bench_replicas
from tests.bench.sentry import bench_sentry
from tests.bench.strangers import bench_strangers
from tests.bench.top import bench_top
from tests.bench.worst import bench_worst

TABLES = {
    "decide": bench_decisions,
    "tls": bench_over_tls,
    "create": bench_creations,
    "strangers": bench_strangers,
    "replica": bench_replicas,
    "attacks": bench_attacks,
    "worst": bench_worst,
    "lists": bench_lists,
    "top": bench_top,
    "placement": bench_placement,
    "orders": bench_orders,
    "enforcer": bench_enforcer,
    "sentry": bench_sentry,
}


def main():
    unknown = set(settings.ONLY) - TABLES.keys()
    if unknown:
        sys.exit(
            f"BENCH_ONLY: no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}"
        )
    for name, table in TABLES.items():
        if not settings.ONLY or name in settings.ONLY:
            print(f"\n[{name}]", flush=True)
            table()


if __name__ == "__main__":
    epilog = f"Tables: {', '.join(TABLES)}. tests/bench/README.md explains them and the variables."
    argparse.ArgumentParser(description=__doc__, epilog=epilog).parse_args()
    main()
