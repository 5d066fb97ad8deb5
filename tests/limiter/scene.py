"""A node's cgroups as plain folders, and a limiter with the NVML stub; time is an argument."""

import inspect
import json
import os
from textwrap import dedent

GPU, OTHER = "GPU-a", "GPU-b"
OWN = "0a1b2c3d-1111-4222-8333-444455556666"
MIB = 2**20
CAP = 8192 * MIB
NONE = 2**64 - 1
GPUS = "".join(f"gpu {name} total={81920 * MIB} mig=0\n" for name in (GPU, OTHER))


def uid_of(number):
    return f"{number:08x}-aaaa-4bbb-8ccc-dddddddddddd"


def id_of(number):
    return f"{number:064x}"


class Scripted:
    """Code of a scenario that runs in a separate interpreter."""

    def __init__(self, stub, scenario):
        self.stub, self.scenario = stub, scenario

    def run(self, *arguments, **made):
        source = dedent(inspect.getsource(self.scenario))

        def scenario(s, source, name, made, arguments):
            from importlib import import_module  # noqa: PLC0415

            scene = import_module("tests.limiter.scene")
            known = dict(vars(scene))
            exec(compile(source, "scenario", "exec"), known)  # noqa: S102
            return known[name](scene.LimitedNode(s, **made), *arguments)

        return self.stub.run(scenario, source, self.scenario.__name__, made, arguments)


class LimitedNode:
    """The node's cgroups as a kubelet with the driver cgroupfs creates them."""

    def __init__(
        self, stub, limits="misc", *, driver="615.71.09", gpus=GPUS, controllers="cpu memory",
        kubepods="kubepods", own=OWN, **settings,
    ):  # fmt: skip
        from webhook.limiter.settings import LimiterSettings  # noqa: PLC0415

        self.stub = stub
        self.tree = stub.file.parent / "tree"
        self.kubepods = self.tree / kubepods
        self.tree.mkdir(exist_ok=True)
        self.control(self.tree, controllers or "")
        if controllers is None:  # cgroup version 1 has no such file
            (self.tree / "cgroup.controllers").unlink()
        own_pod = f"besteffort/pod{OWN}"
        self.run(self.container(own_pod, 1), os.getpid())
        (stub.file.parent / "run").mkdir(exist_ok=True)
        self.settings = LimiterSettings(
            node="n1", namespace="sys", pod_uid=own, cgroups=str(self.tree),
            folder=str(stub.file.parent / "run"), kernel_driver=str(stub.file), **settings,
        )  # fmt: skip
        self.play(limits, driver=driver, gpus=gpus)
        self.start()

    def play(self, limits="misc", *, driver="615.71.09", gpus=GPUS, more=""):
        mode = f"limits {limits} cgroups={self.tree} own={self.tree}\n" if limits else ""
        self.stub.script(f"driver {driver}\n{mode}{more}", gpu=gpus)

    def start(self):
        """Start the limiter, or another one in its place."""
        from webhook.adapters.journal import Journal  # noqa: PLC0415
        from webhook.adapters.node_nvml import NodeNvml  # noqa: PLC0415
        from webhook.limiter.loop import Limiter  # noqa: PLC0415

        self.lines = []
        journal = Journal(lambda line: self.lines.append(json.loads(line)))
        self.limiter = Limiter(self.settings, None, NodeNvml(), journal)

    def control(self, folder, controllers):
        for name in ("controllers", "subtree_control"):
            (folder / f"cgroup.{name}").write_text(controllers if name == "controllers" else "")

    def container(self, pod, number):
        """Create the cgroups of a container and its pod; return the container's."""
        made = self.kubepods / pod / id_of(number)
        made.mkdir(parents=True, exist_ok=True)
        for folder in (made, *made.parents):
            if folder != self.tree and folder.is_relative_to(self.tree):
                self.control(folder, "")
        return made

    def run(self, container, pid=0):
        """Put processes into a container's cgroup, shown as from another PID namespace."""
        (container / "cgroup.procs").write_text(f"{pid}\n")
        (container / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    def list(self, *numbers, cap=CAP, limit="Auto", gpus=(GPU,), uids=None, now_s=0.0):
        from webhook.adapters.kube.node_objects import AssignmentsSeen  # noqa: PLC0415
        from webhook.core.placement.assignments import Assignment  # noqa: PLC0415
        from webhook.core.placement.cap_terms import CapTerms  # noqa: PLC0415
        from webhook.core.policy.model import DriverLimit  # noqa: PLC0415

        terms = CapTerms(
            cap_bytes=cap, tolerance_bytes=0, delay_s=6.5, enforce=True, limit=DriverLimit(limit)
        )
        lines = {
            uid: Assignment(pod="team/a", uuids=gpus, memory_bytes=cap, since_s=1, terms=terms)
            for uid in uids or map(uid_of, numbers)
        }
        self.limiter.on_report(AssignmentsSeen(lines), now_s)

    def limit(self, path, gpu=GPU):
        """Return the driver's soft and hard limit of a cgroup, or None."""
        with self.stub.nvml.Nvml() as nvml:
            nvml.devices()
            found = nvml.limit(gpu, str(self.kubepods / path))
        return found and [found.soft_bytes, found.hard_bytes]

    def set_limit(self, path, soft, hard, gpu=GPU):
        with self.stub.nvml.Nvml() as nvml:
            nvml.devices()
            return nvml.set_limit(gpu, str(self.kubepods / path), soft, hard)

    def said(self, *keys):
        return [[line.get(key) for key in ("msg", *keys)] for line in self.lines]

    def state(self):
        return json.loads((self.stub.file.parent / "run" / "state.json").read_text())
