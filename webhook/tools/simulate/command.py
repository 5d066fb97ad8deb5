"""`vramwarden simulate`: how many GPUs today's pods would need as shares."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from webhook.core.pod.quantity import QuantityError, parse_vram
from webhook.options import (
    WrongInput,
    connection_options,
    namespace_option,
    output_option,
    pop_user,
)
from webhook.tools.shared.facts import Unreadable
from webhook.tools.shared.manifests.files import STANDARD_INPUT, name_of_input

if TYPE_CHECKING:
    from pathlib import Path

_AMOUNT: Final = re.compile(r"[0-9.]+[A-Za-z]{1,3}")
"""What --as said before it was kubectl's: a size, and nobody's name."""


@click.command("simulate")
@click.option("--nodes", "nodes_file", metavar="FILE|-", help="The cluster; see above.")
@click.option("--pods", "pods_file", metavar="FILE|-", help="Its pods, where they are apart.")
@click.option("--today", is_flag=True, hidden=True, help="What it says anyway; was an option.")
@click.option(
    "--size", "otherwise", metavar="SIZE", help="The share of a pod of one GPU that says no size."
)
@click.option(
    "--sizes", "sizes_file", metavar="FILE|-", help="Shares by namespace and workload; see above."
)
@click.option(
    "--gpu-memory",
    multiple=True,
    metavar="[NODES=][COUNTx]SIZE",
    help="The GPUs of nodes that do not say their memory, e.g. 80Gi, 'old-*=4x24Gi'.",
)
@output_option("A table, or everything for programs.")
@namespace_option("Only the pods of this one.  [default: all]")
@connection_options
def simulate_command(
    *,
    nodes_file: str | None,
    pods_file: str | None,
    today: bool,
    otherwise: str | None,
    sizes_file: str | None,
    gpu_memory: tuple[str, ...],
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Say how many GPUs the pods of today would need as shares.

    They are read from the cluster with your own rights, or from the output of
    `kubectl get nodes,pods -A -o json`; neither needs vramwarden. GPUs are known by our agent,
    by the labels of GPU feature discovery, by HAMi, gpushare or the device plugin. Pods of HAMi,
    Volcano, KAI and gpushare say their size; those with whole GPUs need one, by --size or --sizes:

    \b
    sizes:                              (or CSV: namespace,workload,memory)
    - {namespace: "research-*", workload: "Deployment/llm*", memory: 20Gi}
    - {workload: train, memory: whole}

    \b
    vramwarden simulate                              GPUs today
    vramwarden simulate --size 8Gi --sizes s.csv     and as shares
    vramwarden simulate --nodes cluster.json --size 8Gi

    The scheduler is a simple model: it counts VRAM and reads node selectors, and ignores CPU,
    memory, taints, affinity and priority.

    Exit code 0: compared, or it has no GPUs; 2: wrong usage, or a file that cannot be read; 3: the
    cluster did not answer, or you may not read it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here: the client takes a second, which --help need not wait for.
    from webhook.tools.shared.progress import Progress  # noqa: PLC0415
    from webhook.tools.shared.read import cluster_progress  # noqa: PLC0415
    from webhook.tools.simulate import read, show  # noqa: PLC0415
    from webhook.tools.simulate.judge.cluster import NoGPUs  # noqa: PLC0415
    from webhook.tools.simulate.judge.comparison import compare  # noqa: PLC0415
    from webhook.tools.simulate.judge.offered import read_given  # noqa: PLC0415

    del today
    if otherwise is None and (otherwise := pop_user(_AMOUNT)):
        click.echo(f"--as {otherwise} is read as --size {otherwise}; --as is a user", err=True)
    files = tuple(dict.fromkeys(filter(None, (nodes_file, pods_file))))
    if [*files, sizes_file].count(STANDARD_INPUT) > 1:
        raise click.UsageError("only one of the files can be standard input")
    try:
        otherwise_bytes = parse_vram(otherwise) if otherwise else None
    except QuantityError as error:
        raise click.UsageError(f"--size: {otherwise!r} {error}") from error
    try:
        given = [read_given(text) for text in gpu_memory]
    except ValueError as error:
        raise click.UsageError(f"--gpu-memory: {error}") from error
    reading = f"reading {', '.join(map(name_of_input, files))}"
    try:
        with Progress((lambda: reading) if files else cluster_progress) as progress:
            sizes = read.read_sizes(sizes_file) if sizes_file else []
            cluster = (
                read.read_files(files, namespace or "")
                if files
                else read.read_cluster(kubeconfig, context, namespace or "")
            )
            try:
                nodes, sources = cluster.sized_nodes(given)
            except NoGPUs as error:
                if files:  # of a cluster that somebody meant to have some
                    raise
                nodes, sources = [], {}
                cluster.notes.append(str(error))
            pods = cluster.sized_pods(sizes, otherwise_bytes)
            is_empty = output == "text" and not sources
            found = None if is_empty else compare(nodes, pods, progress.each)
    except Unreadable as error:
        raise WrongInput(f"nothing was compared:\n{error}") from error
    if found is None:
        click.echo(f"No GPU is there to share: {cluster.notes[-1]}.")
        return
    assumed = [*show.assumptions(found, sources), *cluster.notes]
    write = show.as_json if output == "json" else show.as_text
    click.echo(write(found, cluster.left_out, assumed), nl=False)
