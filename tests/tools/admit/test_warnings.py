"""Warnings of the webhook are lines of `admit` and deny nothing."""

from __future__ import annotations

import pytest

from tests.tools.admit.runs import POD, run

PLACE = "Pod default/train: warning: "
MISTYPED = POD.replace("gpu-memory", "gpu-mem")
UNREAD = (
    "Pod default/train: finding: metadata.annotations[vramwarden.io/gpu-mem]: write "
    "vramwarden.io/gpu-memory: 8Gi in its place; nothing reads this key"
)
LEFT_ALONE = "Pod default/train: left alone (asks for no VRAM)"
SERVER = POD.replace("image: example", "image: vllm/vllm-openai")
BOUND = "--gpu-memory-utilization=$(VRAMWARDEN_GPU_MEMORY_FRACTION)"
UNBOUNDED = (
    f"{PLACE}spec.containers[0].args: add {BOUND}; vLLM takes nine tenths of the GPU, not this "
    "container's 8Gi"
)
UNSOLD = (
    "metadata.annotations[vramwarden.io/gpu-memory]: ask for 288Gi or less; 2048Gi is more than "
    "any GPU sold has: this pod will never start"
)
TRANSLATED = "Pod default/train: translated by rule default (8Gi on 1 GPU)"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(POD, [TRANSLATED], id="a key that is read"),
        pytest.param(SERVER, [TRANSLATED, UNBOUNDED], id="a server that nothing bounds"),
        pytest.param(
            POD.replace("8Gi", "2Ti"),
            [TRANSLATED.replace("8Gi", "2Ti"), f"{PLACE}{UNSOLD}"],
            id="an amount that no GPU has",
        ),
        pytest.param(
            SERVER + f"    args: [{BOUND}]\n", [TRANSLATED], id="a server with what the line names"
        ),
    ],
)
def test_a_warning_is_a_line_and_no_denial(text, lines):
    result = run(text)
    assert (result.code, result.err.splitlines()) == (0, lines)
    assert result.out != text


def test_a_key_of_ours_that_nothing_reads_is_a_finding():
    result = run(MISTYPED)
    assert (result.code, result.out) == (1, MISTYPED)
    assert result.err.splitlines() == [LEFT_ALONE, UNREAD]


def test_a_denied_pod_has_the_line_too():
    result = run(MISTYPED + "    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]\n")
    denied, line = result.err.splitlines()
    assert denied.startswith("Pod default/train: denied: VisibleDevicesOverride: ")
    assert (result.code, line) == (1, UNREAD)


def test_the_line_is_coloured_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert f"\x1b[31m{UNREAD}\x1b[0m\n" in run(MISTYPED, terminal=True).err
    word, _, text = UNREAD.removeprefix("Pod default/train: ").partition(": ")
    summary = run(MISTYPED, terminal=True, output="summary").out
    assert f"\x1b[31m  {word:11} a.yaml:6: {text}\x1b[0m\n" in summary
