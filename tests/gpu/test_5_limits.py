"""A driver that limits cgroups (from r615 on): facts so far known only from its source."""

import contextlib
import subprocess
import sys
import time

import pytest

from tests.gpu.machine import MIB, ROOT, Program, cgroups, median_us, mib, programs
from tests.support.measurement_table import answer
from webhook.adapters.nvml import NvmlError

CAP_BYTES = 2048 * MIB
POD = ("kubepods/podx", "kubepods/podx/leaf")


@pytest.fixture
def pod(limits):
    """Create the cgroups of a pod and its container. With dmem, both have limit files."""
    with cgroups(*POD) as made:
        if limits == "dmem":
            for folder in (made[0].parents[2], made[0].parents[1], made[0].parent, made[0]):
                (folder / "cgroup.subtree_control").write_text("+dmem")
        yield made


def soft(back_end, cap_bytes=CAP_BYTES):
    return 0 if back_end == "dmem" else cap_bytes


def test_a_limit_is_said_again_also_for_the_container(limits, pod, nvml, gpu):
    for path in pod:
        answer(f"no limit yet, {path.name}", nvml.limit(gpu, str(path)))
    assert nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)
    assert nvml.limit(gpu, str(pod[0])).hard_bytes == CAP_BYTES
    answer("the pod's limit, asked for its container", nvml.limit(gpu, str(pod[1])))


def test_a_program_gets_an_error_beyond_it_and_lives(limits, pod, nvml, gpu):
    nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)
    with programs(1, cgroup=pod[1]) as (one,):
        answer("free and total within a limit of 2Gi", one.does("info"))
        answer("counted of a context", mib(nvml.limit(gpu, str(pod[0])).used_bytes))
        steps = 0
        while (said := one.does(f"alloc {64 * MIB}")) == "ok" and steps < 100:
            steps += 1
        counted, listed = nvml.limit(gpu, str(pod[0])).used_bytes, nvml.processes(gpu)[one.pid]
        answer("at the limit: answer, counted, listed", f"{said}, {mib(counted)}, {mib(listed)}")
        assert said == "cuMemAlloc_v2 2"
        assert one.does("free") == "ok"
        assert one.does(f"alloc {64 * MIB}") == "ok"


def test_what_is_not_counted(limits, pod, nvml, gpu):
    nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)

    def counted():
        return nvml.limit(gpu, str(pod[0])).used_bytes

    with programs(2, cgroup=pod[1]) as (one, two):
        for kind in ("managed", "pool"):
            before = counted()
            said = one.does(f"{kind} {512 * MIB}")
            answer(f"512Mi of kind {kind}: answer, counted", f"{said}, {mib(counted() - before)}")
        one.does(f"alloc {512 * MIB}")
        before = counted()
        if len(handle := one.does("export")) != 128:
            pytest.skip(f"no memory can be exported here: {handle}")
        said = two.does(f"import {handle}")
        imported = counted() - before
        one.end()
        time.sleep(0.5)
        answer(
            "imported: answer, counted, once its creator ended",
            f"{said}, {mib(imported)}, {mib(counted() - before)}",
        )


def test_a_limit_that_comes_late(limits, pod, nvml, gpu):
    with programs(1, cgroup=pod[1]) as (one,):
        one.does(f"alloc {1024 * MIB}")
        said = outcome(nvml.set_limit, gpu, str(pod[0]), soft(limits), CAP_BYTES)
        answer(
            "1Gi held, then a limit of 2Gi: answer, counted",
            f"{said}, {mib(nvml.limit(gpu, str(pod[0])).used_bytes)}",
        )
        answer("then 1.5Gi more", one.does(f"alloc {1536 * MIB}"))
        said = outcome(nvml.set_limit, gpu, str(pod[0]), 0, 64 * MIB)
        answer("lowered below what is counted", said)


def test_which_entry_counts(limits, pod, nvml, gpu):
    nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)
    nvml.set_limit(gpu, str(pod[1]), 0, 2 * CAP_BYTES)
    with programs(1, cgroup=pod[1]) as (one,):
        answer("pod 2Gi, its container 4Gi: 3Gi", one.does(f"alloc {3072 * MIB}"))
    nvml.set_limit(gpu, str(pod[1]), 0, 2**64 - 1)
    with programs(1, cgroup=pod[1]) as (one,):
        answer("pod 2Gi, its container's taken off: 3Gi", one.does(f"alloc {3072 * MIB}"))


def test_who_is_counted_that_moves(limits, pod, nvml, gpu):
    nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)
    one = Program(cgroup=pod[1])
    (pod[0].parents[2] / "cgroup.procs").write_text(str(one.pid))
    answer("made in the pod, moved out: 3Gi", one.does(f"alloc {3072 * MIB}"))
    one.end()


def test_who_may_ask_and_who_may_set(limits, pod, nvml, gpu):
    nvml.set_limit(gpu, str(pod[0]), soft(limits), CAP_BYTES)
    for name, before in (
        ("uid 65534", ("setpriv", "--reuid=65534", "--clear-groups")),
        (
            "root without SYS_ADMIN",
            ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"),
        ),
    ):
        script = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from webhook.adapters.nvml import Nvml, NvmlError\n"
            "nvml = Nvml().open(); nvml.devices()\n"
            "print(nvml.limit(*sys.argv[2:4]) is not None)\n"
            "try: print(nvml.set_limit(*sys.argv[2:4], 0, 1))\n"
            "except NvmlError as error: print(error.code)\n"
        )
        done = subprocess.run(
            [*before, sys.executable, "-c", script, str(ROOT), gpu, str(pod[0])],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        answer(f"get and set as {name}", " ".join((done.stdout or done.stderr[-80:]).split()))


def test_ten_thousand_cgroups_come_and_go(limits, nvml, gpu):
    def slab():
        with contextlib.suppress(OSError):
            for line in open("/proc/meminfo"):  # noqa: SIM115, PTH123
                if line.startswith("SUnreclaim"):
                    return int(line.split()[1])
        return 0

    with cgroups("many") as (many,):
        before_kb, first_us = slab(), median_us(lambda: nvml.limit(gpu, str(many)))
        began_s, stale = time.monotonic(), 0
        for number in range(10_000):
            made = many / f"c{number}"
            made.mkdir()
            stale += nvml.limit(gpu, str(made)) is not None and limits == "misc"
            nvml.set_limit(gpu, str(made), 0, CAP_BYTES)
            made.rmdir()
        each_us = (time.monotonic() - began_s) * 100
        last_us = median_us(lambda: nvml.limit(gpu, str(many)))
        answer(
            "10,000 cgroups: each, get before and after", f"{each_us:.0f}, {first_us}, {last_us} us"
        )
        answer(
            "10,000 cgroups: kernel memory left, stale entries met",
            f"{slab() - before_kb} kB, {stale}",
        )


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except NvmlError as error:
        return f"code {error.code}"
