"""`vramwarden simulate`: what would happen to a workload on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.options import connection_options
from webhook.tools.shared.manifests.files import STANDARD_INPUT, name_of_input, read_text
from webhook.tools.simulate.generate import generate
from webhook.tools.simulate.output import Report, as_json, as_text
from webhook.tools.simulate.page import as_html
from webhook.tools.simulate.reading import UnreadableError, read_nodes, read_pods
from webhook.tools.simulate.replay.bounds import lower_bound
from webhook.tools.simulate.replay.cluster import Scheduling
from webhook.tools.simulate.replay.replay import ORDERS, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.tools.simulate.replay.cluster import SimulatedNode, SimulatedPod

_MOST = 100_000
_DEFAULT = click.core.ParameterSource.DEFAULT


def simulate(
    nodes: Sequence[SimulatedNode],
    pods: Sequence[SimulatedPod],
    scheduling: Scheduling,
    *,
    record: bool = False,
) -> Report:
    """Replay a workload by each order of GPUs and report; with what pictures need if asked for."""
    sizes = [gpu.memory_bytes for node in nodes for gpu in node.gpus]
    return Report(
        nodes=len(nodes),
        gpus=len(sizes),
        memory_bytes=sum(sizes),
        pods=len(pods),
        scheduling=scheduling,
        lower_bound=lower_bound(nodes, pods),
        outcomes={
            name: replay(nodes, pods, order, scheduling, record=record)
            for name, order in ORDERS.items()
        },
    )


def _generated(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """Read `1000,100` for click."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,7}),([0-9]{1,7})", text)
    pods, nodes = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= pods <= _MOST and 1 <= nodes <= _MOST):
        detail = f"{text!r} is not PODS,NODES; write two numbers from 1 to {_MOST}, e.g. 1000,100"
        raise click.BadParameter(detail)
    return pods, nodes


@click.command("simulate")
@click.option("--nodes", "nodes_file", metavar="FILE|-", help="The cluster; see above.")
@click.option("--pods", "pods_file", metavar="FILE|-", help="The workload; see above.")
@click.option(
    "--generate",
    "generated",
    metavar="PODS,NODES",
    callback=_generated,
    help="Generate this many pods and nodes instead, e.g. 1000,100.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Another number generates another workload."
)
@click.option(
    "--scheduler",
    type=click.Choice([one.value for one in Scheduling]),
    default=Scheduling.SPREAD.value,
    show_default=True,
    help="Take the emptiest node that has room, as the stock profile does where pods ask for CPU "
    "and memory in proportion, or the fullest, as those of deploy/scheduler do.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="A table, everything for programs, or pictures for a browser.",
)
@click.option(
    "--today",
    is_flag=True,
    help="How many GPUs would today's pods need as shares? Also without vramwarden's agent.",
)
@click.option(
    "--as", "otherwise", metavar="SIZE", help="The share of a pod of one GPU that says no size."
)
@click.option("--sizes", metavar="FILE|-", help="Shares by namespace and workload; see above.")
@click.option(
    "--gpu-memory",
    multiple=True,
    metavar="[NODES=][COUNTx]SIZE",
    help="The GPUs of nodes that do not say their memory, e.g. 80Gi, 'old-*=4x24Gi'.",
)
@connection_options
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
def simulate_command(
    *,
    nodes_file: str | None,
    pods_file: str | None,
    generated: tuple[int, int] | None,
    seed: int,
    scheduler: str,
    output: str,
    file: str | None,
    today: bool,
    otherwise: str | None,
    sizes: str | None,
    gpu_memory: tuple[str, ...],
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Replay a workload against the webhook's own choice of GPUs, without a cluster.

    Says which pods start, wait or never start, and why, and how many GPUs they take; beside it the
    same for other ways to choose a GPU (first fit, worst fit), and how many GPUs are needed at
    least. The scheduler is a simple model: it counts VRAM and reads node selectors, and ignores
    CPU, memory, taints, affinity and priority.

    \b
    --nodes: kubectl get nodes -o json
    --pods:  kubectl get pods -A -o json, or manifests of pods and workloads; those
             with a gpu-class go through `vramwarden admit` first.

    Pods of a cluster arrive when they were created, wherever they run now. Finished ones end when
    their containers did; others run on. YAML works too; JSON is read faster. Or in a short form,
    where all but name, gpus of nodes and memory of pods may be left out:

    \b
    nodes:
    - {name: big, count: 2, gpus: 8x80Gi, labels: {zone: a}}
    - {name: old, gpus: [24Gi, 16Gi]}
    pods:
    - {name: train, count: 5, memory: 60Gi, gpus: 2, nodeSelector: {zone: a}}
    - {name: job, count: 9, memory: 8Gi, arrival: 1h, every: 5m, duration: 30m}

    Both may be in one file: pass it as --nodes and as --pods.

    Without files, or with --today and files, the question is another: how many GPUs would the pods
    of today need as shares? They are read from the cluster with your own rights, or from the output
    of `kubectl get nodes,pods -A -o json`; neither needs vramwarden. GPUs are known by our agent,
    by the labels of GPU feature discovery, by HAMi, gpushare or the device plugin. Pods of HAMi,
    Volcano, KAI and gpushare say their size; those with whole GPUs need one, by --as or --sizes:

    \b
    sizes:                              (or CSV: namespace,workload,memory)
    - {namespace: "research-*", workload: "Deployment/llm*", memory: 20Gi}
    - {workload: train, memory: whole}

    \b
    vramwarden simulate                              GPUs today
    vramwarden simulate --as 8Gi --sizes sizes.csv   and as shares
    vramwarden simulate --today --nodes cluster.json --as 8Gi -o html page.html

    `-o html FILE` writes pictures into that file, which needs nothing
    beside it. Exit code 0: replayed; 1: the cluster cannot be asked; 2: wrong
    usage, or a file that cannot be read or written.
    """  # noqa: D301 - click wants the character, not two
    if file and output != "html":
        raise click.UsageError(
            f"only -o html is written to a file; to read {file}, pass it as --nodes and as --pods"
        )
    read = (nodes_file, pods_file, sizes)
    if file and file != STANDARD_INPUT and file in read:
        raise click.UsageError(f"{file} is read, and would be overwritten; name another file")
    if today or not (nodes_file or pods_file or generated):
        if generated:
            raise click.UsageError("pass --today or --generate, not both")
        if click.get_current_context().get_parameter_source("scheduler") is not _DEFAULT:
            raise click.UsageError("--today says both, packed and spread; leave out --scheduler")
        files = tuple(dict.fromkeys(filter(None, (nodes_file, pods_file))))
        text = _today(files, kubeconfig, context, otherwise, sizes, gpu_memory, output)
    else:
        if otherwise or sizes or gpu_memory or kubeconfig or context:
            raise click.UsageError(
                "--as, --sizes, --gpu-memory, --kubeconfig and --context are for --today; add it"
            )
        nodes, pods = _workload(nodes_file, pods_file, generated, seed)
        report = simulate(nodes, pods, Scheduling(scheduler), record=output == "html")
        text = {"text": as_text, "json": as_json, "html": as_html}[output](report)
    if file is None or file == STANDARD_INPUT:
        click.echo(text, nl=False)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _Unreadable(f"{file} cannot be written: {error.strerror}") from error


def _today(
    files: tuple[str, ...],
    kubeconfig: Path | None,
    context: str | None,
    otherwise: str | None,
    sizes: str | None,
    gpu_memory: tuple[str, ...],
    output: str,
) -> str:
    """Answer how many GPUs today's pods would need as shares."""
    # Imported here: the client takes a second, which --help and replays need not wait for.
    from webhook.tools.simulate.today import TodayOptions, run_today  # noqa: PLC0415
    from webhook.tools.simulate.today_output import today_as_json, today_as_text  # noqa: PLC0415
    from webhook.tools.simulate.today_page import today_as_html  # noqa: PLC0415

    if [*files, sizes].count(STANDARD_INPUT) > 1:
        raise click.UsageError("only one of the files can be standard input")
    options = TodayOptions(files, kubeconfig, context, otherwise, sizes, gpu_memory)
    try:
        report = run_today(options)
    except UnreadableError as error:
        lines = dict.fromkeys(map(str, error.problems))
        raise _Unreadable("\n".join(["nothing was compared:", *lines])) from error
    write = {"text": today_as_text, "json": today_as_json, "html": today_as_html}[output]
    return write(report)


class _Unreadable(click.ClickException):
    """Lists all problems, one per line."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        del file
        click.echo(f"Error: {self.message}", err=True)


def _workload(
    nodes_file: str | None,
    pods_file: str | None,
    generated: tuple[int, int] | None,
    seed: int,
) -> tuple[list[SimulatedNode], list[SimulatedPod]]:
    if generated and not (nodes_file or pods_file):
        return generate(*generated, seed)
    if generated or not nodes_file or not pods_file:
        raise click.UsageError(
            "pass --nodes and --pods, both the same file if it has both, or --generate alone"
        )
    if nodes_file == pods_file == STANDARD_INPUT:
        raise click.UsageError("only one of --nodes and --pods can be standard input")
    problems = []
    nodes: list[SimulatedNode] = []
    pods: list[SimulatedPod] = []
    left_out: dict[str, int] = {}
    try:
        nodes, left_out = read_nodes(name_of_input(nodes_file), read_text(nodes_file))
    except UnreadableError as error:
        problems += error.problems
    try:
        pods, passed = read_pods(name_of_input(pods_file), read_text(pods_file))
        left_out |= passed
    except UnreadableError as error:
        problems += error.problems
    if problems:
        lines = dict.fromkeys(map(str, problems))  # what is wrong with one file for both, once
        raise _Unreadable("\n".join(["nothing was replayed:", *lines]))
    for why, number in left_out.items():
        click.echo(f"left out: {why}: {number:,}", err=True)
    return nodes, pods
