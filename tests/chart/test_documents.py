"""Commands and manifests of the pages for platform teams in deploy/."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import replace

import pytest
import yaml

from deploy.generate import chart_values, policy_fields, values, values_schema
from tests.core.admission.decisions import translate
from tests.support.charts import CHART, DEPLOY, KUBE_VERSION, NAMESPACE, one
from tests.support.control_planes import find_binary
from tests.support.page_commands import asked, commands
from tests.support.paths import ROOT
from tests.support.pods import a_pod, a_rule
from tests.support.run_command import runner
from webhook import __version__
from webhook.adapters.policy.files import PolicySource
from webhook.adapters.policy.schema import json_schema
from webhook.cli.main import main
from webhook.core.documentation import Page
from webhook.core.node.access import DriverStatus, explain_unready
from webhook.core.node.events import EventReason
from webhook.core.node.inventory import Scan, find_skip_reasons
from webhook.core.nvidia.drivers import Fault, ScannedGpu
from webhook.core.policy.model import EnforceBy, Placement
from webhook.names import NODE_GPU_LABEL, VRAM_RESOURCE, WEBHOOK_CONFIGURATION

NODES = DEPLOY / "nodes.md"
TAKE_OFF = DEPLOY / "take-the-plugin-off.md"
LAPTOP = DEPLOY / "laptop.yaml"
LOADED = f"vramwarden/vramwarden:{__version__}"


@pytest.fixture(scope="module")
def laptop(helm):
    """Render the chart with the values for a laptop, as on the page."""
    where = ("--namespace", NAMESPACE, "--kube-version", KUBE_VERSION)
    text = helm.run("template", "vramwarden", str(CHART), *where, "--values", str(LAPTOP))
    return [thing for thing in yaml.safe_load_all(text) if thing]


def test_a_laptop_runs_the_image_that_the_page_loads(laptop):
    (line,) = asked("kind load")
    line = line.partition(" #")[0]
    assert line.split() == ["kind", "load", "docker-image", LOADED]
    assert f"minikube image load {LOADED}\n" in (DEPLOY / "laptop.md").read_text()
    for kind, name in (("Deployment", "vramwarden-webhook"), ("DaemonSet", "vramwarden-agent")):
        (container,) = one(laptop, kind, name)["spec"]["template"]["spec"]["containers"]
        assert container["image"] == LOADED
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_on_a_laptop_every_node_says_that_it_has_memory_and_nobody_measures_it(laptop, tmp_path):
    pod = one(laptop, "DaemonSet")["spec"]["template"]["spec"]
    assert "--vram=16Gi" in pod["containers"][0]["args"]
    assert not {"affinity", "nodeSelector"} & set(pod)
    assert pod["tolerations"] == [{"operator": "Exists"}]
    for name, text in one(laptop, "ConfigMap", "vramwarden-policies")["data"].items():
        (tmp_path / name).write_text(text)
    (rule,) = PolicySource(tmp_path, "vramwarden/enforcer:1").current.rules
    assert (rule.placement, rule.enforcement.by) == (Placement.NONE, EnforceBy.NONE)
    assert (rule.match.namespaces, rule.runtime_class_name) == (("*",), None)


@pytest.fixture
def kubectl(control_plane):
    if not find_binary("kubectl"):
        pytest.skip("needs kubectl")
    return control_plane.kubectl


@pytest.fixture
def node(api):
    """Return the name of a node that offers whole GPUs and shared memory."""
    name = "with-gpus"
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    amounts = {"nvidia.com/gpu": "8", "vramwarden.io/vram": "16Gi", "cpu": "8"}
    change = {"status": {"capacity": amounts, "allocatable": amounts}}
    kind = "application/merge-patch+json"
    api.request("PATCH", f"/api/v1/nodes/{name}/status", change, content_type=kind)
    yield name
    api.request("DELETE", f"/api/v1/nodes/{name}")


def test_the_commands_that_show_nodes_show_them(kubectl, node):
    lines = commands(NODES, "custom-columns")
    shown = [kubectl(*shlex.split(line)[1:]) for line in lines]
    assert [item.stderr for item in shown] == ["", ""]
    assert re.search(rf"^{node} +16Gi +8$", shown[0].stdout, re.MULTILINE)
    header = shown[1].stdout.splitlines()[0].split()
    assert header[-4:] == ["GPU-COUNT", "DEVICE-NAMES", "ENFORCEMENT", "SHARE"]
    described = commands(NODES, "kubectl describe node")[1].replace("NODE", node)
    assert kubectl(*shlex.split(described)[1:]).returncode == 0


def test_the_notes_say_how_to_see_what_is_shared_where_a_driver_is_asked(live_helm):
    command = commands(NODES, "custom-columns")[0]
    told = {"a driver": live_helm.values(None), "nobody": ("--values", str(LAPTOP))}
    told = {
        asked: live_helm.run(
            *("install", "vramwarden", str(CHART), "--namespace", NAMESPACE),
            *("--dry-run=client", *values),
        ).partition("NOTES:")[2]
        for asked, values in told.items()
    }
    shared, ask = (told["a driver"].index(text) for text in (command, "Then ask for GPU memory"))
    assert shared < ask
    assert "nvidia.com/gpu" not in told["nobody"]


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("", "deploy/take-the-plugin-off.md in the documentation."),
        ("https://d.example/{page}.html", "https://d.example/deploy/take-the-plugin-off.html."),
    ],
)
def test_the_notes_lead_to_pages_as_messages_do(live_helm, url, page):
    values = live_helm.values({"documentationURL": url})
    command = ("install", "vramwarden", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    notes = live_helm.run(*command, *values).partition("NOTES:")[2]
    assert f"How to take it off:\n{page}\n" in notes
    assert Page.PLUGIN_AFFINITY.url(url) in page


LABELED = "".join(page.read_text() for page in (NODES, TAKE_OFF, DEPLOY / "coming-over.md"))
LABELING = sorted(
    set(re.findall(r"(?:^ *|`)(kubectl label node NODE [^`\n]+)", LABELED, re.MULTILINE))
)


@pytest.mark.parametrize("line", LABELING)
def test_the_labels_can_be_set_also_where_they_are_there(kubectl, api, node, line):
    """NVIDIA's operator or an earlier step may have set the labels."""
    key, to_set, value = line.split()[4].partition("=")
    key = key if to_set else key.removesuffix("-")
    before = {"metadata": {"labels": {key: "true"}}}
    kind = "application/merge-patch+json"
    api.request("PATCH", f"/api/v1/nodes/{node}", before, content_type=kind)
    done = kubectl(*shlex.split(line.replace("NODE", node))[1:])
    assert done.returncode == 0, done.stderr
    labels = api.request("GET", f"/api/v1/nodes/{node}")["metadata"].get("labels") or {}
    assert labels.get(key) == (value if to_set else None)


RUNBOOK = (DEPLOY / "alerts.md").read_text() + (DEPLOY / "node-alerts.md").read_text()
FIND_OUT = sorted(set(re.findall(r"^(?:kubectl|vramwarden) .+$", RUNBOOK, re.MULTILINE)))


@pytest.fixture(scope="module")
def release(control_plane, helm):
    """Create the objects that the pages on outages name: a Deployment and a policy."""
    api = control_plane.api
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    rendered = helm.render()
    named = one(rendered, "Deployment"), one(rendered, "ConfigMap", "vramwarden-policies")
    for thing in named:
        api.apply(thing)
    yield
    for thing in named:
        api.delete(thing)


@pytest.mark.parametrize("line", [item for item in FIND_OUT if item.startswith("kubectl")])
def test_what_kubectl_is_asked_at_night_it_answers(control_plane, release, node, line):
    done = control_plane.shell(line.replace("NODE", node))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [item for item in FIND_OUT if not item.startswith("kubectl")])
def test_what_the_command_is_asked_at_night_it_knows(line):
    program, *words = shlex.split(line)
    done = runner().invoke(main, [*words, "--help"])
    assert (program, done.exit_code) == ("vramwarden", 0), done.stderr


@pytest.mark.parametrize("by", EnforceBy)
def test_what_is_sought_after_an_outage_is_in_a_translated_pod_of_every_tier(by):
    (line,) = (
        command for command in commands(DEPLOY / "outage.md", "kubectl run") if "run x" in command
    )
    _, _, sought = line.rpartition(" | grep ")
    written = yaml.safe_dump(translate(a_pod("1Gi"), a_rule(enforcement={"by": by})))
    assert sought in written
    assert sought not in yaml.safe_dump(a_pod("1Gi"))
    assert f"prints\n`{sought}`" in (DEPLOY / "outage.md").read_text()


def manifests():
    """Return the YAML documents of both pages, keyed by kind."""
    text = NODES.read_text() + TAKE_OFF.read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [document for block in blocks for document in yaml.safe_load_all(block)]
    return {document.get("kind", "affinity"): document for document in found}


def test_the_manifests_are_those_that_an_api_server_takes(kubectl):
    found = manifests()
    assert set(found) == {"RuntimeClass", "affinity"}
    template = {
        "metadata": {"labels": {"name": "plugin"}},
        "spec": {"containers": [{"name": "plugin", "image": "plugin"}], **found["affinity"]},
    }
    plugin = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"name": "plugin"}}, "template": template},
    }
    for manifest in (found["RuntimeClass"], plugin):
        done = kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-",
                       stdin=json.dumps(manifest))  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_plugin_heeds_the_label_that_the_steps_set():
    (term,) = manifests()["affinity"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    assert expression["operator"] == "NotIn"
    (value,) = expression["values"]
    assert f"kubectl label node NODE {expression['key']}={value} --overwrite" in LABELING


def test_what_the_agent_says_is_listed():
    """Only messages of the agent that are the same on each node are compared."""
    waiting = DriverStatus(scanned_s=0.0, answered_s=0.0, fault=Fault.LIBRARY_MISSING)
    said = [explain_unready(replace(waiting, loaded_since_s=since)) for since in (None, 0.0)]
    mig = Scan(
        gpus=(ScannedGpu(uuid="GPU-1", product="A100", index=0, usable_bytes=2**30, mig=True),)
    )
    said += find_skip_reasons(mig).values()
    listed = re.findall(r"^\| (?:log|unready): \*(.+?)\* \|", NODES.read_text(), re.MULTILINE)
    assert len(listed) == len(said)
    assert all(words in sentence for words, sentence in zip(listed, said, strict=True)), said


def test_what_autoscalers_need_is_printed_as_documented():
    done = runner().invoke(main, ["agent", "--once", "--dry-run", "-o", "tags", "--vram", "22Gi"])
    assert done.exit_code == 0, done.stderr
    tags, overlay, pool = yaml.safe_load_all(done.stdout)
    prefix = "k8s.io/cluster-autoscaler/node-template"
    assert tags[f"{prefix}/resources/{VRAM_RESOURCE}"] == "22Gi"
    assert f"{prefix}/label/{NODE_GPU_LABEL}" in tags
    text = (DEPLOY / "autoscaling.md").read_text()
    assert f"`{prefix}/resources/{VRAM_RESOURCE}`, and `.../label/...`" in text
    azure = f"{prefix}/resources/{VRAM_RESOURCE}".replace("/", "_")
    assert f"`{azure}`" in text
    assert overlay["kind"] == "NodeOverlay"
    assert NODE_GPU_LABEL in pool["spec"]["template"]["metadata"]["labels"]
    assert "`NodeOverlay=true`" in text


SECURITY = (ROOT / "SECURITY.md").read_text()


def test_every_switch_that_security_names_exists():
    chart = {path for path, _ in chart_values(values_schema())}
    policy = {path.rpartition(".")[2]: field for path, field in policy_fields(json_schema())}
    row = r"^\| `([\w.]+)(?:: ([\w\[\]]+))?`.* \| .*\[(chart|policy)\]"
    rows = re.findall(row, SECURITY, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `[\w.]+(?:: .+?)?` ", SECURITY, re.MULTILINE))
    for name, value, where in rows:
        if where == "chart":
            assert tuple(name.split(".")) in chart, name
        else:
            field = policy[name.rpartition(".")[2]]
            assert {"[]": "array"}.get(value, value) in json.dumps(field), name


def test_every_policy_of_the_fence_is_named_with_what_it_buys():
    named = re.findall(r"^\| `fence\.(\w+)`", SECURITY, re.MULTILINE)
    policies = [name for name, value in values()["fence"].items() if isinstance(value, bool)]
    assert sorted(named) == sorted(policies)


def test_what_the_webhooks_token_reads_is_what_security_says(helm):
    objects = helm.render()
    rules = [
        rule
        for kind in ("ClusterRole", "Role")
        for rule in one(objects, kind, "vramwarden-webhook")["rules"]
        if {"get", "list", "watch"} & {*rule["verbs"]} and rule["apiGroups"] != ["vramwarden.io"]
    ]
    of_all = {name for rule in rules if not rule.get("resourceNames") for name in rule["resources"]}
    assert of_all == {"pods", "nodes", "namespaces", "resourceclaims", "configmaps"}
    assert "read all pods, nodes, namespaces and resource claims" in SECURITY
    named = {
        (what, name)
        for rule in rules
        for what in rule["resources"]
        for name in rule.get("resourceNames", ())
    }
    assert named == {
        ("secrets", "vramwarden-certificate"),
        ("runtimeclasses", "nvidia"),
        ("configmaps", "vramwarden-fence"),
        ("mutatingwebhookconfigurations", WEBHOOK_CONFIGURATION),
        ("validatingwebhookconfigurations", WEBHOOK_CONFIGURATION),
    }
    assert "- read the key of our server's certificate" in SECURITY


def test_the_sentry_reads_no_memory_file_or_command_line_of_others():
    """SECURITY.md states this: command lines may contain secrets."""
    secret = re.compile(r"/(cmdline|environ|mem|s?maps|root|cwd|exe|fd)\b")
    paths = [*(ROOT / "webhook/sentry").glob("*.py"), ROOT / "webhook/adapters/node_processes.py"]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    assert [text for text in texts if isinstance(text, str) and secret.search(text)] == []
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
    assert "read_file" in names
    assert "identify" not in names  # `processes.identify` reads command lines
    assert "reads neither memory nor files of a pod, nor command lines" in SECURITY


def test_every_test_that_security_names_exists():
    rows = re.findall(r"^\| .+ \| \[tests/(\w+)\]\(\S+\): (.+) \|$", SECURITY, re.MULTILINE)
    assert len(rows) == SECURITY.count("): `test_") > 2
    for folder, patterns in rows:
        for pattern in re.findall("`(.+?)`", patterns):
            assert list((ROOT / "tests" / folder).glob(pattern)), pattern


ELSEWHERE = {reason for reason in EventReason if reason.startswith(("GPU", "VRAM", "Shared"))}
"""Events about GPUs and sharing, which the node's verdict explains."""


def test_every_event_of_a_node_is_listed_and_no_other():
    known = (
        {reason for reason in EventReason if reason.about == "Node"}
        - ELSEWHERE
        - {EventReason.DRAIN}
    )
    listed = re.findall(r"^\| Event `(\w+)` \|", NODES.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(known)
