"""A key that nothing reads is a line of `admit`, as it is a warning in a cluster."""

from __future__ import annotations

from tests.tools.admit.runs import POD, run

MISTYPED = POD.replace("gpu-memory", "gpu-mem")
LINE = (
    "Pod default/train: warning: metadata.annotations[vramwarden.io/gpu-mem]: "
    "nothing reads this key; did you mean vramwarden.io/gpu-memory?"
)


def test_a_mistyped_key_is_a_line_and_no_denial():
    result = run(MISTYPED)
    assert (result.code, result.out) == (0, MISTYPED)
    left = "Pod default/train: left alone (asks for no VRAM)"
    assert result.err.splitlines() == [left, LINE]


def test_a_denied_pod_has_the_line_too():
    result = run(MISTYPED + "    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]\n")
    denied, line = result.err.splitlines()
    assert denied.startswith("Pod default/train: denied: VisibleDevicesOverride: ")
    assert (result.code, line) == (1, LINE)


def test_a_translated_pod_has_no_such_line():
    assert "warning" not in run(POD).err


def test_the_line_is_yellow_on_a_terminal():
    assert f"\x1b[33m{LINE}\x1b[0m\n" in run(MISTYPED, terminal=True).err
