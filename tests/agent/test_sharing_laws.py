"""No new pod gets a GPU while another allocator gives GPUs away: random sequences of steps.

Each step is an action of a kubelet, NVIDIA's operator, a plugin, a DRA driver, a cluster admin or
the clock. After each step a pending pod takes what the node offers. The signs of another allocator
are implemented here independently of the agent.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.agent.stepped import FINE, ZEROED, Bench
from tests.support.scripted_nvml import VRAM
from webhook.adapters.kube.node_objects import AssignmentsSeen, SlicesSeen
from webhook.core.kinds.nodes import write_time
from webhook.core.node.node_fields import explain_closed
from webhook.core.placement.assignments import Assignment, promised_bytes
from webhook.core.pod.quantity import MIB, parse_quantity
from webhook.core.pod.whole_gpus import ResourceSlice

GPU, DEPLOY, SHARE = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.deploy.device-plugin",
    "vramwarden.io/share",
)
AMOUNTS = {
    "plugin registers": ("8", "8"),
    "plugin goes": ("8", "0"),  # also if it declares all of its GPUs unhealthy
    "kubelet forgets it": ("0", "0"),
}
LABELS = {
    f"{key.rpartition('.')[2].rpartition('/')[2]}={value}": {key: value}
    for key in (DEPLOY, SHARE)
    for value in ("true", "false", None)
}
PASSING_S = (1, 20, 59, 61, 299, 301, 601)
STEPS = (
    *AMOUNTS,
    *LABELS,
    "slice comes",
    "slice goes",
    "kubelet restarts",
    "agent restarts",
    "pods end",
    "whole pod comes",
    "whole pod ends",
    *PASSING_S,
)


class Node:
    """A node with all its controllers, and expectations on its agent."""

    def __init__(self, monkeypatch, age_s):
        self.created_s, self.pods, self.whole = 1000.0 - age_s, {}, ()
        self.amounts, self.offered_s = (None, None), float("-inf")
        self.slice, self.slice_gone_s = False, float("-inf")
        self.bench = Bench(monkeypatch, namespace="vramwarden")
        self.bench.agent._sharing._awaits_slices = True
        at = write_time(self.bench.api_now_s() - age_s)
        self.bench.edit({"metadata": {"creationTimestamp": at}})

    @property
    def now_s(self):
        return self.bench.clock.now_s

    def label(self, key):
        return self.bench.labels.get(key)

    def does(self, step):
        bench, edits = self.bench, []
        if step in AMOUNTS:
            self.amounts = AMOUNTS[step]
        elif step == "kubelet restarts":
            self.amounts = tuple(amount and "0" for amount in self.amounts)
            edits.append(bench.edit(ZEROED))
        elif step in LABELS:
            edits.append(bench.edit({"metadata": {"labels": LABELS[step]}}))
        elif step in {"slice comes", "slice goes"}:
            self.slice_gone_s = self.now_s if self.slice else self.slice_gone_s
            self.slice = step == "slice comes"
        elif step == "agent restarts":
            self.bench = bench.restarted()
            self.bench.agent._sharing._awaits_slices = True
        elif step == "pods end":
            self.pods = {}
        elif step in {"whole pod comes", "whole pod ends"}:
            # A kubelet starts such a pod only if a plugin has GPUs for it.
            comes = step == "whole pod comes" and self.amounts[1] == "8"
            self.whole = ("team/whole",) if comes else ()
        self.bench.clock.now_s += step if isinstance(step, int) else 0
        if any(amount not in {None, "0"} for amount in self.amounts):
            self.offered_s = self.now_s
        if self.label(SHARE) == "true":  # an admin decided: GPUs shared by this stay shared
            self.offered_s = float("-inf")
        self.bench.whole_pods = self.whole
        self.hears()

    def hears(self):
        parts = zip(("capacity", "allocatable"), self.amounts, strict=True)
        status = {part: {GPU: amount} for part, amount in parts if amount is not None}
        texts = frozenset({"GPU-a"} if self.slice else ())
        seen = SlicesSeen((ResourceSlice("one", "gpu.nvidia.com", texts),))
        listed = AssignmentsSeen(self.pods)
        for _ in range(3):  # two more for a requested scan and for a response
            self.bench.hear(FINE, listed, seen, self.bench.edit({"status": status}))

    def signs(self):
        """Return the other allocators that an agent with all reports must know."""
        found = [part for part in self.amounts if part not in {None, "0"}]
        if self.now_s - self.offered_s < 60:
            found.append("a moment ago")  # until then a restarted kubelet does not know its plugin
        if self.slice or self.now_s - self.slice_gone_s < 300:
            found.append("slice")
        if self.label(DEPLOY) == "true" and self.now_s - self.created_s < 600:
            found.append("operator")
        return found

    def offers(self):
        """Return the free amount for the scheduler, and True if the webhook withholds it."""
        shown = parse_quantity(self.bench.allocatable.get(VRAM, "0"))
        return shown - promised_bytes(self.pods), bool(explain_closed(self.bench.node))

    def promises(self):
        """Assign VRAM as scheduler and webhook do; return True if any was free."""
        free, held = self.offers()
        if held or free < 100 * MIB:
            return False
        self.pods[f"uid-{len(self.pods)}"] = Assignment(
            pod="team/a", uuids=("GPU-a",), memory_bytes=100 * MIB, since_s=1
        )
        return True


@pytest.fixture(scope="module")
def patching():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch


@given(age_s=st.sampled_from((0, 300, 5000)), steps=st.lists(st.sampled_from(STEPS), max_size=14))
@example(age_s=5000, steps=["plugin registers", "plugin goes", 61, 299])
@example(age_s=0, steps=["device-plugin=true", 61, 299])
@example(age_s=0, steps=["device-plugin=true", 299, 299])
@example(age_s=5000, steps=[61, "slice comes", "slice goes", 299, "agent restarts", 20])
@example(age_s=5000, steps=["plugin registers", "whole pod comes", "plugin goes", 301,
                            "kubelet forgets it", 61, 61])  # fmt: skip
@example(age_s=5000, steps=[61, "plugin registers", "kubelet restarts", 20, "pods end", 20])
def test_nothing_is_newly_promised_while_somebody_else_gives_the_gpus_away(patching, age_s, steps):
    node = Node(patching, age_s)
    for done, step in enumerate(steps):
        node.does(step)
        signs = node.signs()
        had, (free, held) = bool(node.pods), node.offers()
        wanted = node.label(SHARE) == "true"
        if signs and not wanted:  # neither the scheduler nor the webhook finds free memory
            assert free <= 0, (signs, steps[: done + 1])
            assert held or not had, (signs, steps[: done + 1])
        if node.promises():
            assert wanted or had or not node.whole, steps[: done + 1]
            assert node.label(SHARE) != "false"


@given(steps=st.lists(st.sampled_from(STEPS), max_size=10))
def test_what_was_promised_stays_and_a_node_without_signs_is_shared_in_the_end(patching, steps):
    node = Node(patching, 5000)
    for step in steps:
        node.does(step)
        node.promises()
        assert parse_quantity(node.bench.capacity or "0") >= promised_bytes(node.pods), step
    ends = ("kubelet forgets it", "slice goes", "whole pod ends", "share=None", 601, 61, 61)
    for step in ends:
        node.does(step)
    node.pods = {}
    node.hears()
    assert node.promises()
