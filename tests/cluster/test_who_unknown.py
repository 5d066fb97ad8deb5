"""Rules for namespace labels, on a server that cannot read these labels."""

from __future__ import annotations

import pytest

from tests.support.api_client import ApiError
from tests.support.pods import a_pod
from tests.support.webhook_configurations import installed
from tests.support.webhook_on_cluster import OurServer, serving

RULES = """\
apiVersion: vramwarden.io/v1alpha1
kind: VRAMPolicy
metadata: {name: who}
spec:
  rules:
  - {name: others, match: {namespaces: ["others-*"]}}
  - {name: labelled, match: {namespaceLabels: {tier: intern}}, action: Ignore}
"""


@pytest.fixture(scope="module")
def ours(control_plane, tmp_path_factory):
    folder = tmp_path_factory.mktemp("who")
    (folder / "policies").mkdir()
    (folder / "policies" / "05-who.yaml").write_text(RULES)
    with serving(folder) as server:
        our_server = OurServer(server)
        with installed(control_plane.api, *our_server.configurations):
            yield our_server


def test_a_pod_that_asks_is_not_created_and_the_api_server_asks_again(team):
    with pytest.raises(ApiError, match="failed calling webhook"):
        team.accepts(a_pod("8Gi"))
    asked = [line for line in team.ours.server.log() if line["msg"] == "review not answered"]
    assert len(asked) > 1
    assert {line["namespace"] for line in asked} == {team.namespace}
    assert asked[0]["why"].startswith(f"the labels of namespace {team.namespace} are not known")


def test_a_pod_whose_rule_asks_for_no_labels_is_created(team, make_namespace):
    team.namespace = make_namespace(prefix="others")
    assert "vramwarden.io/admitted" in team.accepts(a_pod("8Gi"))["metadata"]["annotations"]
