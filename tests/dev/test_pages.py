"""Commands of the pages, in the variant of `make dev` in which no pod runs."""

from __future__ import annotations

import re
from itertools import filterfalse

import pytest

from tests.dev import run
from tests.support.cluster_programs import find_binary
from tests.support.command_coverage import commands_of
from tests.support.page_commands import blocks, in_sentences
from tests.support.page_reader import Reader
from tests.support.paths import ROOT

COMMANDS = commands_of(__file__)
FINDS = re.compile(r"(\S+/)?vramwarden (advise|check|report|explain)\b")
"""Commands that return 1 for problems, and 3 if they could not read enough."""
CHANGES = re.compile(r"helm (upgrade|rollback) ")
"""Commands with hooks, whose Jobs no kubelet completes."""
BEFORE = {
    "certs/README.md": ["kubectl -n vramwarden-system delete secret vramwarden-key"],
    "deploy/take-the-plugin-off.md": [
        "kubectl delete pod train --ignore-not-found",
        # No controller computes how many pods a PodDisruptionBudget allows to be evicted.
        "kubectl -n vramwarden-system delete poddisruptionbudgets --all",
    ],
}
"""State of the cluster that a page requires."""
SCENE = """\
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: Pod
metadata: {name: held, annotations: {vramwarden.io/gpu-memory: 8Gi}}
spec:
  nodeSelector: {kubernetes.io/hostname: n1}
  containers: [{name: main, image: example}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: infer, namespace: team-a}
spec:
  selector: {matchLabels: {app: infer}}
  template:
    metadata: {labels: {app: infer}, annotations: {vramwarden.io/gpu-memory: 4Gi}}
    spec:
      nodeSelector: {kubernetes.io/hostname: n2}
      containers: [{name: main, image: example}]
"""
"""A pod on one node, and a Deployment on the other node, which a page drains."""
FRAGMENT = re.compile(
    r"kubectl (apply|debug|describe( pod)?|drain|exec|get -o yaml|logs|run|vram.*)$|.*\.\.\."
)
"""Regular expression for fragments of commands in sentences."""
ELSEWHERE = {
    r"kubectl .*\b(logs|exec)\b": "needs a kubelet: tests/e2e/test_03d_pages.py has their like",
    "kubectl .* describe certificate": "cert-manager's kind",
    "kubectl (create serviceaccount|delete -f)": "tests/cluster/test_first_change.py",
    "kubectl kustomize": "of manifests that are the reader's",
    "kubectl apply -f vramwarden/argocd": "Argo CD's kind",
    "kubectl get runtimeclass nvidia": "tells whether there is one",
}
AGENT = (
    "$(kubectl -n vramwarden-system get pods -l app.kubernetes.io/component=agent"
    " -o jsonpath='{.items[0].metadata.name}')"
)


@pytest.fixture(scope="module")
def reader(can_start_control_planes, tmp_path_factory):
    """Return a reader of the pages, with the files that they ask users to write."""
    missing = [run.no_parts(tmp_path_factory.getbasetemp()), *filterfalse(find_binary, run.LACKS)]
    if any(missing):
        pytest.skip(f"needs {'; '.join(filter(None, missing))}")
    with run.from_parts(tmp_path_factory.mktemp("cluster")) as (kubeconfig, _):
        found = Reader(tmp_path_factory.mktemp("reader"), kubeconfig)
        for name, text in files().items():
            (found.folder / name).write_text(text)
        found.run("kubectl apply -f scene.yaml")
        found.run("kubectl -n team-a rollout status deployment infer --timeout=60s")
        found.run("kubectl wait pod held --for=condition=Ready --timeout=60s")
        found.replaced = {
            "IMAGE": "example",
            "NODE": "n2",
            "AGENT": AGENT,
            "POD": "held",
            "deployment/NAME": "deployment/infer",
        }
        yield found


def files():
    """Return the files that the pages ask users to write."""
    teams, *_ = (
        block for block in blocks(ROOT / "policies/change.md", "yaml") if "10-teams" in block
    )
    deployment, *_ = blocks(ROOT / "policies/pods.md", "yaml")
    week, *_ = blocks(ROOT / "deploy/one-week.md", "yaml")
    names = {"10-teams.yaml": teams, "teams.yaml": teams, "deployment.yaml": deployment}
    return {
        **names,
        "scene.yaml": SCENE,
        "week.yaml": week,
        "sizes.csv": "workload,memory\ninfer,4Gi\n",
    }


TYPED = [
    sentence
    for sentence in in_sentences("kubectl")
    if not FRAGMENT.match(sentence) and not any(re.match(where, sentence) for where in ELSEWHERE)
]


@pytest.mark.cluster
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("page", dict.fromkeys(page for page, _ in COMMANDS))
def test_the_commands_of_a_page_run(reader, page):
    for command in BEFORE.get(page, []) + [item for where, item in COMMANDS if where == page]:
        more = " --no-hooks" if CHANGES.match(command) else ""
        reader.run(command + more, *((0, 1, 3) if FINDS.match(command) else ()))


@pytest.mark.cluster
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("line", TYPED)
def test_what_a_sentence_says_to_type_runs(reader, line):
    reader.run(
        re.sub(
            r"(?<=namespace )NAME\w*|(?<=-n )NAMESPACE",
            "default",
            line.replace("policy NAME", "policy"),
        )
    )
