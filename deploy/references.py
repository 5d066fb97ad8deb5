# ruff: noqa: INP001 - of a script, and no package: it goes into no wheel
"""The references that are read from the program itself: its commands, metrics, alerts and Events.

Each function yields the lines of a block that `deploy.generate` writes.
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
from webhook.core.admission.decide import Outcome, Phase
from webhook.core.kinds.nodes import GpuFigures, NodeFigures, PodFigures
from webhook.core.node.events import EventReason
from webhook.core.node.verdict import SharingCode
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.placement.binding_review import BindingOutcome
from webhook.core.policy.values import EnforceBy, Policy
from webhook.options import OF_KUBECTL, ExitCode
from webhook.sentry.metrics import SentryMetrics
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
_AS_IS: Final = "\b\n"
"""Begins a paragraph whose lines click leaves as they are."""
_WHICH_CLUSTER: Final = "[which cluster, and as whom](#which-cluster-and-as-whom)"
_COMMON_CODES: Final = "Exit codes: [the common ones](#exit-codes)."
_CONNECTION: Final = OF_KUBECTL - {"-n", "--namespace"}
"""Options of a cluster, which mean the same to each command; a namespace does not."""

_CODE: Final = re.compile(
    r'^ +# (?P<about>.+)\.$|^ +[A-Z_]+ = "(?P<code>\w+)"\n +"""(?P<means>[^"]+)\."""$', re.MULTILINE
)
"""A comment above members of `Code`, or a member with its docstring."""

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
"""Arguments, and what is written for them: a recording of the tests, which compare it."""


def table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def commands() -> Iterator[str]:
    """Yield a table of all commands, what they share, and a section for each."""
    found = [(title, _of(name)) for title, names in SECTIONS.items() for name in names]
    yield from table(
        ["for", "command", "what it does"],
        (
            [title, f"[`{one.info_name}`](#{one.info_name})", _first(one.command)]
            for title, one in found
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
    yield from _options(_of("top"), of_connection=True)
    yield from ["", "## Completion"]
    _, *completion = _paragraphs(main.epilog)  # the first has the exit codes
    yield from _text(completion)
    for _, one in found:
        yield from _section(one, "##")


def _of(name: str) -> click.Context:
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
    said = [*others, *_paragraphs(command.epilog)]
    codes = [code for one in said for code in _exit_codes(one)]
    yield from _text(one for one in said if not _exit_codes(one))
    if options := list(_options(context)):
        yield from ["", *options]
    if _asks_a_cluster(command):
        yield from ["", f"And the options that say {_WHICH_CLUSTER}."]
    yield from ["", *(_codes(codes) if codes else [_COMMON_CODES])]
    if recorded := SAMPLES.get(_path(context)):
        yield from ["", *_sample(context.command_path, *recorded)]


def _path(context: click.Context) -> str:
    return context.command_path.removeprefix(f"{_NAME} ")


def _usage(context: click.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _first(command: click.Command) -> str:
    return " ".join(_paragraphs(command.help)[0].split())


def _paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").split("\n\n") if text else []


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _text(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs, each behind an empty line; what is no prose as code, behind its head."""
    for one in paragraphs:
        if not one.startswith(_AS_IS):
            yield from ["", *_wrapped(one)]
            continue
        lines = one.removeprefix(_AS_IS).splitlines()
        if re.match(" +[^ ]", lines[-1]) and lines[0].endswith(":"):
            yield from ["", lines.pop(0)]
        language = "console" if _NAME in lines[0] else "text"
        code = textwrap.dedent("\n".join(lines))
        if language == "console":  # what is said of a command behind it is a comment there
            code = re.sub(r"(?<=\S) {3,}(?=\S)", r"\g<0># ", code)
        yield from ["", *_code(language, code.splitlines())]


def _code(language: str, lines: Iterable[str]) -> list[str]:
    return [f"```{language}", *lines, "```"]


def _exit_codes(paragraph: str) -> list[tuple[str, str]]:
    """Read `Exit code 0: ...; 1: ...` and `Exit codes: 0 ..., 1 ....`; of other text nothing."""
    text = " ".join(paragraph.split())
    if not re.match(r"Exit codes?:? \d+", text):
        return []
    return re.findall(r"\b(\d+):? (.*?)(?=[;,] \d+:? |\.?$)", text)


def _codes(codes: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield from table(["exit code", "means"], ([f"`{code}`", what] for code, what in codes))


def _asks_a_cluster(command: click.Command) -> bool:
    """Say whether it has `connection_options`; a program of the cluster has its own."""
    return any("--context" in one.opts for one in command.params)


def _options(context: click.Context, *, of_connection: bool = False) -> Iterator[str]:
    """Yield the table of a command's options; nothing where it has none."""
    shared = _CONNECTION if _asks_a_cluster(context.command) else frozenset()
    rows = [
        _option(one, context)
        for one in context.command.params
        if isinstance(one, click.Option)
        and not one.hidden
        and one.name != "version"
        and bool(shared & {*one.opts}) == of_connection
    ]
    if rows:
        yield from table(["option", "default", "what it is"], rows)


def _option(option: click.Option, context: click.Context) -> list[str]:
    """Return the row of an option; what --help writes in brackets gets a column or a sentence.

    No `|` is in it: what makes the site shows the backslash that GitHub needs before it.
    """
    names, text = option.get_help_record(context) or ("", "")
    text, *brackets = re.split(r"  \[", text)
    default = ""
    for one in (part for group in brackets for part in group.removesuffix("]").split("; ")):
        kind, _, said = one.partition(": ")
        if kind == "default":
            default = f"`{said}`" if said == str(option.default) else said
        elif kind == "env var":
            text += f" Or the variable `{said}`."
        elif kind == "required":
            default = "required"
        elif found := re.fullmatch(r"(\d+)<=x<=(\d+)", kind):
            text += f" From {found[1]} to {found[2]}."
    if isinstance(option.type, click.Choice) and option.metavar is None:
        names = names.partition(" [")[0]
        text += f" One of {', '.join(f'`{one}`' for one in option.type.choices if one)}."
    return [f"`{names.replace('|', ' or ')}`", default, text]


def _sample(command: str, arguments: str, recording: str) -> list[str]:
    """Return the output of a command as the tests have recorded it, beside others or alone."""
    text = (_TESTS / recording).read_text(encoding="utf-8")
    if (typed := f"$ {command} {arguments}\n") in text:
        text = text.partition(typed)[2].partition("\nexit code")[0]
    lines = re.sub(r"^exit code \d+\n", "", text, flags=re.MULTILINE).splitlines()
    more = ["..."] if len(lines) > _LONGEST_SAMPLE else []
    return _code("console", [f"$ {command} {arguments}".rstrip(), *lines[:_LONGEST_SAMPLE], *more])


def webhook_metrics() -> Metrics:
    """Return the webhook's metrics with all of its parts, and a sample of each."""
    metrics = Metrics()
    SharedCertificateMetrics(metrics).ca_bundle_published.set(1)
    PlacementMetrics(metrics)
    HistoryMetrics(metrics)
    of = {Phase.MUTATE: Outcome, Phase.VALIDATE: Outcome, ADVISE: Outcome, "bind": BindingOutcome}
    for webhook, outcomes in of.items():
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
    """Return what a sentry shows of a GPU with a pod, and memory without a promise."""
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


def metrics_of(registry: CollectorRegistry, *, besides: str = "") -> Iterator[str]:
    """Yield the table of the metrics of ours, without the label that all of them have."""
    found = [one for one in registry.collect() if one.name.startswith(_NAME)]
    head = f"labels besides `{besides}`" if besides else "labels"
    yield from table(
        ["metric", "kind", head, "what it is"],
        ([f"`{_scraped(one)}`", *_labels(one, besides), one.documentation] for one in found),
    )


def _scraped(metric: Metric) -> str:
    """Return the name by which one asks for it; of a histogram without `_bucket`."""
    return metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")


def _labels(metric: Metric, besides: str) -> list[str]:
    """Return a metric's kind, and its labels with their values where these are a closed set.

    Raises LookupError where the metric has no sample: then nobody knows its labels.
    """
    if not metric.samples:
        raise LookupError(f"{metric.name} has no sample; make one in {__name__}")
    values: dict[str, dict[str, None]] = {}
    for sample in metric.samples:
        for label, value in sample.labels.items():
            if label not in {besides, "le"}:
                values.setdefault(label, {})[value] = None
    kind = "gauge, always 1" if metric.type == "info" else metric.type
    closed = {
        label: f" ({', '.join(f'`{one}`' for one in found)})" if len(found) > 1 else ""
        for label, found in values.items()
    }
    return [kind, ", ".join(f"`{label}`{found}" for label, found in closed.items())]


def alerts(template: str) -> Iterator[str]:
    """Yield a table of the alerts of one template by severity, each linked to its section."""
    text = _MONITORING.read_text(encoding="utf-8")
    _, _, defined = text.partition(f'{{{{- define "vramwarden.{template}" -}}}}')
    defined = defined.partition("{{- end }}")[0]
    found: dict[str, list[str]] = {}
    for rule in yaml.safe_load(defined):
        link = f"[{rule['alert'].removeprefix('Vramwarden')}](#{rule['alert'].lower()})"
        found.setdefault(rule["labels"]["severity"], []).append(link)
    yield from table(
        ["severity", "alerts"], ([severity, ", ".join(links)] for severity, links in found.items())
    )


def sharing_codes() -> Iterator[str]:
    """Yield the table of the codes of the verdict on a node's sharing."""
    yield from table(["code", "means"], ([f"`{one}`", one.means] for one in SharingCode))


def events(about: str) -> Iterator[str]:
    """Yield the table of the Events that parts of ours write on objects of a kind."""
    yield from table(
        ["reason", "means", "what to do"],
        ([f"`{one}`", one.means, one.cure] for one in EventReason if one.about == about),
    )


def problem_codes() -> Iterator[tuple[str, str, str]]:
    """Yield each code of a problem, what such problems are about, and what it means."""
    about = ""
    for found in _CODE.finditer(inspect.getsource(Code)):
        about = found["about"] or about
        if found["code"]:
            yield found["code"], about, " ".join(found["means"].split())


def codes() -> Iterator[str]:
    """Yield the table of the codes of problems."""
    rows = ([f"`{code}`", about, means] for code, about, means in problem_codes())
    yield from table(["code", "about", "means"], rows)
