"""An agent without threads: the test provides messages, time and the API server."""

import io
import json
from dataclasses import replace

from tests.support.api_server import ApiServer
from tests.support.merge_patches import merged
from tests.support.scripted_nvml import VRAM, ScriptedNvml
from webhook.adapters.journal import Journal
from webhook.adapters.kube.node_objects import AssignmentsSeen, NodeSeen
from webhook.agent import loop
from webhook.agent.loop import Agent
from webhook.agent.settings import AgentSettings
from webhook.core.node.access import Access
from webhook.core.node.inventory import Scan
from webhook.core.nvidia.drivers import Fault, ScannedGpu
from webhook.core.placement.assignment_codec import WholeGpuPods
from webhook.core.placement.assignments import Assignment
from webhook.names import NODE_QUESTION_LABEL
from webhook.names import NODE_SHARING_ANNOTATION as SHARING

GPU = ScannedGpu(
    uuid="GPU-a", product="NVIDIA H200", index=0, usable_bytes=1000 * 2**20, used_bytes=0
)
FINE = Scan(gpus=(GPU,), driver_version="570.86.15")
BUSY = Scan(gpus=(replace(GPU, used_bytes=2**30),), driver_version="570.86.15")
UNSURE = Scan(gpus=(), driver_version="570.86.15", unsure=frozenset({""}))
GONE = Scan(gpus=(), driver_version="570.86.15")
DOWN = Scan(failed="the driver is not loaded", fault=Fault.DRIVER_DOWN)
MISSING = Scan(failed="the library cannot be loaded", fault=Fault.LIBRARY_MISSING)
NOBODY = AssignmentsSeen({})
SOMEBODY = AssignmentsSeen(
    {"uid": Assignment(pod="team/train", uuids=("GPU-a",), memory_bytes=2**28, since_s=1)}
)
CDI = Access(visible_devices="void", runtime_class="nvidia", voided=True)


API_NOW_S = 1_700_000_000.0
"""Unix time at which the clock starts."""
NODE = "/api/v1/nodes/n"
ZEROED = {"status": {"capacity": {VRAM: "0"}, "allocatable": {VRAM: "0"}}}


def is_verdict(patch):
    """Return True if a patch changes only the verdict on sharing."""
    metadata = patch.get("metadata") or {}
    return set(metadata) == {"annotations"} and set(metadata["annotations"]) == {SHARING}


class Clock:
    """A clock that the test advances."""

    now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def time(self):
        return API_NOW_S + self.now_s


class Bench:
    """An agent whose threads do not run; the test provides messages and time."""

    def __init__(self, monkeypatch, *, before=None, **settings):
        """Create the agent of a new node, or the one that follows the agent of another `Bench`."""
        self._monkeypatch, self._settings = monkeypatch, settings
        self.clock = before.clock if before else Clock()
        self.api = before.api if before else ApiServer()
        if not before:
            self.api.put(NODE, {"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}})
        monkeypatch.setattr(loop, "time", self.clock)
        self._asked_before = len(self.api.asked)
        self.log = io.BytesIO()
        self.agent = Agent(
            AgentSettings(node="n", **{"access": CDI, **settings}),
            self.api.kube(now_s=self.api_now_s),
            ScriptedNvml(),
            Journal(self.log.write),
        )
        self.agent._sharing.on_slices(())
        self.whole_pods = ()
        """Response of a webhook replica; None if no replica runs."""
        self.listed = self.answered = None

    def restarted(self, **settings):
        """Return the agent that follows this one, with the same settings except these."""
        return Bench(self._monkeypatch, before=self, **{**self._settings, **settings})

    def api_now_s(self):
        return API_NOW_S + self.clock.now_s

    def hear(self, *messages, after_s=0.0):
        """Pass messages to one turn of the loop, and answer its question for whole-GPU pods."""
        self.clock.now_s += after_s
        for message in messages:
            self.agent._on_report(message)
            if isinstance(message, AssignmentsSeen):
                self.listed = message
        self.agent._reconcile(self.clock.now_s)
        asked = self.labels.get(NODE_QUESTION_LABEL)
        if asked not in {None, self.answered} and self.listed and self.whole_pods is not None:
            self.answered = asked
            answer = WholeGpuPods(asked, len(self.whole_pods), self.whole_pods[:3])
            self.agent._on_report(replace(self.listed, whole=answer))
            self.agent._reconcile(self.clock.now_s)
        self.agent._check_driver(self.clock.now_s)
        return self

    @property
    def node(self):
        return self.api.objects[NODE]

    @property
    def sent(self):
        """Patches of this agent except those of the verdict only, with True for the status."""
        asked = self.api.asked[self._asked_before :]
        found = [
            (request.path != NODE, request.body) for request in asked if request.method == "PATCH"
        ]
        return [item for item in found if not is_verdict(item[1])]

    def see_node(self, **more):
        return NodeSeen(self.node, **more)

    def edit(self, patch):
        """Change the node as another client would, and report the change."""
        return NodeSeen(self.api.put(NODE, merged(self.node, patch)))

    @property
    def labels(self):
        return self.node["metadata"].get("labels") or {}

    @property
    def annotations(self):
        return self.node["metadata"].get("annotations") or {}

    @property
    def allocatable(self):
        return (self.node.get("status") or {}).get("allocatable") or {}

    @property
    def capacity(self):
        return ((self.node.get("status") or {}).get("capacity") or {}).get(VRAM)

    @property
    def device_names(self):
        return self.labels.get("vramwarden.io/device-names")

    def lines(self):
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def said(self):
        return [line["msg"] for line in self.lines()]

    def told(self):
        """Return the reasons of the Events written since the last call."""
        waiting = self.agent._events.waiting
        return [waiting.get_nowait().reason for _ in range(waiting.qsize())]

    def unready(self):
        return "; ".join(filter(None, (*self.agent._failures.values(), self.agent._unready_reason)))
