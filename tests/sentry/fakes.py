"""A scripted driver, processes and lists for parts of the sentry; time is an argument."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGKILL

from webhook.adapters.node_processes import Owner
from webhook.adapters.nvml import NvmlError
from webhook.adapters.processes import Delivery
from webhook.core.enforcement.model import Process
from webhook.core.node.cgroups import ProcessOwner
from webhook.core.nvidia.drivers import ScannedGpu
from webhook.core.placement.assignments import Assignment
from webhook.core.placement.cap_terms import CapTerms
from webhook.core.policy.model import EnforceBy
from webhook.sentry.scanner import GpuProcess, ProcessScan

MIB = 2**20
CAP_MIB = 1000
TOTAL_MIB = 81_559
GPUS = ("GPU-a", "GPU-b")
TRAINER, OTHER = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"
ID, OTHER_ID = "1" * 64, "2" * 64


def cap_terms(*, delay_s=6.5, enforce=True, cap_mib=CAP_MIB, **more):
    amounts = {"cap_bytes": cap_mib * MIB, "tolerance_bytes": 20 * MIB}
    return CapTerms(**amounts, delay_s=delay_s, enforce=enforce, **more)


def sentry_terms(delay_s=1.5, **more):
    return cap_terms(delay_s=delay_s, by=EnforceBy.SENTRY, **more)


def an_assignment(*gpus, terms=None, pod="team/train"):
    return Assignment(
        pod=pod,
        uuids=gpus or ("GPU-a",),
        memory_bytes=CAP_MIB * MIB,
        since_s=1,
        terms=terms or cap_terms(),
    )


def owner(pid, pod=TRAINER, container=ID, started=10):
    process = Process(pid, started, "train", container)
    return Owner(process, ProcessOwner(pod, container) if pod else ProcessOwner(""))


def held(pid, mib, pod=TRAINER, *, dead=False, **more):
    used_bytes = None if mib is None else mib * MIB
    return GpuProcess(pid, owner(pid, pod, **more) if pod is not None else None, used_bytes, dead)


def a_scan(*on_a, failed="", **lists):
    """Return a scan with these processes listed on the first GPU."""
    listed = {"GPU-a": on_a} | {f"GPU-{name}": there for name, there in lists.items()}
    gpus = tuple(a_gpu(gpu, index) for index, gpu in enumerate(GPUS))
    return ProcessScan(gpus=gpus, lists=listed, failed=failed)


def a_gpu(gpu, index=0, used_bytes=0):
    """Return a GPU of which the driver reserves 1 MiB."""
    return ScannedGpu(
        uuid=gpu, product="H200", index=index, usable_bytes=(TOTAL_MIB - 1) * MIB,
        total_bytes=TOTAL_MIB * MIB, used_bytes=used_bytes,
    )  # fmt: skip


class Driver:
    """Behaves like `Nvml`."""

    def __init__(self, *gpus):
        self.used = dict.fromkeys(gpus or GPUS, 0)
        self.lists = {gpu: {} for gpu in self.used}
        self.samples = {}
        self.codes = {}
        self.version = "580.65.06"
        self.unreachable = ()
        self.mig = frozenset()
        self.calls = []

    def __enter__(self):
        self._meet("open")
        return self

    def __exit__(self, *_):
        self.calls.append("close")

    def driver_version(self):
        return self.version

    def devices(self):
        self._meet("devices")
        return tuple(
            replace(a_gpu(gpu, n, None), mig=gpu in self.mig) for n, gpu in enumerate(self.used)
        )

    def device_used_bytes(self, gpu):
        self._meet(f"used {gpu}", gpu)
        return self.used[gpu]

    def processes(self, gpu):
        self._meet(f"list {gpu}", gpu)
        return self.lists[gpu]

    def process_samples(self, gpu, _since_us):
        self._meet(f"ran {gpu}", gpu)
        return self.samples.get(gpu)

    def _meet(self, call, gpu=""):
        self.calls.append(call)
        if call in self.codes:
            raise NvmlError(call, self.codes[call], gpu=gpu)


class Node:
    """Behaves like `NodeProcesses`; `alive` maps PIDs to processes."""

    def __init__(self, *alive):
        self.alive = {item.process.pid: item for item in alive}
        self.asked = []
        self.killed = []
        self.signals = []
        self.handlers = set()
        """PIDs of processes that handle SIGTERM."""
        self.kubelets = set()
        """PIDs of processes that see files that the kubelet makes per container."""
        self.mounts = frozenset({"0:99"})
        self.enforcers = set()
        self.inner = {}
        self.refused = set()
        self.forks = {}
        """Processes that start when another one is killed, keyed by the latter's PID."""
        self.ends_with = {}
        """Process of the same namespace that ends with its PID 1, keyed by PID 1's node PID."""

    def owner(self, pid):
        self.asked.append(pid)
        return self.alive.get(pid)

    def is_gone(self, process):
        self.asked.append(process.pid)
        found = self.alive.get(process.pid)
        return found is None or found.process != process

    def in_pod(self, pod):
        yield from [item for item in self.alive.values() if item.place.pod == pod]

    def by_name(self, wanted):
        yield from [item for item in self.alive.values() if wanted(item.process.command)]

    def send(self, owner, number):
        pid = owner.process.pid
        if pid in self.refused:
            return Delivery.REJECTED
        if pid not in self.alive:
            return Delivery.GONE
        self.signals.append((pid, number))
        if number != SIGKILL:
            return Delivery.DELIVERED
        del self.alive[pid]
        self.alive.pop(self.ends_with.get(pid), None)
        self.killed.append(pid)
        self.alive |= {item.process.pid: item for item in self.forks.get(pid, ())}
        return Delivery.DELIVERED

    def inner_pid(self, pid):
        return self.inner.get(pid, 7)

    def handles(self, pid, _number):
        return pid in self.handlers

    def has_container_mounts(self, pid, _pod):
        return pid in self.kubelets

    def enforcer_mounts(self, _pod):
        return self.mounts

    def has_mounted(self, pid, _devices):
        return pid in self.enforcers


def dead(one):
    return replace(one, dead=True)
