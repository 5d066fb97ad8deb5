"""Memory limits of cgroups in the stub, and samples of processes."""

import os
import time

import pytest

root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set the driver's limits")
SETTINGS = "limits {} cgroups={tree} own={tree}/pod/leaf\n"


@pytest.fixture
def tree(tmp_path):
    """Return a folder like a node's cgroups: a pod with a leaf, and another pod."""
    for path in ("pod/leaf", "other"):
        (tmp_path / "tree" / path).mkdir(parents=True)
    return tmp_path / "tree"


@root_alone
@pytest.mark.parametrize(
    ("mode", "gpu", "expected"),
    [
        ("missing", "", [None, False, None, None]),
        ("off", "", [None, False, None, None]),
        ("misc", "mig=1", [None, False, None, None]),
        ("misc", "", [None, True, [100, 100, 0], [100, 100, 0]]),
        ("dmem", "", [None, False, None, None]),  # the cgroups lack its files
        ("dmem enabled=1", "", [[0, 2**64 - 1, 0], True, [100, 100, 0], [0, 2**64 - 1, 0]]),
    ],
)
def test_a_leaf_sees_its_pods_limit_where_the_back_end_is_misc(mode, gpu, expected, stub, tree):
    def scenario(s, settings, gpu, tree):
        s.script(settings, gpu=f"gpu GPU-a total=1000 {gpu}\n")
        nvml = s.open()
        pod, leaf = f"{tree}/pod", f"{tree}/pod/leaf"

        def limit(path):
            found = nvml.limit("GPU-a", path)
            return found and [found.soft_bytes, found.hard_bytes, found.used_bytes]

        before = limit(pod)
        return before, nvml.set_limit("GPU-a", pod, 100, 100), limit(pod), limit(leaf)

    settings = SETTINGS.format(mode, tree=tree)
    assert stub.run(scenario, settings, gpu, str(tree)) == expected


@root_alone
def test_what_is_wrong_with_a_cgroup_does_not_lose_the_gpu(stub, tree):
    def scenario(s, settings, tree):
        s.script(settings)
        nvml = s.open()
        set_limit = nvml.set_limit
        outcomes = [
            s.outcome(set_limit, "GPU-a", f"{tree}/{path}", soft, 100)
            for path, soft in (("nowhere", 100), ("pod", 101), ("", 100), ("pod", 100))
        ]
        return outcomes, nvml.device_used_bytes("GPU-a")

    wrong = ["unknown", "nvmlDeviceSetMemoryLimits_v1", 2]
    settings = SETTINGS.format("misc", tree=tree)
    assert stub.run(scenario, settings, str(tree)) == [[wrong, wrong, False, True], 0]


def _allocates(s, settings, steps):
    """Set limits and allocate step by step; return each result, and the usage after it."""
    import ctypes  # noqa: PLC0415 - the scenario's source is all that is sent

    s.script(settings, gpu="gpu GPU-a total=1000 used=0\n")
    nvml = s.open()
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    leaf = settings.split("own=")[1].strip()
    answers = []
    for what, amount in steps:
        if what == "alloc":
            answers.append(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(amount)))
        elif what == "free":
            answers.append(cuda.cuMemFree_v2(address))
        elif what == "counted":
            found = nvml.limit("GPU-a", leaf if amount else leaf.rpartition("/")[0])
            answers.append(found.used_bytes)
        else:
            path = leaf if what == "leaf" else leaf.rpartition("/")[0]
            answers.append(s.outcome(nvml.set_limit, "GPU-a", path, 0, amount))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    listed = [used for _, used in s.listed(nvml)]
    return answers, listed, [free.value, total.value]


LOWERED = ["unknown", "nvmlDeviceSetMemoryLimits_v1", 2]


@root_alone
@pytest.mark.parametrize(
    ("mode", "steps", "answers", "listed", "info"),
    [
        pytest.param(
            "misc",
            [("pod", 300), ("alloc", 200), ("alloc", 101), ("alloc", 100), ("counted", 1)],
            [True, 0, 2, 0, 300], 300, [0, 300],
            id="an allocation beyond the pod's limit fails, the program goes on",
        ),
        pytest.param(
            "misc", [("alloc", 999), ("alloc", 2)], [0, 2], 999, [1, 1000],
            id="without a limit the GPU is the end",
        ),
        pytest.param(
            "misc",
            [("alloc", 200), ("pod", 300), ("counted", 0), ("alloc", 300), ("alloc", 1)],
            [0, True, 0, 0, 2], 500, [0, 300],
            id="what was held before a late limit is never counted",
        ),
        pytest.param(
            "misc",
            [("pod", 300), ("leaf", 2**64 - 1), ("alloc", 400), ("counted", 0), ("counted", 1)],
            [True, True, 0, 0, 400], 400, [600, 1000],
            id="a leaf's own entry hides the pod's, even one without an amount",
        ),
        pytest.param(
            "misc", [("pod", 300), ("alloc", 200), ("pod", 100), ("pod", 250), ("alloc", 51)],
            [True, 0, LOWERED, True, 2], 200, [50, 250],
            id="a limit is not lowered below what it counts",
        ),
        pytest.param(
            "misc", [("pod", 300), ("alloc", 300), ("free", 0), ("alloc", 300)],
            [True, 0, 0, 0], 300, [0, 300],
            id="what is freed may be allocated again",
        ),
        pytest.param(
            "dmem enabled=1",
            [("alloc", 200), ("leaf", 500), ("pod", 300), ("counted", 0), ("alloc", 101)],
            [0, True, True, 200, 2], 200, [300, 500],
            id="dmem counts in every cgroup above, from the beginning",
        ),
    ],
)  # fmt: skip
def test_programs_are_held_as_by_the_kernel_module(mode, steps, answers, listed, info, stub, tree):
    settings = SETTINGS.format(mode, tree=tree)
    assert stub.run(_allocates, settings, steps) == [answers, [listed], info]


def test_a_contexts_memory_is_listed_and_counted_by_no_limit(stub, tree):
    steps = [("pod", 300), ("alloc", 300), ("counted", 0)]
    settings = SETTINGS.format("misc context=50", tree=tree)
    if os.geteuid() == 0:
        assert stub.run(_allocates, settings, steps) == [[True, 0, 300], [350], [0, 300]]
    else:
        denied = ["no-permission", "nvmlDeviceSetMemoryLimits_v1", 4]
        assert stub.run(_allocates, settings, steps[:2]) == [[denied, 0], [350], [700, 1000]]


@pytest.mark.parametrize(
    ("script", "since_s", "expected"),
    [
        ("", 60, {}),
        ("ran 0 42 7 90\nran 0 43 3 0\n", 60, {"42": True, "43": False}),
        ("ran 0 42 7 90\nran 0 43 3 0\n", 5, {"43": False}),
        ("missing nvmlDeviceGetProcessUtilization\n", 60, None),
        ("fail nvmlDeviceGetProcessUtilization 3\n", 60, None),
    ],
)
def test_who_ran_is_told_since_a_time(script, since_s, expected, stub):
    def scenario(s, script, since_s):
        s.script(script)
        found = s.open().process_samples("GPU-a", int((time.time() - since_s) * 1e6))
        return found and {pid: busy for pid, (_, busy) in found.items()}

    assert stub.run(scenario, script, since_s) == expected
