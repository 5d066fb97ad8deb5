"""What a replica knows of nodes with slices of GPUs, and whether it waits for that."""

from __future__ import annotations

import io
import json

import pytest

from tests.adapters.kube.test_follow import Enough, Script, an_event, an_object
from tests.support.pods import A100, a_policy, a_rule
from webhook.adapters.kube.client import KubeError
from webhook.adapters.kube.follow import Changed, Failed, Listed, follow
from webhook.core.pod.quantity import MIB
from webhook.core.policy.slices import SlicedNode
from webhook.core.policy.values import Accounting, Bounds, GPUClass
from webhook.server.known import KNOWN_WITHIN_S
from webhook.server.log import JsonLog
from webhook.server.sliced_nodes import SlicedNodes, followed

SLICED = a_policy(a_rule(accounting=Accounting.MIG))
BY_CLASS = a_policy(classes={"m": GPUClass("m", {}, (), Bounds(), Accounting.MIG)})
PLAIN = a_policy()

SMALL = SlicedNode({"1g.10gb": 9728 * MIB}, {"a": "b"})
LARGE = SlicedNode({"3g.40gb": 40192 * MIB}, {})
NONE = SlicedNode({}, {})


class Nodes(Script):
    """Answers a read with whole objects."""

    def list_all(self, path, keep, **query):
        self.read_paths.append((path, query))
        return [keep(node) for node in self.reads], "7"


class Replica:
    def __init__(self, policy=SLICED, kube=None):
        self.now_s = 1000.0
        self.written = io.BytesIO()
        log = JsonLog(self.written)
        self.nodes = SlicedNodes(kube or Script(()), log, lambda: policy, lambda: self.now_s)

    def hears(self, *reports):
        for report in reports:
            self.nodes.hear(report)

    @property
    def knows(self):
        return self.nodes.told(PLAIN).sliced_nodes

    @property
    def log(self):
        return [json.loads(line) for line in self.written.getvalue().splitlines()]


BOTH = Listed([("b", LARGE), ("a", SMALL)])
DOWN = Failed(KubeError("does not answer"))
KNOWN = {
    "nothing yet": ([], ()),
    "nodes": ([BOTH], (SMALL, LARGE)),
    "one without slices": ([Listed([("a", SMALL), ("c", NONE)])], (SMALL,)),
    "one comes": ([BOTH, Changed("ADDED", ("c", SMALL))], (SMALL, LARGE, SMALL)),
    "one changes": ([BOTH, Changed("MODIFIED", ("a", LARGE))], (LARGE, LARGE)),
    "one goes": ([BOTH, Changed("DELETED", ("a", SMALL))], (LARGE,)),
    "all went while nobody watched": ([BOTH, DOWN, Listed([])], ()),
    "the API server goes": ([BOTH, DOWN], (SMALL, LARGE)),
}


@pytest.mark.parametrize(("reports", "known"), KNOWN.values(), ids=KNOWN)
def test_policies_are_told_what_the_api_server_said_last(reports, known):
    replica = Replica()
    replica.hears(*reports)
    assert replica.knows == known
    assert replica.nodes.told(PLAIN).digest == PLAIN.digest


def test_what_is_known_is_the_same_object_until_it_changes():
    """Remembered decisions are forgotten with it, and a node's status changes often."""
    replica = Replica()
    replica.hears(BOTH)
    before = replica.knows
    replica.hears(Changed("MODIFIED", ("a", SlicedNode({"1g.10gb": 9728 * MIB}, {"a": "b"}))))
    assert replica.knows is before
    assert [line["profiles"] for line in replica.log] == [["1g.10gb", "3g.40gb"]]


FORBIDDEN = Failed(KubeError("the right is missing", code=403))
WAITS = "nodes with slices (MIG) not read yet"


@pytest.mark.parametrize(
    ("policy", "reports", "obstacle"),
    [
        (SLICED, [], WAITS),
        (BY_CLASS, [], WAITS),
        (PLAIN, [], ""),
        (SLICED, [DOWN], WAITS),
        (SLICED, [Listed([])], ""),
        (SLICED, [FORBIDDEN], ""),
    ],
)
def test_a_replica_whose_rules_ask_for_slices_waits_until_it_knows(policy, reports, obstacle):
    replica = Replica(policy)
    replica.hears(*reports)
    assert replica.nodes.obstacle() == obstacle
    replica.now_s += KNOWN_WITHIN_S
    assert replica.nodes.obstacle() == ""


def test_only_nodes_that_offer_slices_by_profile_are_read():
    labels = {
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-1g.10gb.count": "7",
        "nvidia.com/mig-1g.10gb.me.memory": "9728",
        "nvidia.com/mig-2g.20gb.memory": "-5",
        "nvidia.com/mig-3g.40gb.memory": "0",
        "nvidia.com/mig-7g.80gb.memory": "99999999999",
    }
    node = an_object("7", "a")
    node["metadata"]["labels"] = labels
    kube = Nodes([node], [[an_event("DELETED", "8", "b")], Enough()])
    replica = Replica(kube=kube)
    with pytest.raises(Enough):
        follow(followed(kube), replica.nodes.hear, clock=lambda: 0.0, sleep=lambda _: None)
    assert replica.knows == (SlicedNode({"1g.10gb": 9728 * MIB}, labels),)
    watched, _, query = kube.watched[0]
    assert watched == "/api/v1/nodes"
    assert query["labelSelector"] == "nvidia.com/mig.strategy=mixed"
    assert kube.read_paths == [(watched, {"labelSelector": "nvidia.com/mig.strategy=mixed"})]


def test_classes_that_a_rule_does_not_allow_ask_for_nothing():
    classes = {"m": GPUClass("m", {}, (), Bounds(), Accounting.MIG), "a100": A100}
    policy = a_policy(a_rule(allowed_classes=("a100",)), classes=classes)
    assert Replica(policy).nodes.obstacle() == ""
