"""`vramwarden simulate`: how many GPUs today's pods would need as shares."""

from __future__ import annotations

from pathlib import Path

import click

from webhook.options import connect_to_cluster, connection_options, namespace_option, output_option


@click.command("simulate")
@click.option("--nodes", "nodes_file", metavar="FILE|-", help="The cluster; see above.")
@click.option(
    "--pods", "pods_file", metavar="FILE|-", help="Its pods, if they are in another file."
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="[NAMESPACE/WORKLOAD=][COUNTx]SIZE",
    help="The share of pods with one whole GPU, or of workloads, e.g. 8Gi, 'team/llm*=20Gi', "
    "'train/*=whole'.",
)
@click.option(
    "--gpu-memory",
    multiple=True,
    metavar="[NODES=][COUNTx]SIZE",
    help="The GPUs of nodes that do not report their memory, e.g. 80Gi, 'old-*=4x24Gi'.",
)
@output_option("A table, or everything for programs.")
@namespace_option("Only the pods of this one.  [default: all]")
@connection_options
def simulate_command(
    *,
    nodes_file: str | None,
    pods_file: str | None,
    sizes: tuple[str, ...],
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
    Volcano, KAI and gpushare say their size; those with whole GPUs need one, by --size. The first
    --size that fits a workload counts; `whole` keeps its GPUs.

    \b
    vramwarden simulate                              GPUs today
    vramwarden simulate --size 8Gi                   and as shares
    vramwarden simulate --nodes cluster.json --size 8Gi --size 'train/*=whole'

    The scheduler is a simple model: it counts VRAM and reads node selectors, and ignores CPU,
    memory, taints, affinity and priority.

    Exit code 0: compared, or it has no GPUs; 2: wrong usage, or a file that cannot be read; 3: the
    cluster did not answer, or you may not read it.
    """  # noqa: D301 - click wants the character, not two
    # Imported here, because --help need not wait a second for the client.
    from webhook.tools.manifests.reading import input_name  # noqa: PLC0415
    from webhook.tools.render.output import Progress  # noqa: PLC0415
    from webhook.tools.simulate import fetch, render  # noqa: PLC0415
    from webhook.tools.simulate.comparison import compare  # noqa: PLC0415
    from webhook.tools.simulate.node_gpus import parse_gpu_size  # noqa: PLC0415
    from webhook.tools.snapshot.cluster import cluster_progress  # noqa: PLC0415

    try:
        shares, given = ([parse_gpu_size(text) for text in texts] for texts in (sizes, gpu_memory))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    files = tuple(filter(None, (nodes_file, pods_file)))
    reading = f"reading {', '.join(map(input_name, files))}"
    objects = fetch.TodayObjects(given=given, namespace=namespace or "")
    with Progress((lambda: reading) if files else cluster_progress):
        if files:
            fetch.read_files(objects, files)
        else:
            fetch.read_cluster(objects, connect_to_cluster(kubeconfig, context, None).kube)
        objects.check_nodes()
        found = compare(objects.nodes, objects.pods, shares)
    write = render.as_json if output == "json" else render.as_text
    click.echo(write(found, objects), nl=False)
