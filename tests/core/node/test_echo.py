"""Which reports of a node are echoes of our own patches: the table, row by row."""

import pytest

from webhook.core.node.echo import OWN_ECHO_S, is_echo


def a_node(version):
    return {"metadata": {"resourceVersion": version}}


@pytest.mark.parametrize(
    ("reported", "known", "since_patch_s", "echo"),
    [
        ("9", "10", 0.0, True),
        ("9", "10", OWN_ECHO_S - 0.1, True),
        ("10", "10", 0.0, False),
        ("11", "10", 0.0, False),
        ("100", "99", 0.0, False),  # by number, not by text
        ("9", "x", 0.0, False),
        ("x", "10", 0.0, False),
        ("-9", "10", 0.0, False),
        ("", "10", 0.0, False),
        ("9", None, 0.0, False),
        ("9", "10", OWN_ECHO_S, False),
        ("9", "10", float("inf"), False),
    ],
)
def test_only_what_is_older_than_our_own_recent_patch_is_an_echo(
    reported, known, since_patch_s, echo
):
    before = None if known is None else a_node(known)
    assert is_echo(a_node(reported), before, since_patch_s) is echo
