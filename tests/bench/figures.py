"""What the tables have in common: ratios, percentiles, cells, what /proc says of processes."""

from __future__ import annotations

import os
import resource
import statistics
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def percentile(values, share):
    """Return the value that a share of all values, such as 0.99, does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def ratio(baseline, ours):
    """Return how many times as much the baseline takes, as the median over rounds.

    The rounds are compared one by one: the two figures of a round were taken within seconds of
    each other, so a machine that was busy for a while was busy for both. A round in which ours took
    nothing, as CPU does in less than a tick, is left out; None if all did.
    """
    ratios = [theirs / own for theirs, own in zip(baseline, ours, strict=True) if own > 0]
    return statistics.median(ratios) if ratios else None


def times(value):
    """Write a ratio; a dash where there is none that means anything."""
    return "-" if value is None or value <= 0 else f"x{value:.2f}"


def against(baseline, ours):
    """Write the ratio as a cell; without a baseline there is none."""
    return f"{times(ratio(baseline, ours) if baseline else None):>7}"


def row(*cells, width=9):
    """Print cells, numbers with their thousands apart."""
    written = (f"{one:,}" if isinstance(one, int | float) else one for one in cells)
    print(" ".join(f"{cell:>{width}}" for cell in written), flush=True)


def family(pid, proc=PROC):
    """Return the IDs of a process and of all that descend from it."""
    found = [int(pid)]
    for task in sorted((proc / str(pid) / "task").iterdir()):
        for child in (task / "children").read_text().split():
            found += family(child, proc)
    return found


def cpu_s(pid, proc=PROC):
    """Return the seconds of CPU that a process and its living descendants have taken so far."""
    return sum(map(_ticks, (proc / str(member) / "stat" for member in family(pid, proc)))) * TICK_S


def children_s():
    """Return the seconds of CPU of all children that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ticks(stat):
    # The second field is the program's name, in parentheses, and may contain some.
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(
        fields[12]
    )  # utime and stime, the 14th and 15th (proc_pid_stat(5))


def resident_bytes(pid, proc=PROC):
    """Return the memory of a process and its descendants, pages that they share counted once.

    Anonymous pages are divided among those that share them, which is only the family. File pages
    are shared with strangers, too, so the largest member's stand for all.
    """
    members = [proc / str(member) for member in family(pid, proc)]
    anonymous_kib = sum(kib(member / "smaps_rollup", "Pss_Anon") for member in members)
    files_kib = max(kib(member / "status", "RssFile") for member in members)
    return (anonymous_kib + files_kib) * 2**10


def kib(table, name):
    """Return an amount of one of the tables in /proc."""
    (line,) = [line for line in table.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])
