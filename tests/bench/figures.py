"""Functions for tables: ratios, percentiles, cells, and figures from /proc."""

from __future__ import annotations

import os
import resource
import statistics
from pathlib import Path

PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def percentile(values, share):
    """Return a percentile of values; `share` is between 0 and 1."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def ratio(baseline, ours):
    """Return the median over rounds of the ratio of the baseline to the working tree.

    Both figures of a round were measured within seconds, so a busy machine affects both. Rounds in
    which the working tree has 0, such as CPU time below a tick, are ignored. Return None if all are
    ignored.
    """
    ratios = [theirs / own for theirs, own in zip(baseline, ours, strict=True) if own > 0]
    return statistics.median(ratios) if ratios else None


def times(value):
    """Format a ratio; a dash for None and for negative ratios."""
    return "-" if value is None or value <= 0 else f"x{value:.2f}"


def against(baseline, ours):
    """Return the ratio as a cell, or an empty cell without a baseline."""
    return f"{times(ratio(baseline, ours) if baseline else None):>7}"


def row(*cells, width=9):
    """Print cells; numbers have thousands separators."""
    written = (f"{cell:,}" if isinstance(cell, int | float) else cell for cell in cells)
    print(" ".join(f"{cell:>{width}}" for cell in written), flush=True)


def family(pid, proc=PROC):
    """Return the PIDs of a process and its descendants."""
    found = [int(pid)]
    for task in sorted((proc / str(pid) / "task").iterdir()):
        for child in (task / "children").read_text().split():
            found += family(child, proc)
    return found


def cpu_s(pid, proc=PROC):
    """Return the CPU time of a process and its living descendants, in seconds."""
    return sum(map(_ticks, (proc / str(member) / "stat" for member in family(pid, proc)))) * TICK_S


def children_s():
    """Return the CPU time of all children that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ticks(stat):
    # The second field is the program's name in parentheses. The name may contain parentheses, too.
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 (proc_pid_stat(5))


def resident_bytes(pid, proc=PROC):
    """Return the memory of a process and its descendants, counting shared pages once.

    Anonymous pages are divided among the processes that share them, all of which are in the family.
    File pages are also shared with other programs, so only those of the largest process count.
    """
    members = [proc / str(member) for member in family(pid, proc)]
    anonymous_kib = sum(kib(member / "smaps_rollup", "Pss_Anon") for member in members)
    files_kib = max(kib(member / "status", "RssFile") for member in members)
    return (anonymous_kib + files_kib) * 2**10


def kib(table, name):
    """Return an amount from a table in /proc, in bytes."""
    (line,) = [line for line in table.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])
