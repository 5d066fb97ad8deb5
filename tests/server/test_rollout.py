"""The option --rollout of the real server."""

from __future__ import annotations

import pytest

from tests.support.pods import a_container, a_pod, a_review
from tests.support.servers import running

SEEING = a_pod(containers=[a_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])])


@pytest.mark.parametrize(
    ("options", "allowed"), [((), False), (("--rollout=Observe",), True)], ids=str
)
def test_a_server_enforces_unless_it_is_told_to_observe(tmp_path, options, allowed):
    with running(tmp_path, *options) as server:
        answer = server.review(a_review(SEEING))
        assert answer["allowed"] is allowed
        assert answer["auditAnnotations"]["reasons"] == "VisibleDevicesOverride"
        assert len(answer.get("warnings", [])) == allowed
        assert server.review(a_review(a_pod("8GB")))["allowed"] is False
