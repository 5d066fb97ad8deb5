"""The command `top`."""

from __future__ import annotations

import re
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from webhook.options import (
    NODES,
    PODS,
    NoCluster,
    cluster_options,
    complete_names,
    connect_to_cluster,
    name_completer,
)
from webhook.tools.top.rows import Order

_EVERY_S: Final = 5
_SHOWN: Final = ("nodes", "pods")
_ALL: Final = ("nodes", "pods", "workloads")
_WATCH: Final = ("-w", "--watch")
_NUMBER: Final = re.compile(r"[0-9.]+")


class _Top(click.Command):
    """Command that accepts `-w` without a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the default number after `-w`."""
        words: list[str] = []
        for word, next_word in pairwise([*args, ""]):
            words.append(word)
            if word in _WATCH and not _NUMBER.fullmatch(next_word):
                words.append(str(_EVERY_S))
        return super().parse_args(ctx, words)


def _words(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [word for word in _ALL if word.startswith(begun)]


def _names(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    word = str(context.params.get("what") or "").removesuffix("s")
    paths = {"node": NODES, "pod": (PODS,)}.get(word, ())
    return complete_names(context, paths, begun)


@click.command("top", cls=_Top)
@click.argument(
    "what",
    required=False,
    metavar="[nodes|pods|workloads]",
    type=click.Choice([*_ALL, *(word.removesuffix("s") for word in _ALL)]),
    shell_complete=_words,
)
@click.argument("name", required=False, metavar="[NAME]", shell_complete=_names)
@cluster_options
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
@click.option("-l", "--selector", metavar="SEL", help="Only pods with these labels, as kubectl.")
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=name_completer(*NODES),
    help="Only this node, GPU by GPU, and its pods.",
)
@click.option(
    "--sort",
    type=click.Choice([order.value for order in Order if order is not Order.NAME]),
    help="The most first; idle is what is promised and not used.  [default: by name]",
)
@click.option(
    "-w",
    "--watch",
    "every_s",
    type=click.IntRange(min=1, max=86_400),
    metavar="[S]",
    help="Again each S seconds (5), until q; without a terminal one line of JSON per change.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["wide", "json", "html"]),
    help="More columns; everything for programs; one page with pictures, for a browser.",
)
@click.option("--ascii", "plain", is_flag=True, help="Bars of #, = and . instead of blocks.")
@click.option("--no-color", is_flag=True, help="As NO_COLOR and TERM=dumb: no colours.")
def top_command(
    *,
    what: str | None,
    name: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    all_namespaces: bool,
    selector: str | None,
    node: str | None,
    sort: str | None,
    every_s: int | None,
    output: str | None,
    plain: bool,
    no_color: bool,
    **options: str | None,
) -> None:
    """Show how much GPU memory is promised to pods, and how much they use.

    Shows each GPU of the cluster, then the pods of the namespace. It reads with your own rights:
    the built-in role `view` is enough. Pods that you may not read are shown without names. A bar
    shows what is used, what is promised but not used, `!` what pods without a cap use, and what is
    free. A pod is promised its cap; PROMISED is the sum of the caps on a GPU. HELD BY says what
    enforces the cap (driver, sidecar or sentry), IDLE since when no kernel of the pod was seen to
    run. Both columns are shown if the terminal is wide enough, and always with -o wide.

    The figures come from the sentries, which measure every few seconds and report within a minute;
    a dash means that a figure is not known. With more than 40 GPUs there is one line per node. If
    there are no figures, only the pods are shown, and why.

    \b
    vramwarden top                        the GPUs, and the pods of your namespace
    vramwarden top pods -A --sort idle    who keeps most and does not use it
    vramwarden top workloads -n team-a    summed by Deployment, Job, ...
    vramwarden top --node n1 -w           one node, live
    vramwarden top -o html > top.html

    Exit code 0: shown; 2: wrong usage; 3: the cluster did not answer, or you may not read it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here, because --help and completion need not wait a second for the client.
    from webhook.tools.render.output import supports_colour, supports_unicode  # noqa: PLC0415
    from webhook.tools.snapshot.cluster import reading_cluster  # noqa: PLC0415
    from webhook.tools.top.fetch import TopOptions, read_report  # noqa: PLC0415
    from webhook.tools.top.terminal import Terminal, TopOutput  # noqa: PLC0415

    context = click.get_current_context()
    one_part = f"{what.removesuffix('s')}s" if what else ""
    if every_s is not None and output == "html":
        raise click.UsageError("a page is drawn once: leave out -w, or -o html", context)
    if all_namespaces and namespace:
        raise click.UsageError("pass -n or -A, not both", context)
    parts = (one_part,) if one_part else _SHOWN
    named = {one_part: name} if name else {}
    if node and named.get("nodes", node) != node:
        raise click.UsageError("name a node once: as NAME, or with --node", context)
    with reading_cluster():
        cluster = connect_to_cluster(kubeconfig, options["context"], namespace)
        wanted = TopOptions(
            namespace="" if all_namespaces else cluster.namespace,
            selector=selector or "",
            node=named.get("nodes", node or ""),
            pod=named.get("pods", ""),
            workload=named.get("workloads", ""),
            order=Order(sort or Order.NAME),
        )
        report = read_report(cluster.kube, wanted)
    if all((report.nodes if part == "nodes" else report.pods) is None for part in parts):
        raise NoCluster("\n".join(report.missing))
    shown = TopOutput(
        parts=parts,
        all_parts=parts if one_part else _ALL,
        format=output,
        read=partial(read_report, cluster.kube, wanted),
        every_s=every_s or _EVERY_S,
        term=Terminal(
            unicode=not plain and supports_unicode(sys.stdout),
            colour=not no_color and supports_colour(sys.stdout),
            wide=output == "wide",
            command=context.find_root().info_name or "vramwarden",
        ),
    )
    if every_s is None:
        shown.once(report)
    else:
        shown.watch(report)
