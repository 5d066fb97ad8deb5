"""An agent without its threads: messages, time and the API server come from the test."""

import io
import json
from dataclasses import replace

from tests.support.agents import VRAM, ScriptedNvml
from webhook.adapters.journal import Journal
from webhook.adapters.kube.node_watch import AssignmentsSeen, NodeSeen
from webhook.agent import loop
from webhook.agent.loop import Agent
from webhook.agent.settings import AgentSettings
from webhook.core.node.access import Access
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault, SeenGpu
from webhook.core.placement.assignments import Whole
from webhook.names import NODE_ASKS_LABEL

GPU = SeenGpu(uuid="GPU-a", product="NVIDIA H200", index=0, usable_bytes=1000 * 2**20, used_bytes=0)
FINE = Scan(gpus=(GPU,), driver_version="570.86.15")
GONE = Scan(gpus=(), driver_version="570.86.15")
DOWN = Scan(failed="the driver is not loaded", fault=Fault.DRIVER_DOWN)
MISSING = Scan(failed="the library cannot be loaded", fault=Fault.LIBRARY_MISSING)
CDI = Access(visible_devices="void", runtime_class="nvidia")


ZEROED = {"status": {"capacity": {VRAM: "0"}, "allocatable": {VRAM: "0"}}}


class FakeKube:
    """Keeps one node, and applies merge patches to it."""

    url = "https://api"

    def __init__(self, clock):
        self.clock = clock
        self.node = {"metadata": {"name": "n", "resourceVersion": "1"}, "status": {}}
        self.sent = []
        self.fails_with = None

    def now_s(self):
        return 1_700_000_000.0 + self.clock.now_s

    def patch_node(self, name, patch, *, status=False):
        assert name == "n"
        self.sent.append((status, patch))
        if self.fails_with:
            raise self.fails_with
        version = str(int(self.node["metadata"]["resourceVersion"]) + 1)
        self.node = _merged(self.node, patch)
        self.node = _merged(self.node, {"metadata": {"resourceVersion": version}})
        return self.node


class Clock:
    """The time, and how it passes."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s


class Bench:
    """An agent whose threads do not run; messages and time come from the test."""

    def __init__(self, monkeypatch, **settings):
        self.clock = Clock()
        monkeypatch.setattr(loop, "time", self.clock)
        self.kube = FakeKube(self.clock)
        self.log = io.BytesIO()
        settings = AgentSettings(node="n", **{"access": CDI, **settings})
        self.agent = Agent(settings, self.kube, ScriptedNvml(), Journal(self.log.write))
        self.agent._sharing.on_slices(())
        self.whole_pods = ()
        """What a replica answers; None where there is none."""
        self.listed = self.answered = None

    def hear(self, *messages, after_s=0.0):
        """Let a turn of the loop hear these; where it asks for whole-GPU pods, it is answered."""
        self.clock.now_s += after_s
        for message in messages:
            self.agent._on_report(message)
            if isinstance(message, AssignmentsSeen):
                self.listed = message
        self.agent._reconcile(self.clock.now_s)
        asked = (self.kube.node["metadata"].get("labels") or {}).get(NODE_ASKS_LABEL)
        if asked not in {None, self.answered} and self.listed and self.whole_pods is not None:
            self.answered = asked
            answer = Whole(asked, len(self.whole_pods), self.whole_pods[:3])
            self.agent._on_report(replace(self.listed, whole=answer))
            self.agent._reconcile(self.clock.now_s)
        self.agent._check_driver(self.clock.now_s)
        return self

    def see_node(self, **more):
        return NodeSeen(self.kube.node, **more)

    def edit(self, patch):
        """Let somebody else change the node, and report it."""
        version = str(int(self.kube.node["metadata"]["resourceVersion"]) + 1)
        edited = _merged(_merged(self.kube.node, patch), {"metadata": {"resourceVersion": version}})
        self.kube.node = edited
        return NodeSeen(edited)

    @property
    def capacity(self):
        return self.kube.node["status"].get("capacity", {}).get(VRAM)

    @property
    def device_names(self):
        labels = self.kube.node["metadata"].get("labels") or {}
        return labels.get("vramwarden.io/device-names")

    def lines(self):
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def said(self):
        return [line["msg"] for line in self.lines()]

    def told(self):
        """Return the reasons of the Events that were told since the last time."""
        waiting = self.agent._events.waiting
        return [waiting.get_nowait().reason for _ in range(waiting.qsize())]

    def unready(self):
        return "; ".join(filter(None, (*self.agent._failures.values(), self.agent._undone)))


def _merged(target, patch):
    if not isinstance(patch, dict):
        return patch
    result = dict(target or {})
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
