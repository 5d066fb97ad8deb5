"""Pages name only things that exist, and everything that exists is documented."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys

import click
import pytest

from deploy.generate import policy_fields
from tests.support.page_commands import PAGES, all_commands, in_sentences
from tests.support.paths import DEPLOY, ROOT
from tests.support.pods import a_container, a_pod, a_policy, a_request, a_rule
from tests.support.run_command import runner
from webhook import names
from webhook.adapters.policy.schema import json_schema
from webhook.cli.main import main
from webhook.core.admission.decide import decide
from webhook.core.admission.decision import Phase
from webhook.core.documentation import Page
from webhook.core.node.events import EventReason
from webhook.core.nvidia.memory_flags import PROGRAMS
from webhook.core.nvidia.programs import FRACTION_REFERENCE, PROGRAM_VARIABLES, Program
from webhook.core.nvidia.variables import VISIBLE_DEVICES_ENV, DeviceNames
from webhook.core.pod.findings import Reason
from webhook.core.pod.memory_annotation import HELPER_CONTAINERS
from webhook.core.policy.cluster import UNKNOWN_CLUSTER
from webhook.core.policy.model import MemoryBounds

CHART = DEPLOY / "chart" / "vramwarden"
README = (ROOT / "README.md").read_text()
PODS = (ROOT / "policies" / "pods.md").read_text()
FRAMEWORKS = (ROOT / "policies" / "frameworks.md").read_text()
VLLM = (ROOT / "policies" / "recipes" / "vllm.yaml").read_text()


def subcommands(command):
    """Return the subcommands by name, or none if the command is no group."""
    names = command.list_commands(None) if isinstance(command, click.Group) else ()
    return [(name, command.get_command(None, name)) for name in names]


def commands(group, path=()):
    """Yield the path of every command and group."""
    yield path
    for name, command in subcommands(group):
        yield from commands(command, (*path, name))


IN_CHECKOUT = re.compile(
    r"(?<![\w/-])((?:deploy|policies|certs|webhook)/[\w-]+|SECURITY|README)\.md"
    r"(#[\w-]+)?( in the documentation)?"
)
"""Regular expression for a page in a message, its anchor, and words that mark it as remote."""


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_says_what_users_read_and_what_to_do(reason):
    assert reason.example
    assert reason.cure
    assert not {"|", "\n"} & {*reason.example, *reason.cure}  # both are table cells


@pytest.mark.parametrize("reason", EventReason)
def test_every_event_says_what_it_means_and_each_warning_what_to_do(reason):
    assert reason.means
    assert bool(reason.cure) >= reason.warning
    assert not {"|", "\n"} & {*reason.means, *reason.cure}


@pytest.mark.parametrize(
    "name",
    [
        names.GPU_MEMORY_ANNOTATION,
        names.GPU_CLASS_ANNOTATION,
        names.GPU_COUNT_ANNOTATION,
        names.ADMITTED_ANNOTATION,
        names.GPU_ANNOTATION,
        names.MANAGED_LABEL,
        names.VRAM_RESOURCE,
        names.ENFORCER_CONTAINER,
    ],
)
def test_every_name_that_users_meet_is_documented(name):
    assert f"`{name}" in PODS


RULE = a_rule(name="team", memory=MemoryBounds(max_bytes=40 * 2**30), max_gpu_count=8)
EXAMPLES = {
    "InvalidQuantity": a_pod("8GB"),
    "TooSmall": a_pod("8192"),
    "TooLarge": a_pod("80Gi"),
    "UnknownContainer": a_pod("trainr=8Gi", containers=[a_container("trainer")]),
    "InvalidCount": a_pod("8Gi", annotations={names.GPU_COUNT_ANNOTATION: "two"}),
    "RequestsLimitsMismatch": a_pod(
        containers=[
            a_container(
                resources={"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "1"}}
            )
        ]
    ),
    "FractionalWholeGPU": a_pod(
        containers=[a_container(resources={"limits": {"nvidia.com/gpu": "500m"}})]
    ),
    "WholeGPUAndShare": a_pod(
        "8Gi", containers=[a_container(resources={"limits": {"nvidia.com/gpu": "1"}})]
    ),
    "ConflictingAmounts": a_pod(
        "8Gi", containers=[a_container(resources={"limits": {names.VRAM_RESOURCE: "4Gi"}})]
    ),
    "NodeSelectorConflict": a_pod("8Gi", nodeSelector={names.NODE_GPU_LABEL: "false"}),
    "HostPID": a_pod("8Gi", hostPID=True),
    "ProcessNamespaceNotShared": a_pod("8Gi", shareProcessNamespace=False),
    "NodeNamePreset": a_pod("8Gi", nodeName="node1"),
    "PrivilegedContainer": a_pod(
        "8Gi", containers=[a_container(securityContext={"privileged": True})]
    ),
    "HostIPC": a_pod("8Gi", hostIPC=True),
    "HostPath": a_pod("8Gi", volumes=[{"name": "v", "hostPath": {"path": "/dev"}}]),
    "Capability": a_pod(
        "8Gi", containers=[a_container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})]
    ),
    "UserNamespace": a_pod("8Gi", hostUsers=False),
    "DriverVariable": a_pod(
        "8Gi", containers=[a_container(env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/x"}])]
    ),
    "DeviceInjection": a_pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    "VisibleDevicesOverride": a_pod(
        containers=[a_container(env=[{"name": VISIBLE_DEVICES_ENV, "value": "all"}])]
    ),
    "ReservedName": a_pod(containers=[a_container(names.ENFORCER_CONTAINER)]),
    "UnsupportedOS": a_pod("8Gi", os={"name": "windows"}),
}


@pytest.mark.parametrize("reason", EXAMPLES)
def test_the_texts_of_the_reasons_are_the_real_ones(reason):
    decision = decide(a_request(EXAMPLES[reason]), a_policy(RULE), UNKNOWN_CLUSTER, Phase.MUTATE)
    details = [finding.detail for finding in decision.findings if finding.reason == reason]
    shown = Reason(reason).example.removesuffix(" ...")
    assert any(detail.startswith(shown) for detail in details), details


@pytest.mark.parametrize("path", list(commands(main)), ids=" ".join)
@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_every_level_of_the_command_has_help_and_version(path, option):
    done = subprocess.run(
        [sys.executable, "-m", "webhook.cli", *path, option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("Usage:", "vramwarden, version"))


def test_every_command_has_a_section_of_the_reference():
    text = (ROOT / "deploy" / "commands.md").read_text()
    sections = re.findall(r"^##+ ([a-z ]+)$", text, re.MULTILINE)
    assert sorted(sections) == sorted(" ".join(path) for path in commands(main) if path)


def test_every_command_and_option_has_help():
    def check(command, path):
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help or parameter.name == "output", (path, parameter.name)
        for name, sub in subcommands(command):
            check(sub, (*path, name))

    check(main, ())


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_exist(document):
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {" ".join(path) for path in commands(main)}
    for line in all_commands(document):
        words = line.split()
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        elif words and words[0].endswith("vramwarden"):
            subcommand = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
            while subcommand and " ".join(subcommand) not in known:
                subcommand.pop()
            assert subcommand, line


@pytest.mark.parametrize("line", in_sentences("vramwarden"))
def test_commands_in_sentences_are_known_with_their_options(line):
    if line != "vramwarden failed on this review":  # the text of a denial
        words = shlex.split(re.split("[>|]", line)[0])[1:]
        done = runner().invoke(main, [*words, "--help"])
        assert done.exit_code == 0, done.stderr


def anchors(text):
    """Return the anchors of a page on GitHub: one per heading and per `id`."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    of_headings = (
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    )
    return {*of_headings, *re.findall(r'<a id="([^"]+)"', text)}


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", document.read_text()):
        if not target.startswith("https://"):
            linked = document.parent / target if target else document
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked.read_text()), f"{target}#{anchor}"


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_repeats_its_table_of_contents(document):
    """The site and GitHub already show one."""
    assert not re.search(r"\]\(#[^)]+\)\s·\s\[", document.read_text())


FIELDS_OF_OTHERS = re.compile(r"(tolerations|env)\[\]\.|\.except\.")
"""Fields that policies/fields.md describes as fields of a pod or of `match`."""


def test_every_field_of_a_policy_has_one_row_and_an_anchor():
    text = (ROOT / "policies" / "fields.md").read_text()
    rows = re.findall(r'^\| <a id="(\w+)" href="#(\w+)">`(.+)`</a> \|', text, re.MULTILINE)
    fields = [
        path.removeprefix("spec.rules[].")
        for path, field in policy_fields(json_schema())
        if ("properties" not in field or "default" in field) and not FIELDS_OF_OTHERS.search(path)
    ]
    assert sorted(name for _, _, name in rows) == sorted(fields)
    assert all(anchor == link == re.sub(r"\W", "", name.lower()) for anchor, link, name in rows)


def shown_texts():
    """Yield the strings that the package and the chart's notes show to users."""
    for path in (ROOT / "webhook").rglob("*.py"):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        described = [node.value for node in nodes if isinstance(node, ast.Expr)]
        for node in nodes:
            if isinstance(node, ast.Constant) and node not in described:
                yield str(node.value)
    for path in (CHART / "templates").iterdir():
        if path.is_file():
            yield re.sub(r"\{\{- /\*.*?\*/\}\}|^#.*", "", path.read_text(), flags=re.DOTALL)


def commented_texts():
    """Yield the comments of the chart's values and of the shipped policy, by line."""
    for path in (
        CHART / "values.yaml",
        CHART / "values.schema.json",
        ROOT / "policies/default.yaml",
    ):
        yield re.sub(r"\n *#", "", path.read_text()).replace("`", "")


def test_messages_name_pages_only_by_the_address_of_the_documentation():
    """A wheel or a chart comes without a checkout."""
    for text in shown_texts():
        assert not IN_CHECKOUT.search(text), text
        assert "deploy/chart" not in text


def test_comments_say_that_a_page_is_in_the_documentation():
    named = [found for text in commented_texts() for found in IN_CHECKOUT.findall(text)]
    assert len(named) > 6
    assert [page for page, _, is_clear in named if not is_clear] == []


IN_CHART = re.compile(r"""include "vramwarden.page" \(dict "root" [$.] "page" "([^"]+)"\)""")


def pages_named():
    """Yield each page that a message, a note or a comment names."""
    yield from (page.value for page in Page)
    for path in (CHART / "templates").iterdir():
        if path.is_file():
            yield from IN_CHART.findall(path.read_text())
    for text in commented_texts():
        yield from (page + anchor for page, anchor, _ in IN_CHECKOUT.findall(text))


def test_every_page_and_section_that_a_message_names_exists():
    named = sorted(set(pages_named()))
    assert {"SECURITY", "deploy/nodes#runtimeclass", "policies/frameworks"} <= {*named}
    for item in named:
        page, _, anchor = item.partition("#")
        text = (ROOT / f"{page}.md").read_text()
        assert not anchor or anchor in anchors(text), item


def test_the_chart_names_pages_by_that_function_alone():
    """Exceptions are alerts and links of panels, which the chart's tests check."""
    calls = [
        line
        for path in (CHART / "templates").iterdir()
        if path.is_file()
        for line in path.read_text().splitlines()
        if 'include "vramwarden.page"' in line
    ]
    assert len(calls) == 6
    others = [line for line in calls if not IN_CHART.search(line)]
    assert sorted(re.search('"(url|runbook_url)"', line)[1] for line in others) == [
        "runbook_url",
        "url",
    ]


def test_the_readme_says_what_it_cannot_do_on_the_first_screen():
    assert README.index("## What it cannot do") < 1000
    assert "NVIDIA driver 570 or newer" in README


def admit(manifest):
    """Return the output of `vramwarden admit` for a manifest under the shipped policy."""
    return subprocess.run(
        [sys.executable, "-m", "webhook.cli", "admit", "-f", "-"],
        input=manifest,
        capture_output=True,
        text=True,
        check=False,
    )


def manifest(page):
    """Return the manifests of a page."""
    return "---\n".join(re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


DEPLOYMENT, SERVERS = manifest(PODS), f"{VLLM}---\n{manifest(FRAMEWORKS)}"


def test_the_deployment_that_users_copy_is_translated():
    done = admit(DEPLOYMENT)
    said = "Deployment default/notebook: translated by rule default (8Gi on 1 GPU)"
    place, _, rest = done.stderr.partition(": ")
    assert (done.returncode, place, rest) == (0, "standard input:6", f"{said}\n1 translated\n")
    assert said in PODS
    assert f"name: {names.ENFORCER_CONTAINER}" in done.stdout


def test_the_servers_that_users_copy_are_translated_without_a_warning():
    done = admit(SERVERS)
    assert done.returncode == 0
    *verdicts, tally = done.stderr.splitlines()
    said = [line.partition(": ")[2].partition(" (")[0] for line in verdicts]
    pods = [f"Pod default/{name}" for name in ("sglang", "triton", "onnx", "ollama")]
    assert said == [
        f"{pod}: translated by rule default" for pod in ["Deployment default/vllm", *pods]
    ]
    assert tally == "5 translated"


@pytest.mark.parametrize("bound", [program.bound for program in PROGRAMS])
def test_without_its_bound_a_server_that_users_copy_is_warned_of(bound):
    assert f"`{bound}`" in FRAMEWORKS
    without = re.sub(rf"{bound}=\S+\w\)", "--other", SERVERS).replace(f"name: {bound}", "name: A")
    warned = [line for line in admit(without).stderr.splitlines() if ": warning: " in line]
    assert len(warned) == (without != SERVERS)
    assert all(f": add {bound}={FRACTION_REFERENCE}; " in line for line in warned)


@pytest.mark.parametrize("name", [names.GPU_MEMORY_MIB_ENV, names.GPU_MEMORY_FRACTION_ENV])
def test_every_variable_that_programs_are_told_is_documented(name):
    assert f"| `{name}` |" in FRAMEWORKS


@pytest.mark.parametrize("program", Program)
def test_every_program_of_a_policy_is_documented_with_its_variables(program):
    (row,) = re.findall(rf"^\|.* \| `{program}` \|$", FRAMEWORKS, re.MULTILINE)
    for setting in PROGRAM_VARIABLES[program]:
        assert f"`{setting.name}" in row


def test_the_known_helpers_are_documented_and_no_others():
    (listed,) = re.findall(r"^Known helpers: (.*?);", PODS, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall("`([^`]+)`", listed)) == sorted(HELPER_CONTAINERS)


def test_every_alert_is_documented_and_no_other():
    pages = [(ROOT / "deploy" / f"{page}.md").read_text() for page in ("alerts", "node-alerts")]
    sections = [item for text in pages for item in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    rules = (ROOT / "deploy/chart/vramwarden/templates/monitoring.yaml").read_text()
    alerts = dict.fromkeys(re.findall(r"- alert: (\w+)", rules))
    assert [section.split()[0] for section in sections] == list(alerts)
    for section in sections:
        said = re.findall(r"^(?:- )?\*\*(.+?):\*\*", section, re.MULTILINE)
        assert said == ["Means", "Can wait", "Do", "Over"], section


@pytest.mark.parametrize("names_of_gpus", DeviceNames)
def test_every_way_to_name_gpus_is_documented(names_of_gpus):
    """Each is documented with the label that selects it."""
    text = (ROOT / "deploy" / "nodes.md").read_text()
    rows = text[text.index(f"| `{names.NODE_DEVICE_NAMES_LABEL}` |") :].partition("\n\n")[0]
    assert f"`{names_of_gpus}`" in rows


WIDTH = 110
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
# Kubernetes' term, keyed by the words that it replaces.
WORDS = {
    "reconciles, restores": r"puts? (it |them |this )?(right|back)\b|put(ting)? right",
    "observed state, desired state": r"what there is, what there should be",
    "probes or scans, each probe, reads": r"\blook(s|ed|ing) at\b|\b(a|each|every|next) looks?\b",
    "reports; says": r"\b(tells|told|telling)\b",
    "deny (admission), reject (anything else), denial": r"\brefus(e|es|ed|ing|al|als)\b",
    "host PIDs": r"\bprocess numbers?\b",
    "retryable": r"\bpassing (error|failure|problem)s?\b",
    "retries": r"\b(try|tries|tried) (anew|again)\b",
    "again": r"\banew\b",
    "forever": r"\bfor ever\b",
    "fix": r"\bmend(s|ed|ing)?\b",
    "except": r"\bbut for\b|\bnone but\b",
}


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_kubernetes_words(document):
    """Code and the table of examples in CONTRIBUTING.md are excluded."""
    text = re.sub(
        r"^\| instead of \|.*?\n\n", "", document.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    prose = CODE.sub(" ", text)
    found = [
        f"{match[0]!r}: write {word!r}"
        for word, dialect in WORDS.items()
        for match in re.finditer(dialect, prose, re.IGNORECASE)
    ]
    assert not found, found


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_has_one_width(document):
    """Tables and code may be wider."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("|")]
    assert not long, long
