"""`vramwarden demo`, run like a user would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden_files import assert_recorded
from tests.support.run_command import vramwarden

RECORDED = Path(__file__).with_name("recorded")

TRANSLATED = [
    "+        vramwarden.io/vram: 8Gi",
    "+    - name: NVIDIA_VISIBLE_DEVICES",
    "+    - name: VRAMWARDEN_GPU_MEMORY_FRACTION",
    "+          - key: vramwarden.io/gpu-memory-mib",
    "+  - name: vram-enforcer",
]


@pytest.mark.process
def test_the_demo_shows_an_allowed_and_a_denied_pod_in_a_few_lines():
    done = vramwarden("demo")
    assert done.returncode == 0, done.stderr
    *_, first, second = done.stdout.split("\n\n")
    assert_recorded(RECORDED / "demo.txt", f"{first}\n\n{second}")


@pytest.mark.process
def test_the_whole_diff_is_shown_on_request():
    done = vramwarden("demo", "--diff")
    assert done.returncode == 0, done.stderr
    lines = [line[3:] for line in done.stdout.splitlines()]
    (allowed,) = (line for line in lines if line.startswith("Allowed by rule default"))
    added = [line for line in lines if line.startswith("+ ")]
    assert allowed == f"Allowed by rule default, which writes {len(added)} lines into it:"
    assert set(TRANSLATED) <= set(added)
    assert {"--- as written", "+++ as stored", "     app: train"} <= {*lines}
