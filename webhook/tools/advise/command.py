"""The command `advise`: which workloads request too much or too little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from webhook.core.formatting import format_amount, format_exact
from webhook.core.kinds.histories import (
    MIN_RUNS,
    Advice,
    History,
    Verdict,
    advise,
    median_peak_bytes,
    peak_bytes,
    requested_bytes,
    stops,
)
from webhook.core.kinds.nodes import largest_gpu
from webhook.core.kinds.workloads import Workload
from webhook.options import cluster_options, connect_to_cluster, output_option
from webhook.tools.render.output import known, make_report, plain_table, write_json, write_lines

_HEADS: Final = ("WORKLOAD", "RUNS", "CAP", "PEAK", "MEDIAN", "STOPS", "ADVICE", "WHY")
_RIGHT: Final = frozenset({"RUNS", "CAP", "PEAK", "MEDIAN", "STOPS", "ADVICE"})
_NOTHING: Final = "-"
_LAST: Final = {Verdict.FITS: 1, Verdict.FILLS: 1, Verdict.FEW: 2}
"""Sort position of verdicts that advise no amount; rows with advice come first."""


@click.command("advise")
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Workloads of all namespaces.")
@output_option("A table, or everything for programs, in bytes.")
def advise_command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: str,
) -> None:
    """List the workloads that ask for too much or too little GPU memory.

    The advice comes from the peaks of a workload's last 20 pods, which a VRAMHistory in its
    namespace keeps for 30 days after they ended. It is the largest peak plus 15 %, and needs 5 pods
    that ran for an hour in sum. A workload is not advised less if one of its last 5 pods filled a
    cap that the driver enforces. RUNS counts pods, CAP is what they asked for, STOPS counts those
    that were stopped at it. A pod belongs to the workload that created it, unless its label
    vramwarden.io/workload names another.

    \b
    vramwarden advise                 the workloads of your namespace
    vramwarden advise -A -o json      of all namespaces, for programs

    Exit code 0: shown; 2: wrong usage; 3: the cluster did not answer, you may not
    read it, or it keeps no histories.
    """  # noqa: D301 - click wants the character, not two
    # Imported here, because --help need not wait a second for the client.
    from webhook.tools.snapshot.cluster import reading_cluster  # noqa: PLC0415
    from webhook.tools.snapshot.namespace import NamespaceSnapshot  # noqa: PLC0415

    if all_namespaces and namespace:
        raise click.UsageError("pass -n or -A, not both", click.get_current_context())
    with reading_cluster():
        cluster = connect_to_cluster(kubeconfig, context, namespace)
        where = "" if all_namespaces else cluster.namespace
        snapshot = NamespaceSnapshot(cluster.kube, where)
        nodes = snapshot.attempt(lambda: snapshot.gpu_nodes) if snapshot.histories else None
        rows = ranked(snapshot.histories, largest_gpu(nodes))
    click.echo(as_json(rows) if output == "json" else as_text(rows, where), nl=False)


def ranked(
    histories: Sequence[History], largest_bytes: int | None = None
) -> list[tuple[History, Advice]]:
    """Return each history with its advice. Rows with advice come first, then rows sort by name."""
    found = [(history, advise(history, largest_bytes=largest_bytes)) for history in histories]
    return sorted(
        found,
        key=lambda row: (
            _LAST.get(row[1].verdict, 0),
            row[0].namespace,
            row[0].kind,
            row[0].workload,
        ),
    )


def as_text(rows: Sequence[tuple[History, Advice]], namespace: str) -> str:
    """Return the table. A namespace of "" means all namespaces and adds a column."""
    if not rows:
        where = f"in namespace {namespace}" if namespace else "in this cluster"
        return (
            f"No history {where} yet: what a pod held at most is kept once it ended, and advice "
            f"begins with {MIN_RUNS} pods of a workload.\n"
        )
    heads = _HEADS if namespace else ("NAMESPACE", *_HEADS)
    drawn = plain_table(heads, [_cells(*row, named=not namespace) for row in rows], _RIGHT)
    return write_lines(drawn)


def _cells(history: History, advice: Advice, *, named: bool) -> tuple[str, ...]:
    asked, peak, median = requested_bytes(history), peak_bytes(history), median_peak_bytes(history)
    advised = advice.amount_bytes
    return (
        *((history.namespace,) if named else ()),
        str(Workload(history.kind, history.workload)),
        str(len(history.runs)),
        _NOTHING if asked is None else format_exact(asked),
        _NOTHING if peak is None else format_amount(peak),
        _NOTHING if median is None else format_amount(median),
        str(stops(history)),
        _NOTHING if advised is None else format_exact(advised),
        advice.why,
    )


def as_json(rows: Sequence[tuple[History, Advice]]) -> str:
    """Return the JSON report. Unknown values and missing advice are absent."""
    workloads = [
        known(
            namespace=history.namespace,
            kind=history.kind,
            name=history.workload,
            runs=len(history.runs),
            asksBytes=requested_bytes(history),
            peakBytes=peak_bytes(history),
            medianBytes=median_peak_bytes(history),
            stops=stops(history),
            adviceBytes=advice.amount_bytes,
            verdict=advice.verdict.value,
            why=advice.why,
        )
        for history, advice in rows
    ]
    return write_json(make_report("AdviceReport", {"workloads": workloads}))
