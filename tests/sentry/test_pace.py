"""How long the sentry waits for the next look."""

from __future__ import annotations

import pytest

from webhook.sentry.pace import SHARE, SHARE_OVER, pause_s

NAMES = ("ending", "judging", "may_act", "listed", "held")


@pytest.mark.parametrize(
    ("true", "expected_s"),
    [
        (NAMES, 0.25),
        (NAMES[1:], 0.5),
        (NAMES[2:], 1.0),
        (NAMES[3:], 10.0),
        (("listed",), 10.0),
        (("held",), 10.0),
        ((), 60.0),
    ],
)
def test_the_table_of_the_docstring(true, expected_s):
    said = {name: name in true for name in NAMES}
    assert pause_s(0.001, **said) == expected_s
    share = SHARE_OVER if said["ending"] or said["judging"] else SHARE
    assert pause_s(100.0, **said) == share * 100.0
