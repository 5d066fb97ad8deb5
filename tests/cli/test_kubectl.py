"""The command as a plugin of kubectl: its name, and what it answers to a Tab."""

from __future__ import annotations

import sys

import pytest

from webhook.cli import kubectl


@pytest.fixture
def completed(monkeypatch, capsys):
    """Return a function that completes words, as kubectl asks for it."""

    def complete(*words):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-vramwarden", *words])
        kubectl.complete()
        return capsys.readouterr().out.splitlines()

    return complete


def test_commands_come_with_what_they_do(completed):
    (top, last) = completed("to")
    assert top.startswith("top\tShow who was promised and who uses ")
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


def test_help_says_how_it_was_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-vramwarden", "top", "--help"])
    with pytest.raises(SystemExit) as ended:
        kubectl.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl vramwarden top [OPTIONS]")
