# ruff: noqa: INP001 - a script: it is in no package and no wheel
"""Write the generated files and blocks: `make generate`.

| generated | from |
| --- | --- |
| policies/policy.schema.json, blocks NAME-fields | the models in webhook/adapters/policy |
| the chart's files/default.yaml | policies/default.yaml |
| the chart's files/admission.json | core/pod/complexity.py, core/nvidia/injection.py of webhook |
| the chart's files/values.json | the key `form` in the chart's values.schema.json |
| block exempt-namespaces | the rule `system` of policies/default.yaml |
| block chart-values | the chart's values.yaml and values.schema.json |
| block denial-reasons | `Reason` in webhook/core/pod/findings.py |
| blocks pod-events, node-events | `EventReason` in webhook/core/node/events.py |
| block problem-codes | `Code` in webhook/tools/problems/problem.py |
| block sharing-codes | `SharingCode` in webhook/core/node/verdict.py |
| block commands | `--help` of each vramwarden command, and recorded outputs of the tests |
| blocks alerts, node-alerts | templates/monitoring.yaml of the chart |
| blocks webhook-metrics, sentry-metrics | the metrics that both register |
| block version, tag of the image in deploy/laptop.md | `__version__` in webhook/__init__.py |
| deploy/pictures/top.svg | the page of `vramwarden top -o html`, by deploy/picture.py |

A block is between the lines `<!-- generated: NAME -->` and `<!-- end -->` of a Markdown file, or
between `# generated: NAME` and `# end` of the chart's values.yaml and Chart.yaml.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import yaml

from deploy import references
from deploy.references import table
from webhook import __version__
from webhook.adapters.policy.schema import json_schema
from webhook.core.nvidia.injection import INJECTORS, LIKE_INJECTORS
from webhook.core.pod.complexity import CEL_LIMITS, UPDATE_LIMITS
from webhook.core.pod.findings import Reason

Json = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart" / "vramwarden"
OWN_NAMESPACES: Final = frozenset({"vramwarden-system", "vramwarden-sentry"})
"""Default names of the namespaces that the chart creates and always exempts."""
_DEFAULT_POLICY: Final = ROOT / "policies" / "default.yaml"
_VALUES: Final = CHART / "values.yaml"
_CHART_FILE: Final = CHART / "Chart.yaml"
_LAPTOP: Final = ROOT / "deploy" / "laptop.md"
_TAG: Final = re.compile(r"\b(vramwarden/(?:vramwarden|enforcer)):\d+\.\d+\.\d+\b")
_SHORT: Final = 40
_FIELDS: Final = {
    "policy-fields": r"apiVersion|kind|metadata.*|spec\.wholeGPUResources",
    "class-fields": r"spec\.classes.*",
    "rule-fields": r"spec\.rules|name|action|message",
    "match-fields": r"match\..*",
    "demand-fields": r"(memory|gpuCount|classes)\..*",
    "pod-fields": r"(nodeSelector|tolerations|runtimeClassName|env|programs).*",
    "bypass-fields": r"visibleDevices|isolation|hostPaths|capabilities|resourceClaims",
    "accounting-fields": r"translateWholeGPU|accounting|timeSlicedResource|placement",
    "enforcement-fields": r"enforcement\..*",
    "example-fields": r"spec\.examples.*",
}
"""Patterns of field names without `spec.rules[].`, keyed by the block of policies/fields.md."""
_WITHOUT_ROWS: Final = re.compile(r"(tolerations|env)\[\]\.|\.except\.")
"""Regular expression for fields without a row: Kubernetes' own, and exceptions of `match`."""
_BEGIN: Final = re.compile(r"^(?:<!--|#) generated: (.+?)(?: -->)?$", re.MULTILINE)
_END: Final = frozenset({"<!-- end -->", "# end"})


class GenerateError(Exception):
    """Raised if a file cannot be generated. The message states the cause and the fix."""


def main() -> int:
    """Write every outdated file. Sources are written before the files generated from them."""
    status = 0
    for path in targets():
        shown = path.relative_to(ROOT)
        try:
            made = content(path)
        except GenerateError as error:
            sys.stderr.write(f"{shown} is left as it is: {error}\n")
            status = 1
            continue
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            path.write_text(made, encoding="utf-8")
            sys.stdout.write(f"{shown}\n")
    return status


def targets() -> list[Path]:
    """Return the files that are generated or contain a generated block."""
    return list(dict.fromkeys([_VALUES, _CHART_FILE, _LAPTOP, *_with_blocks(), *_FILES]))


def content(path: Path) -> str:
    """Return the up-to-date content of a file. Raises GenerateError."""
    if path in _FILES:
        return _FILES[path]()
    text = _regenerate_blocks(path.read_text(encoding="utf-8"))
    return _TAG.sub(rf"\1:{__version__}", text) if path == _LAPTOP else text


def block_names(path: Path) -> list[str]:
    """Return the names of the blocks in a file."""
    return _BEGIN.findall(path.read_text(encoding="utf-8"))


def policy_fields(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield path and schema of every policy field. NAME in a path is a user's key."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}{name}", field
        yield from policy_fields(field, f"{path}{name}.")
        yield from policy_fields(field.get("items", {}), f"{path}{name}[].")
        yield from policy_fields(field.get("additionalProperties") or {}, f"{path}{name}.NAME.")


def values() -> Json:
    """Return the chart's default values."""
    return dict(yaml.safe_load(_VALUES.read_text(encoding="utf-8")))


def values_schema() -> Json:
    """Return the JSON schema of the chart's values."""
    return dict(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))


def chart_values(schema: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield path and schema of every chart value, except groups of values.

    `issuerRef` is set as a whole, so it counts as one value.
    """
    for name, value in schema["properties"].items():
        if value.get("properties") and name != "issuerRef":
            for path, nested in chart_values(value):
                yield (name, *path), nested
        else:
            yield (name,), value


def _with_blocks() -> Iterator[Path]:
    """Yield the Markdown files that contain a block, except those in hidden folders."""
    for entry in sorted(ROOT.iterdir()):
        if not entry.name.startswith("."):
            pages = entry.rglob("*.md") if entry.is_dir() else [entry] * (entry.suffix == ".md")
            yield from sorted(path for path in pages if block_names(path))


def _regenerate_blocks(text: str) -> str:
    """Return a text with up-to-date blocks. Raises GenerateError."""
    lines: list[str] = []
    name = ""
    for line in text.split("\n"):
        if begin := _BEGIN.fullmatch(line):
            if name:
                raise GenerateError(f"block {name} has no end before {line}")
            name = begin[1]
            if name not in BLOCKS:
                raise GenerateError(f"no block is called {name}; there are {', '.join(BLOCKS)}")
            lines += [line, *BLOCKS[name]()]
        elif not name or line in _END:
            lines.append(line)
            name = ""
    if name:
        raise GenerateError(f"block {name} has no end")
    return "\n".join(lines)


def _policy_fields(pattern: str) -> Iterator[str]:
    """Yield a table of the policy fields whose names match a pattern."""
    named = ((path.removeprefix("spec.rules[]."), field) for path, field in _described_fields())
    yield from table(
        ["field", "default", "what it is"],
        (
            [_entry(name), _policy_default(field), field["description"]]
            for name, field in named
            if re.fullmatch(pattern, name)
        ),
    )


def _described_fields() -> Iterator[tuple[str, Json]]:
    """Yield path and schema of each policy field that has a row."""
    for path, field in policy_fields(json_schema()):
        is_group = "properties" in field and "default" not in field
        if not is_group and not _WITHOUT_ROWS.search(path):
            yield path, field


def _policy_default(field: Json) -> str:
    if "default" not in field:
        return ""
    default = field["default"]
    text = default if default and isinstance(default, str) else json.dumps(default)
    return f"`{text}`" if len(text) <= _SHORT else "see `default.yaml`"


def _chart_values() -> Iterator[str]:
    """Yield a heading and a table for each section of the chart's values.yaml."""
    defaults, sections = values(), _sections()
    found = [(path, value) for path, value in chart_values(values_schema()) if path != ("global",)]
    for section, rows in groupby(found, lambda row: sections[row[0][0]]):
        yield from ["", f"## {section}", ""]
        yield from table(
            ["value", "default", "what it is"],
            (
                [_entry(".".join(path)), _value_default(defaults, path), value["description"]]
                for path, value in rows
            ),
        )
    yield ""


def _sections() -> dict[str, str]:
    """Return the section of each top-level value: the nearest line `## SECTION` above it."""
    found, section = {}, ""
    for line in _VALUES.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line[:1].isalpha():
            found[line.partition(":")[0]] = section
    return found


def _entry(name: str) -> str:
    """Return a row's name as a link to its own anchor."""
    anchor = re.sub(r"[^a-z]", "", name.lower())
    return f'<a id="{anchor}" href="#{anchor}">`{name}`</a>'


def _value_default(value: Any, path: tuple[str, ...]) -> str:
    for name in path:
        value = value[name]
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= _SHORT else "see `values.yaml`"


def _denial_reasons() -> Iterator[str]:
    yield from table(
        ["reason", "typical text", "what to do"],
        ([f"`{reason}`", f"`{reason.example}`", reason.cure] for reason in Reason),
    )


def _exempt_namespaces() -> Iterator[str]:
    """Yield the namespaces of rule `system`, except vramwarden's, which are always exempt."""
    policy = yaml.safe_load(_DEFAULT_POLICY.read_text(encoding="utf-8"))
    (system,) = (rule for rule in policy["spec"]["rules"] if rule["name"] == "system")
    for namespace in system["match"]["namespaces"]:
        if namespace not in OWN_NAMESPACES:
            yield f"- {namespace}"


BLOCKS: Final[dict[str, Callable[[], Iterable[str]]]] = {
    **{name: partial(_policy_fields, pattern) for name, pattern in _FIELDS.items()},
    "exempt-namespaces": _exempt_namespaces,
    "version": lambda: [f"version: {__version__}", f"appVersion: {__version__}"],
    "chart-values": _chart_values,
    "denial-reasons": _denial_reasons,
    "problem-codes": references.codes,
    "commands": references.commands,
    "alerts": lambda: references.alerts("alerts"),
    "node-alerts": lambda: references.alerts("nodeAlerts"),
    "pod-events": lambda: references.events("Pod"),
    "node-events": lambda: references.events("Node"),
    "sharing-codes": references.sharing_codes,
    "webhook-metrics": lambda: references.metrics_table(references.webhook_metrics().registry),
    "sentry-metrics": lambda: references.metrics_table(
        references.sentry_metrics().registry, common_label="node"
    ),
}


def _encode_json(value: Json, indent: int = 1) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def _admission() -> str:
    # The chart's CEL needs to know which names each annotation has, and whether its value is YAML.
    injectors = {
        key: [names.name, *(["YAML"] if is_yaml else [])]
        for key, (names, is_yaml) in INJECTORS.items()
    }
    bounds = {"judged": dict(UPDATE_LIMITS), "unread": dict(CEL_LIMITS)}
    return _encode_json({**bounds, "injectors": injectors, "likeInjectors": LIKE_INJECTORS})


def _values() -> str:
    values = chart_values(values_schema())
    return _encode_json(
        {".".join(path): value["form"] for path, value in values if "form" in value}
    )


def _top_picture() -> str:
    from deploy.picture import top_picture  # noqa: PLC0415 - it imports tests, which few users need

    return top_picture()


_FILES: Final[dict[Path, Callable[[], str]]] = {
    ROOT / "policies" / "policy.schema.json": lambda: _encode_json(json_schema(), 2),
    CHART / "files" / "admission.json": _admission,
    CHART / "files" / "values.json": _values,
    CHART / "files" / "default.yaml": lambda: _DEFAULT_POLICY.read_text(encoding="utf-8"),
    ROOT / "deploy" / "pictures" / "top.svg": _top_picture,
}

if __name__ == "__main__":
    sys.exit(main())
