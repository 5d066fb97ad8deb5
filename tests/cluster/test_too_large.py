"""Message for a pod whose review is too large, although the API server sends it.

The API server limits requests to 3 MiB. The fields that it adds to containers make a review
larger.
"""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod
from tests.support.webhook_on_cluster import refused


@pytest.mark.parametrize("count", [35_000, 60_000], ids=["some 8 MiB", "some 13 MiB"])
def test_a_review_that_is_too_large_is_denied_in_a_sentence(team, count):
    pod = a_pod("8Gi", containers=[a_container(f"c{i}") for i in range(count)])
    error = refused(lambda: team.accepts(pod))
    assert (error.code, error.status["reason"]) == (403, "Forbidden")
    beginning = 'admission webhook "mutate.vramwarden.io" denied the request: TooComplex: spec: '
    assert error.message.startswith(beginning), error.message[:500]
    (cause,) = error.status["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("TooComplex", "spec")
    lines = [line for line in team.ours.server.log() if line.get("reasons") == ["TooComplex"]]
    assert lines
