"""Exit code of each command, by user and cluster.

0 success, 1 problems found, 2 wrong usage or unreadable input, 3 no response or permission.
"""

from __future__ import annotations

import json
import socket
from functools import partial
from itertools import product

import pytest

from tests.support import pods
from tests.support.api_server import write_kubeconfig
from tests.support.clusters import a_cluster, a_pod, team_nodes
from tests.support.control_planes import ControlPlane
from tests.support.gpu_nodes import READABLE_BY_ALL, define, may_view, store
from tests.support.run_command import runner
from webhook.cli.main import main
from webhook.options import choose_exit_code

POLICY = "apiVersion: vramwarden.io/v1alpha1\nkind: VRAMPolicy\nmetadata: {name: p}\nspec: "
FILES = {
    "good.yaml": json.dumps(pods.a_pod("8Gi")),
    "bad.yaml": json.dumps(pods.a_pod("8GB")),
    "broken.yaml": "a: [",
    "policy.yaml": POLICY + "{rules: [{name: r, action: Enforce}]}\n",
    "wrong.yaml": POLICY + "{rules: 3}\n",
}
ALONE = {
    "admit -f good.yaml": 0,
    "admit -f bad.yaml": 1,
    "admit -f broken.yaml": 2,
    "admit -f bad.yaml -f broken.yaml": 2,
    "policy check policy.yaml": 0,
    "policy check wrong.yaml": 1,
    "policy check none.yaml": 2,
    "policy test policy.yaml": 0,
    "policy test wrong.yaml": 1,
    "policy schema": 0,
    "simulate --nodes broken.yaml": 2,
    "simulate --nodes good.yaml": 2,
    "certs status --cert-dir nowhere": 1,
    "certs issue --cert-dir certs": 0,
    "certs issue --cert-dir good.yaml": 2,
    "version": 0,
    "--version": 0,
    "--help": 0,
    "nothing": 2,
}
"""Commands that do not contact a cluster."""
ASKING = {
    "top": (0, 0, 3),
    "top -A": (0, 0, 3),
    "top nodes": (0, 0, 3),
    "top pods -n theirs": (3, 0, 3),
    "explain llama": (0, 1, 3),
    "explain nothing": (1, 1, 3),
    "explain deploy/web": (1, 1, 3),
    "explain p -n theirs": (3, 1, 3),
    "advise": (3, 3, 3),
    "report": (3, 3, 3),
    "report --policy policy.yaml -n ours": (0, 0, 3),
    "report --policy policy.yaml": (3, 0, 3),
    "report --policy wrong.yaml": (1, 1, 1),
    "check": (3, 1, 3),
    "check --pre": (3, 0, 3),
    "clean --dry-run": (3, 0, 3),
    "simulate": (3, 0, 3),
    "simulate -n ours": (3, 0, 3),
    "certs status --secret a": (3, 1, 3),
    "certs install --secret b": (3, 0, 3),
    "certs rotate --secret c": (3, 1, 3),
}
"""Exit codes of commands for a cluster without vramwarden: with the role `view` in the namespace
`ours`, as administrator, and if the cluster does not respond or denies everything."""
VIEWER, ADMIN, UNANSWERED = range(3)


@pytest.fixture(scope="module")
def plane(can_start_control_planes):
    """Start a separate control plane, since `report` counts all pods of a cluster."""
    with ControlPlane() as started:
        for name in ("ours", "theirs"):
            metadata = {"name": name}
            started.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
            started.ensure_service_account(name)
        define(started.api)
        store(started.api, a_cluster(team_nodes()).figures)
        for item in (may_view("ann", "ours"), *READABLE_BY_ALL):
            started.api.apply(item)
        started.api.create(a_pod("llama", "8Gi", namespace="ours"))
        started.api.create(DEPLOYMENT)
        yield started


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "ours"},
    "spec": {
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": "web"}]},
        },
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Change to a folder with the files of the table."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def codes(commands, *options, why=""):
    """Return the exit code of each command. A failure is one line that contains `why`."""
    found = {}
    for command in commands:
        done = runner().invoke(main, [*command.split(), *options])
        found[command] = done.exit_code
        if done.exit_code == 3 and not done.stdout:
            assert done.stderr.startswith("Error: ")
            assert why in done.stderr
            assert done.stderr.count("\n") == 1 or not why
    return found


def admins(plane, folder, **user):
    """Write an administrator's kubeconfig with a namespace and other fields of the user."""
    content = json.loads(plane.kubeconfig.read_text())
    content["users"][0]["user"] |= user
    content["contexts"][0]["context"]["namespace"] = "ours"
    (folder / "admins").write_text(json.dumps(content))
    return folder / "admins"


def anns(plane, folder):
    return plane.kubeconfig_of(folder, "ann", "people", namespace="ours")


MASTER = ["--as=x", "--as-group=system:masters"]
WHO = {
    "who may view": (VIEWER, anns, []),
    "an administrator": (ADMIN, admins, []),
    "as who may view": (VIEWER, admins, ["--as=ann"]),
    "as the kubeconfig says": (VIEWER, partial(admins, **{"as": "ann"}), []),
    "a flag before the kubeconfig": (ADMIN, partial(admins, **{"as": "ann"}), MASTER),
    "who may not act as that": (UNANSWERED, anns, ["--as=eve"]),
}


@pytest.mark.parametrize(("column", "kubeconfig", "options"), WHO.values(), ids=WHO)
def test_what_a_command_ends_with_depends_on_who_asks(plane, folder, column, kubeconfig, options):
    found = codes(ASKING, f"--kubeconfig={kubeconfig(plane, folder)}", *options)
    assert found == {command: row[column] for command, row in ASKING.items()}


@pytest.mark.parametrize("listens", [False, True], ids=["nobody listens", "nobody answers"])
def test_without_an_answer_it_is_three(folder, listens):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        url = f"http://127.0.0.1:{port}"
        options = [f"--kubeconfig={write_kubeconfig(folder / 'k', url)}", "--request-timeout=200ms"]
        found = codes(ASKING, *options, why=f"{url} does not answer")
    assert found == {command: row[UNANSWERED] for command, row in ASKING.items()}


def test_what_asks_no_cluster_ends_with(folder):
    assert codes(ALONE) == ALONE


def test_of_several_exit_codes_the_first_of_2_1_and_3_counts():
    for several in product(range(4), repeat=3):
        order = sorted(several, key=(2, 1, 3, 0).index)
        assert choose_exit_code(several) == order[0]
    assert choose_exit_code([]) == 0


def test_wrong_usage_is_two(folder):
    every = [item for item in {**ASKING, **ALONE} if not item.startswith("-")]
    assert codes(every, "--as-nobody") == dict.fromkeys(every, 2)
