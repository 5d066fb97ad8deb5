"""`vramwarden demo`, run as a user runs it."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import vramwarden

TRANSLATED = [
    "+        vramwarden.io/vram: 8Gi",
    "+    - name: NVIDIA_VISIBLE_DEVICES",
    "+    - name: VRAMWARDEN_GPU_MEMORY_FRACTION",
    "+          - key: vramwarden.io/gpu-memory-mib",
    "+  - name: vram-enforcer",
]


@pytest.mark.process
def test_the_demo_ends_in_a_few_lines_about_a_translation_and_a_denial():
    done = vramwarden("demo")
    assert done.returncode == 0, done.stderr
    *_, first, second = done.stdout.split("\n\n")
    title, allowed, *written, own, rollout = first.splitlines()
    assert title == "1. A pod comes with one annotation, vramwarden.io/gpu-memory: 8Gi"
    assert re.fullmatch(
        "   Allowed by rule default, which writes [0-9]{3} lines into it "
        r"\(all: vramwarden demo --diff\), such as:",
        allowed,
    )
    assert [line[3:50].rstrip() for line in written] == TRANSLATED
    assert own == "   For a pod of yours: vramwarden admit -f FILE -o diff"
    assert rollout == "   At first (rollout: Observe) only pods that ask for GPU memory are judged"
    title, denied, why = second.splitlines()
    assert title == "2. Another comes with a wrong amount, vramwarden.io/gpu-memory: 8GB"
    assert denied == "   Denied; kubectl shows why, and what to write instead:"
    assert why.startswith("   Error from server (Forbidden): admission webhook")
    assert why.count("InvalidQuantity: metadata.annotations[vramwarden.io/gpu-memory]") == 1
    assert "8GB is not a Kubernetes quantity; use 8G or 8Gi" in why
    assert "\x1b[" not in done.stdout


@pytest.mark.process
def test_the_whole_diff_is_shown_where_it_is_asked_for():
    done = vramwarden("demo", "--diff")
    assert done.returncode == 0, done.stderr
    lines = [line[3:] for line in done.stdout.splitlines()]
    (allowed,) = (line for line in lines if line.startswith("Allowed by rule default"))
    added = [line for line in lines if line.startswith("+ ")]
    assert allowed == f"Allowed by rule default, which writes {len(added)} lines into it:"
    assert set(TRANSLATED) <= set(added)
    assert {"--- as written", "+++ as stored", "     app: train"} <= {*lines}
