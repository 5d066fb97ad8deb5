# ruff: noqa: INP001 - part of a script: it is in no package and no wheel
"""Reference tables generated from the program: commands, metrics, alerts, Events and codes.

Each public function without arguments yields the lines of a block that `deploy.generate` writes.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click
import yaml
from prometheus_client import CollectorRegistry, Metric

from webhook.cli.main import SECTIONS, main
from webhook.core.admission.decision import Outcome, Phase
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.node.events import EventReason
from webhook.core.node.node_fields import SharingCode
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.placement.binding_review import BindingOutcome
from webhook.core.policy.model import EnforceBy, Policy
from webhook.options import KUBECTL_OPTIONS, ExitCode
from webhook.sentry.endpoints import SentryMetrics
from webhook.server.metrics import (
    HistoryMetrics,
    Metrics,
    PlacementMetrics,
    SharedCertificateMetrics,
)
from webhook.server.reviews import ADVISE
from webhook.tools.problems.problem import Code

_ROOT: Final = Path(__file__).resolve().parents[1]
_TESTS: Final = _ROOT / "tests"
_MONITORING: Final = _ROOT / "deploy" / "chart" / "vramwarden" / "templates" / "monitoring.yaml"
_NAME: Final = "vramwarden"
_WIDTH: Final = 110
_LONGEST_SAMPLE: Final = 25
_PREFORMATTED: Final = "\b\n"
"""Prefix of a paragraph that click does not wrap."""
_WHICH_CLUSTER: Final = "[which cluster, and as whom](#which-cluster-and-as-whom)"
_COMMON_CODES: Final = "Exit codes: [the common ones](#exit-codes)."
_CONNECTION: Final = KUBECTL_OPTIONS - {"-n", "--namespace"}
"""Options that choose a cluster and have one meaning in all commands, unlike `--namespace`."""

_CODE: Final = re.compile(
    r'^ +# (?P<about>.+)\.$|^ +[A-Z_]+ = "(?P<code>\w+)"\n +"""(?P<means>[^"]+)\."""$', re.MULTILINE
)
"""Regular expression for a comment above members of `Code`, or a member with its docstring."""

SAMPLES: Final = {
    "admit": ("-f a.yaml > admitted.yaml", "golden/action-enforce/expected.txt"),
    "top": ("-n team-a", "tools/top/golden/file.txt"),
    "explain": ("huge -n team-a", "tools/situations/recorded/no-room.txt"),
    "advise": ("-n team-a", "tools/advise/advised/one.txt"),
    "check": ("", "tools/check/recorded/troubled.txt"),
    "report": ("", "tools/report/recorded.txt"),
    "policy check": ("policies/default.yaml", "cli/recorded/policy-check.txt"),
    "policy test": ("policies/examples/mig.yaml", "cli/recorded/policy-test.txt"),
    "simulate": ("--size 8Gi", "tools/simulate/golden/mixed.txt"),
    "certs status": ("--cert-dir certs", "cli/recorded/certs-status.txt"),
    "demo": ("", "cli/recorded/demo.txt"),
}
"""Arguments of each command's sample, and the test recording of its output."""


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def commands() -> Iterator[str]:
    """Yield a table of commands, common options and exit codes, and a section per command."""
    found = [(title, _context(name)) for title, names in SECTIONS.items() for name in names]
    yield from table(
        ["for", "command", "what it does"],
        (
            [title, f"[`{context.info_name}`](#{context.info_name})", _summary(context.command)]
            for title, context in found
        ),
    )
    yield from ["", "## Exit codes", ""]
    yield from _wrapped(
        "Those of every command; where several apply, the first of 2, 1, 3. What a code says "
        "exactly, and which others a program of the cluster has, is in the section of each."
    )
    yield ""
    yield from _codes((f"{code:d}", code.meaning) for code in ExitCode)
    yield from ["", "## Which cluster, and as whom", ""]
    yield from _wrapped("Every command that asks a cluster takes these options, as kubectl does:")
    yield ""
    yield from _options(_context("top"), connection=True)
    yield from ["", "## Completion"]
    _, *completion = _paragraphs(main.epilog)  # the first paragraph has the exit codes
    yield from _text(completion)
    for _, context in found:
        yield from _section(context, "##")


def _context(name: str) -> click.Context:
    command = main.get_command(click.Context(main), name)
    if command is None:
        raise LookupError(f"SECTIONS names {name}, and there is no such command")
    return click.Context(command, info_name=name, parent=click.Context(main, info_name=_NAME))


def _section(context: click.Context, level: str) -> Iterator[str]:
    command = context.command
    yield from ["", f"{level} {_path(context)}", ""]
    first, *others = _paragraphs(command.help)
    yield from _wrapped(first)
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from _section(click.Context(sub, info_name=name, parent=context), f"{level}#")
        return
    yield from ["", *_code("console", [_usage(context)])]
    paragraphs = [*others, *_paragraphs(command.epilog)]
    codes = [code for paragraph in paragraphs for code in _exit_codes(paragraph)]
    yield from _text(paragraph for paragraph in paragraphs if not _exit_codes(paragraph))
    if options := list(_options(context)):
        yield from ["", *options]
    if _has_connection_options(command):
        yield from ["", f"And the options that say {_WHICH_CLUSTER}."]
    yield from ["", *(_codes(codes) if codes else [_COMMON_CODES])]
    if recorded := SAMPLES.get(_path(context)):
        yield from ["", *_sample(context.command_path, *recorded)]


def _path(context: click.Context) -> str:
    return context.command_path.removeprefix(f"{_NAME} ")


def _usage(context: click.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _summary(command: click.Command) -> str:
    return " ".join(_paragraphs(command.help)[0].split())


def _paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").split("\n\n") if text else []


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _text(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs separated by empty lines.

    A preformatted paragraph becomes a code block, preceded by its first line if that ends with `:`.
    """
    for paragraph in paragraphs:
        if not paragraph.startswith(_PREFORMATTED):
            yield from ["", *_wrapped(paragraph)]
            continue
        lines = paragraph.removeprefix(_PREFORMATTED).splitlines()
        if re.match(" +[^ ]", lines[-1]) and lines[0].endswith(":"):
            yield from ["", lines.pop(0)]
        language = "console" if _NAME in lines[0] else "text"
        code = textwrap.dedent("\n".join(lines))
        if language == "console":  # text after a command becomes a comment
            code = re.sub(r"(?<=\S) {3,}(?=\S)", r"\g<0># ", code)
        yield from ["", *_code(language, code.splitlines())]


def _code(language: str, lines: Iterable[str]) -> list[str]:
    return [f"```{language}", *lines, "```"]


def _exit_codes(paragraph: str) -> list[tuple[str, str]]:
    """Parse `Exit code 0: ...; 1: ...` or `Exit codes: 0 ..., 1 ...`; return [] for other text."""
    text = " ".join(paragraph.split())
    if not re.match(r"Exit codes?:? \d+", text):
        return []
    return re.findall(r"\b(\d+):? (.*?)(?=[;,] \d+:? |\.?$)", text)


def _codes(codes: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from table(["exit code", "means"], ([f"`{code}`", what] for code, what in codes))


def _has_connection_options(command: click.Command) -> bool:
    """Return True if a command has `connection_options`. Programs of the cluster have none."""
    return any("--context" in option.opts for option in command.params)


def _options(context: click.Context, *, connection: bool = False) -> Iterator[str]:
    """Yield a table of a command's options, or of its connection options."""
    shared = _CONNECTION if _has_connection_options(context.command) else frozenset()
    rows = [
        _option(option, context)
        for option in context.command.params
        if isinstance(option, click.Option)
        and not option.hidden
        and option.name != "version"
        and bool(shared & {*option.opts}) == connection
    ]
    if rows:
        yield from table(["option", "default", "what it is"], rows)


def _option(option: click.Option, context: click.Context) -> list[str]:
    """Return the table row of an option.

    Notes in brackets of `--help` become a column or a sentence. The row contains no `|`, because
    MkDocs shows the backslash that GitHub needs to escape it.
    """
    names, text = option.get_help_record(context) or ("", "")
    text, *brackets = re.split(r"  \[", text)
    default = ""
    for note in (part for group in brackets for part in group.removesuffix("]").split("; ")):
        kind, _, value = note.partition(": ")
        if kind == "default":
            default = f"`{value}`" if value == str(option.default) else value
        elif kind == "env var":
            text += f" Or the variable `{value}`."
        elif kind == "required":
            default = "required"
        elif bounds := re.fullmatch(r"(\d+)<=x<=(\d+)", kind):
            text += f" From {bounds[1]} to {bounds[2]}."
    if isinstance(option.type, click.Choice) and option.metavar is None:
        names = names.partition(" [")[0]
        text += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices if choice)}."
    return [f"`{names.replace('|', ' or ')}`", default, text]


def _sample(command: str, arguments: str, recording: str) -> list[str]:
    """Return a command and its output, from a test recording that may contain other commands."""
    text = (_TESTS / recording).read_text(encoding="utf-8")
    if (typed := f"$ {command} {arguments}\n") in text:
        text = text.partition(typed)[2].partition("\nexit code")[0]
    lines = re.sub(r"^exit code \d+\n", "", text, flags=re.MULTILINE).splitlines()
    more = ["..."] if len(lines) > _LONGEST_SAMPLE else []
    return _code("console", [f"$ {command} {arguments}".rstrip(), *lines[:_LONGEST_SAMPLE], *more])


def webhook_metrics() -> Metrics:
    """Return all metrics of the webhook, each with a sample."""
    metrics = Metrics()
    SharedCertificateMetrics(metrics).ca_bundle_published.set(1)
    PlacementMetrics(metrics)
    HistoryMetrics(metrics)
    outcomes_by_webhook = {
        Phase.MUTATE: Outcome,
        Phase.VALIDATE: Outcome,
        ADVISE: Outcome,
        "bind": BindingOutcome,
    }
    for webhook, outcomes in outcomes_by_webhook.items():
        for outcome in (*outcomes, "failed"):
            metrics.count(webhook, "CREATE", outcome, "", 0.001)
    metrics.count_rejected(400)
    metrics.certificate_loads.labels("loaded")
    metrics.certificate_loads.labels("rejected")
    for role in ("serving", "ca"):
        metrics.certificate_expiry.labels(role).set(1)
        metrics.certificate_days_left.labels(role).set(1)
    metrics.show_policy(Policy())
    return metrics


def sentry_metrics() -> SentryMetrics:
    """Return all metrics of a sentry, each with a sample."""
    metrics = SentryMetrics("n1")
    pod = PodFigures(
        uid="uid", cap_bytes=8, used_bytes=4, peak_bytes=5, stops=1, processes=1, idle_since_s=0.0
    )
    gpu = GpuFigures(
        uuid="GPU-1",
        index=0,
        product="H100",
        total_bytes=100,
        usable_bytes=90,
        promised_bytes=8,
        used_bytes=7,
        free_bytes=82,
        unattributed_bytes=1,
        pods=(pod,),
    )
    node = NodeFigures(
        name="n1", observed_s=0.0, driver_version="580.95.05", enforcement="sidecar", gpus=(gpu,)
    )
    seen = ScannedGpu(uuid="GPU-1", product="H100", index=0, usable_bytes=None)
    metrics.show(node, {"uid": "team/p"}, {seen: {"other": 3}}, 1.0)
    metrics.scanned(0.01)
    metrics.stopped("pod", EnforceBy.SENTRY)
    return metrics


def metrics_table(registry: CollectorRegistry, *, common_label: str = "") -> Iterator[str]:
    """Yield a table of vramwarden's metrics without `common_label`, which all of them have."""
    head = f"labels besides `{common_label}`" if common_label else "labels"
    yield from table(
        ["metric", "kind", head, "what it is"],
        (
            [
                f"`{_query_name(metric)}`",
                *_kind_and_labels(metric, common_label),
                metric.documentation,
            ]
            for metric in registry.collect()
            if metric.name.startswith(_NAME)
        ),
    )


def _query_name(metric: Metric) -> str:
    """Return the name of a metric in PromQL, without `_bucket` for a histogram."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def _kind_and_labels(metric: Metric, common_label: str) -> list[str]:
    """Return the kind of a metric, and its labels with their values if the set is closed.

    Raises LookupError if the metric has no sample, since only samples show the labels.
    """
    if not metric.samples:
        raise LookupError(f"{metric.name} has no sample; make one in {__name__}")
    values: dict[str, dict[str, None]] = {}
    for sample in metric.samples:
        for label, value in sample.labels.items():
            if label not in {common_label, "le"}:
                values.setdefault(label, {})[value] = None
    kind = "gauge, always 1" if metric.type == "info" else metric.type
    closed = {
        label: f" ({', '.join(f'`{value}`' for value in known)})" if len(known) > 1 else ""
        for label, known in values.items()
    }
    return [kind, ", ".join(f"`{label}`{known}" for label, known in closed.items())]


def alerts(template: str) -> Iterator[str]:
    """Yield a table of a template's alerts by severity, each linked to its section."""
    text = _MONITORING.read_text(encoding="utf-8")
    _, _, defined = text.partition(f'{{{{- define "vramwarden.{template}" -}}}}')
    defined = defined.partition("{{- end }}")[0]
    by_severity: dict[str, list[str]] = {}
    for rule in yaml.safe_load(defined):
        link = f"[{rule['alert'].removeprefix('Vramwarden')}](#{rule['alert'].lower()})"
        by_severity.setdefault(rule["labels"]["severity"], []).append(link)
    yield from table(
        ["severity", "alerts"],
        ([severity, ", ".join(links)] for severity, links in by_severity.items()),
    )


def sharing_codes() -> Iterator[str]:
    """Yield a table of the reasons why a node is shared or not."""
    yield from table(["code", "means"], ([f"`{code}`", code.means] for code in SharingCode))


def events(about: str) -> Iterator[str]:
    """Yield a table of the Events that vramwarden writes about objects of a kind."""
    yield from table(
        ["reason", "means", "what to do"],
        (
            [f"`{reason}`", reason.means, reason.cure]
            for reason in EventReason
            if reason.about == about
        ),
    )


def problem_codes() -> Iterator[tuple[str, str, str]]:
    """Yield each problem code with its subject and meaning."""
    about = ""
    for match in _CODE.finditer(inspect.getsource(Code)):
        about = match["about"] or about
        if match["code"]:
            yield match["code"], about, " ".join(match["means"].split())


def codes() -> Iterator[str]:
    """Yield a table of the problem codes."""
    rows = ([f"`{code}`", about, means] for code, about, means in problem_codes())
    yield from table(["code", "about", "means"], rows)
