"""`vramwarden demo`, run as a user runs it."""

from __future__ import annotations

import pytest

from tests.support.commands import vramwarden


@pytest.mark.process
def test_the_demo_shows_a_translation_and_a_denial():
    done = vramwarden("demo")
    assert done.returncode == 0, done.stderr
    assert "+        vramwarden.io/vram: 8Gi" in done.stdout
    assert "+  - name: vram-enforcer" in done.stdout
    assert "Error from server (Forbidden): admission webhook" in done.stdout
    assert "FractionalWholeGPU: spec.containers[0].resources.limits[nvidia.com/gpu]" in done.stdout
    assert "\x1b[" not in done.stdout
