"""The command as a kubectl plugin: its name and its completion."""

from __future__ import annotations

import sys
from threading import Event

import pytest

from tests.support.api_server import write_kubeconfig
from tests.support.clusters import a_cluster, a_node, a_pod, team_nodes
from webhook import options
from webhook.cli.main import complete_for_kubectl, run_as_kubectl_plugin
from webhook.core.kinds.nodes import write_gpu_node


@pytest.fixture
def completed(monkeypatch, capsys):
    """Return a function that completes arguments like kubectl."""

    def complete(*words):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-vramwarden", *words])
        complete_for_kubectl()
        found, said = capsys.readouterr()
        assert said == ""
        return found.splitlines()

    return complete


def test_commands_are_completed_with_a_description(completed):
    (top, last) = completed("to")
    assert top.startswith("top\tShow how much GPU memory is promised")
    assert last == ":4"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["top", ""], ["nodes", "pods", "workloads", ":4"]),
        (["top", "n"], ["nodes", ":4"]),
        (["top", "--sort", ""], ["used", "cap", "peak", "free", "idle", ":4"]),
        (["top", "-o", "j"], ["json", ":4"]),
        (["nothing", "x"], [":4"]),
        (["top", "--kubeconfig", ""], [":0"]),
        (["admit", "a"], [":0"]),
        (["admit", "-f", ""], [":0"]),
    ],
)
def test_values_are_completed_and_files_are_left_to_the_shell(completed, words, found):
    assert completed(*words) == found


def test_options_are_completed(completed):
    *found, last = completed("top", "--so")
    assert [line.partition("\t")[0] for line in found] == ["--sort"]
    assert last == ":4"


def test_without_a_word_all_commands_fit(completed):
    names = {line.partition("\t")[0] for line in completed()}
    assert {"top", "explain", "advise", "check", ":4"} <= names


def test_help_shows_the_name_of_the_plugin(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-vramwarden", "top", "--help"])
    with pytest.raises(SystemExit) as ended:
        run_as_kubectl_plugin()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl vramwarden top [OPTIONS]")


DEPLOYMENT = {
    "apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "team-a"}, "spec": {},
}  # fmt: skip


@pytest.fixture
def cluster(api_server, monkeypatch):
    """Point KUBECONFIG at a cluster in which team-a has pods."""
    write_kubeconfig(api_server.kubeconfig, api_server.url, namespace="team-a")
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    names = {"team-a": ("eval", "llama", "llama-2"), "team-b": ("other",)}
    pods = [a_pod(name, namespace=of) for of, each in names.items() for name in each]
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names
    ]
    figures = map(write_gpu_node, a_cluster(team_nodes()).figures)
    return api_server.add(*pods, *namespaces, DEPLOYMENT, *figures)


TAB = [
    (["explain", ""], ["eval", "llama", "llama-2"]),
    (["explain", "ll"], ["llama", "llama-2"]),
    (["explain", "-n", "team-b", ""], ["other"]),
    (["explain", "--namespace=team-b", ""], ["other"]),
    (["explain", "deploy/"], ["deploy/web"]),
    (["explain", "pod/e"], ["pod/eval"]),
    (["explain", "po", "e"], ["eval"]),
    (["explain", "deployment", ""], ["web"]),
    (["explain", "nothing", ""], []),
    (["explain", "nothing/"], []),
    (["top", "pods", "l"], ["llama", "llama-2"]),
    (["top", "nodes", ""], ["n1", "n2", "n3"]),
    (["top", "--node", "n"], ["n1", "n2", "n3"]),
    (["top", "-n", ""], ["team-a", "team-b"]),
    (["advise", "--namespace", "team-b"], ["team-b"]),
    (["check", "--test-namespace", ""], ["team-a", "team-b"]),
    (["report", "--release", "team-a"], ["team-a"]),
    (["certs", "status", "-n", "x"], []),
    (["simulate", "--context", ""], ["c"]),
]


@pytest.mark.parametrize(("words", "found"), TAB, ids=" ".join)
def test_names_of_the_cluster_are_completed(completed, cluster, words, found):
    assert completed(*words) == [*found, ":4"]


def test_nodes_are_completed_if_none_has_figures(completed, cluster):
    cluster.unknown.add("gpunodes")
    cluster.add(a_node("plain").stored)
    assert completed("top", "--node", "") == ["plain", ":4"]


def test_typed_options_apply_to_names(completed, cluster, tmp_path):
    other = write_kubeconfig(tmp_path / "other", cluster.url, namespace="team-b")
    typed = ["--kubeconfig", str(other), "--as=eve", "--as-group=g"]
    assert completed("explain", *typed, "") == ["other", ":4"]
    sent = cluster.asked[-1].headers
    assert (sent["Impersonate-User"], sent["Impersonate-Group"]) == ("eve", "g")


@pytest.mark.parametrize("fault", ["denied", "away", "slow", "no kubeconfig"])
def test_nothing_is_printed_if_no_name_is_known(completed, cluster, monkeypatch, tmp_path, fault):
    over = Event()
    if fault == "denied":
        cluster.denied.add(("list", "pods"))
    elif fault == "away":
        cluster.fails("GET", 0, forever=True)
    elif fault == "slow":
        monkeypatch.setattr(options, "_COMPLETION_TIMEOUT_S", 0.1)
        cluster.fails("GET", lambda _: over.wait(), forever=True)
    else:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert completed("explain", "") == [":4"]
    over.set()
