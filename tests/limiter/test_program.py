"""The program in a pod as a runtime creates it, on real cgroups of version 2."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.limiter.scene import CAP, GPU, GPUS, MIB, OWN, id_of, uid_of
from tests.sentry import nodes
from tests.support.cluster_programs import wait_until
from tests.support.nvml_stub import build
from tests.support.paths import ROOT
from webhook.core.placement.assignment_codec import write_assignments
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.policy.model import DriverLimit

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("limiter")]

JOIN = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
os.execvp(sys.argv[2], sys.argv[2:])
"""
CONTAINER = ("unshare", "--cgroup", "--pid", "--fork", "--kill-child", "--mount-proc", "setpriv",
             "--no-new-privs", "--bounding-set=-all,+sys_admin")  # fmt: skip
APP = """
import ctypes
cuda, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
print(*(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t({} * 2**20)) for _ in range(3)))
"""


class Machine:
    def __init__(self, folder, api, tree):
        self.folder, self.api, self.tree = folder, api, tree
        self.state_file = folder / "run" / "state.json"
        self.state_file.parent.mkdir()
        self.library = build(folder / "library")
        own = tree.parent if tree.parent.name != "cgroup" else tree
        (folder / "stub.txt").write_text(
            f"driver 615.71.09\n{GPUS}limits misc cgroups={tree} own={own}\n"
        )
        self.containers = 0

    def environment(self):
        return {
            "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.library), "POD_UID": OWN,
            "NVML_STUB_FILE": str(self.folder / "stub.txt"), "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def start(self, pod, number, *command, **how):
        """Start a container's first process in its cgroup."""
        made = self.tree / "kubepods" / pod / id_of(number)
        made.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", "-c", JOIN, str(made), *command]
        return subprocess.Popen(
            command, env=self.environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT, **how
        )

    def limiter(self):
        self.containers += 1
        options = ("--node=n1", "--namespace=sys", f"--cgroups={self.tree}",
                   f"--folder={self.state_file.parent}",
                   f"--kubeconfig={self.api.kubeconfig}")  # fmt: skip
        program = (sys.executable, "-m", "webhook.cli", "limiter", *options)
        return self.start(f"besteffort/pod{OWN}", self.containers, *CONTAINER, *program)

    def list(self, *numbers):
        terms = CapTerms(
            cap_bytes=CAP, tolerance_bytes=0, delay_s=6.5, enforce=True, limit=DriverLimit.AUTO
        )
        lines = {
            uid_of(number): Assignment(
                pod=f"team/p{number}", uuids=(GPU,), memory_bytes=CAP, since_s=1, terms=terms
            )
            for number in numbers
        }
        self.api.lines.write_text(write_assignments(lines)["assignments"])

    def state(self):
        try:
            return json.loads(self.state_file.read_text())
        except FileNotFoundError:
            return {"proof": {}, "limited": []}

    def limited(self, *numbers):
        uids = [uid_of(number) for number in numbers]
        return wait_until(
            f"{numbers} limited",
            lambda: (
                (state := self.state())
                and [item["uid"] for item in state["limited"]] == uids
                and state["limited"]
            ),
        )


@pytest.fixture
def machine(tmp_path):
    if why := nodes.missing(nodes.V2):
        pytest.skip(why)
    folder = tmp_path / "node"
    folder.mkdir()
    with nodes.Api(tmp_path) as api, nodes.own_cgroup(nodes.V2) as tree:
        try:
            yield Machine(folder, api, tree)
        finally:
            (tree / "cgroup.kill").write_text("1")


def ended(program):
    """Stop the program, which is PID 1 of its namespace; return its exit code and log."""
    children = f"/proc/{program.pid}/task/{program.pid}/children"
    with open(children) as file:  # noqa: PTH123
        os.kill(int(file.read().split()[0]), signal.SIGTERM)
    log = program.communicate(timeout=60)[0]
    return program.returncode, [json.loads(line) for line in log.splitlines()]


def test_a_pods_limit_stands_before_it_runs_and_outlives_the_limiter(machine):
    """The program gets an out-of-memory error beyond the cap, and no signal is sent."""
    machine.list(1)
    limiter = machine.limiter()
    wait_until("a proof", lambda: machine.state()["proof"].get("holds"))
    pod = machine.tree / "kubepods" / f"pod{uid_of(1)}"
    pod.mkdir()
    (first,) = machine.limited(1)
    assert first["late"] is False
    app = machine.start(pod.name, 1, sys.executable, "-c", APP.format(CAP // MIB // 2))
    assert (app.communicate()[0].split(), app.returncode) == (["0", "0", "2"], 0)
    code, log = ended(limiter)
    assert (code, [item["msg"] for item in log]) == (
        0,
        ["started", "the driver holds caps here", "a pod is limited", "stopped"],
    )
    started_s = machine.state()["started"]
    again = machine.limiter()
    wait_until("its file", lambda: machine.state()["started"] != started_s)
    machine.limited(1)
    app = machine.start(pod.name, 2, sys.executable, "-c", APP.format(CAP // MIB))
    assert app.communicate()[0].split() == ["0", "2", "2"]
    assert ended(again)[0] == 0
    assert machine.state()["limited"][0] == first


@pytest.mark.parametrize(
    ("options", "said"), [((), "no node is named"), (("--node=n1",), "no namespace is named")]
)
def test_wrong_usage_is_code_two(options, said):
    command = (sys.executable, "-m", "webhook.cli", "limiter", *options)
    failed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={})
    assert (failed.returncode, said in failed.stderr) == (2, True)
