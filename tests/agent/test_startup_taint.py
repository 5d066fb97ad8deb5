"""The startup taint, for which autoscalers wait until the node's agent is done."""

import pytest

from tests.agent.stepped import BUSY, DOWN, FINE, GONE, NOBODY, UNSURE, Bench
from tests.agent.test_sharing import label, plugin
from webhook.core.node.access import DriverStatus, explain_unready, record_scan

NEW = DriverStatus(scanned_s=0, answered_s=0)
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/vramwarden"
OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
TAINTED = {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}, OTHER]}}


@pytest.fixture
def tainted(monkeypatch):
    made = Bench(monkeypatch, namespace="vramwarden", startup_taint=TAINT)
    made.edit(TAINTED)
    return made


def has_taint(bench):
    taints = bench.node["spec"]["taints"]
    assert OTHER in taints
    return TAINTED["spec"]["taints"][0] in taints


def test_the_startup_taint_goes_once_the_node_shows_its_gpus(tainted):
    tainted.hear(NOBODY, tainted.see_node())
    assert has_taint(tainted)
    version = tainted.hear(FINE).node["metadata"]["resourceVersion"]
    assert (tainted.capacity, has_taint(tainted)) == ("1000Mi", True)
    tainted.hear(after_s=1)
    assert not has_taint(tainted)
    metadata = {"resourceVersion": version}
    assert tainted.sent[-1] == (False, {"metadata": metadata, "spec": {"taints": [OTHER]}})
    tainted.hear(after_s=1)
    assert len(tainted.sent) == 4
    assert tainted.lines()[-1]["changes"] == [f"taints[{TAINT}]: removed"]


@pytest.mark.parametrize(
    ("scan", "node", "stays"),
    [
        (None, {}, True),
        (DOWN, {}, True),
        (BUSY, {}, True),
        (UNSURE, {}, True),
        (GONE, {}, False),  # the driver answers: there is no GPU
        (None, plugin(), False),
        (None, label("false"), False),
    ],
    ids=["no scan", "down", "in use", "unsure", "no GPU", "plugin", "label"],
)
def test_the_startup_taint_stays_until_it_is_settled_what_becomes_of_the_node(
    tainted, scan, node, stays
):
    tainted.hear(*([scan] if scan else []), NOBODY, tainted.edit(node))
    tainted.hear(after_s=1)
    assert has_taint(tainted) is stays
    whys = {
        None: "the GPUs have not been scanned yet",
        DOWN: explain_unready(record_scan(NEW, DOWN, 0)),
    }
    assert tainted.unready() == (whys.get(scan, "") if stays else "")


def test_the_startup_taint_of_a_node_that_is_advertised_goes_although_the_driver_is_down(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    tainted.hear(DOWN, after_s=1)
    assert not has_taint(tainted)


def test_a_taint_that_somebody_adds_meanwhile_is_not_lost(tainted):
    tainted.hear(FINE, NOBODY, tainted.see_node())
    added = {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}
    seen = tainted.edit({"spec": {"taints": [*TAINTED["spec"]["taints"], added]}})
    tainted.hear(after_s=1)
    assert "409" in tainted.unready()
    assert has_taint(tainted)
    tainted.hear(seen, after_s=6)
    assert tainted.node["spec"]["taints"] == [OTHER, added]
    assert tainted.unready() == ""


def test_without_the_option_no_taint_is_touched(monkeypatch):
    bench = Bench(monkeypatch, namespace="vramwarden")
    bench.edit(TAINTED)
    bench.hear(FINE, NOBODY, bench.see_node())
    bench.hear(after_s=1)
    assert has_taint(bench)


def test_a_dry_run_takes_no_taint_off(monkeypatch):
    bench = Bench(monkeypatch)
    bench.hear(bench.edit({**TAINTED, **plugin()}))
    bench = bench.restarted(startup_taint=TAINT, dry_run=True)
    bench.hear(bench.see_node())
    assert bench.sent == []
    assert bench.lines()[-1]["why"] == f"taints[{TAINT}]: removed"
