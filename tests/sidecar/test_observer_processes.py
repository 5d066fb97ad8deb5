"""How the observer identifies the driver's PIDs, and the number of its reads."""

import itertools
import shutil
from types import SimpleNamespace

import pytest

from tests.sidecar.parts import ID, OTHER_ID, ScriptedNvml, put, stat_line
from webhook.core.enforcement.model import UNIDENTIFIED, Process, Usage
from webhook.core.enforcement.pacing import LIST_EVERY_S, LIST_FLOOR_S, MOVED_BYTES
from webhook.sidecar import observer as under_test
from webhook.sidecar.observer import (
    ALWAYS_IDENTIFIED,
    UNIDENTIFIED_AFTER_S,
    UNIDENTIFIED_COUNTS_AFTER_S,
    Observer,
)

CAP_BYTES = 1000 * MOVED_BYTES
BOTH = ("GPU-a", "GPU-b")


class Pod:
    """An observer, its NVML, and the processes in its /proc."""

    def __init__(self, folder):
        self.nvml = ScriptedNvml(a={7: 70}, b={})
        self.folder = folder
        self.observer = Observer(self.nvml, CAP_BYTES, proc=str(folder))

    def runs(self, pid, *, started=4711, **files):
        put(self.folder, pid, stat=stat_line(pid, started=started), **files)

    def ends(self, pid):
        shutil.rmtree(self.folder / str(pid))

    def observe(self, now_s, judged=BOTH):
        return self.observer.observe(now_s, judged)

    def lists_read(self, now_s):
        """Return the number of lists that an observation without judged GPUs reads."""
        before = len(self.nvml.times("processes"))
        assert self.observe(now_s, ()).fault == ""
        return len(self.nvml.times("processes")) - before


@pytest.fixture
def pod(tmp_path):
    made = Pod(tmp_path)
    made.runs(7)
    return made


def listed(observation):
    return [(usage.gpu, usage.process.pid, usage.process.started) for usage in observation.usages]


def test_a_process_is_told_with_its_command_container_and_start(pod):
    pod.runs(7, started=5, cmdline="python\0train.py\0", cgroup=f"0::/../cri-containerd-{ID}.scope")
    ((usage,),) = (pod.observe(0).usages,)
    assert usage.process == Process(7, 5)
    assert (usage.process.command, usage.process.container) == ("python train.py", ID)
    assert (usage.gpu, usage.used_bytes) == ("GPU-a", 70)


@pytest.mark.parametrize("figure", [3, None], ids=["a figure", "none that is known"])
def test_a_process_on_two_gpus_is_told_on_each_with_its_figure(figure, pod):
    pod.nvml.listed["GPU-b"] = {7: figure}
    seen = pod.observe(0)
    assert listed(seen) == [("GPU-a", 7, 4711), ("GPU-b", 7, 4711)]
    assert [usage.used_bytes for usage in seen.usages] == [70, figure]


@pytest.mark.parametrize("zombie", [False, True], ids=["over", "a zombie"])
def test_a_process_that_is_over_and_still_listed_keeps_its_name(zombie, pod):
    first = pod.observe(0)
    if zombie:
        put(pod.folder, 7, stat=stat_line(7, state="Z"), cmdline="")
    else:
        pod.ends(7)
    for now_s in (1, 20):
        seen = pod.observe(now_s)
        assert (seen.usages, seen.fault) == (first.usages, "")
        assert seen.usages[0].process.command == "python train.py"


@pytest.mark.parametrize("codes", [{"processes": 9}, {"processes GPU-b": 10}])
def test_a_process_that_is_over_keeps_its_name_through_a_failure(codes, pod):
    pod.nvml.listed = {"GPU-a": {}, "GPU-b": {7: 3}}
    first = pod.observe(0)
    pod.ends(7)
    pod.nvml.codes = codes
    assert pod.observe(1).usages == ()
    pod.nvml.codes = {}
    assert (pod.observe(2).usages, pod.observe(3).fault) == (first.usages, "")


def test_a_number_that_is_used_again_is_another_process(pod):
    pod.observe(0)
    pod.runs(7, started=4712, cmdline="other\0", cgroup=f"0::/../{OTHER_ID}")
    (usage,) = pod.observe(1).usages
    assert (usage.process.started, usage.process.command) == (4712, "other")
    assert usage.process.container == OTHER_ID


def test_a_number_used_again_after_it_was_listed_nowhere_is_another_process(pod):
    pod.observe(0)
    pod.nvml.listed["GPU-a"] = {}
    assert pod.observe(1).usages == ()
    pod.ends(7)
    pod.nvml.listed["GPU-a"] = {7: 70}
    assert pod.observe(2).usages == ()  # the old identity would name the memory of another process
    pod.runs(7, started=4712)
    assert listed(pod.observe(3)) == [("GPU-a", 7, 4712)]


def test_a_process_is_remembered_while_one_gpu_still_lists_it(pod):
    pod.nvml.listed["GPU-b"] = {7: 3}
    pod.observe(0)
    pod.nvml.listed["GPU-a"] = {}
    pod.observe(1)
    pod.ends(7)
    assert listed(pod.observe(2)) == [("GPU-b", 7, 4711)]


def test_what_is_listed_nowhere_is_forgotten(pod):
    for pid in range(10, 60):
        pod.runs(pid)
        pod.nvml.listed["GPU-a"] = {pid: 1, pid + 1000: 1}
        pod.observe(pid)
    assert len(pod.observer._processes) == 1
    assert len(pod.observer._unidentified) == 1


@pytest.fixture
def asked(monkeypatch):
    """Return the PIDs that were read in /proc, with repetitions."""
    found = []

    def counting(real):
        def counted(who, **options):
            found.append(getattr(who, "pid", who))
            return real(who, **options)

        return counted

    for name in ("identify", "is_gone"):
        real = getattr(under_test.processes, name)
        monkeypatch.setattr(under_test.processes, name, counting(real))
    return found


def crowded(pod, count, bytes_each):
    pod.nvml.listed["GPU-a"] = dict.fromkeys(range(100, 100 + count), bytes_each)
    for pid in range(100, 100 + count):
        pod.runs(pid)


@pytest.mark.parametrize(
    ("more", "over_bytes", "judged", "identified"),
    [
        pytest.param(0, 0, (), True, id="a few are identified always"),
        pytest.param(1, 0, (), False, id="a crowd within the ceiling is added up"),
        pytest.param(1, 1, (), True, id="a crowd over it is identified"),
        pytest.param(1, 0, ("GPU-b",), False, id="another GPU is judged"),
        pytest.param(1, 0, ("GPU-a",), True, id="it is judged"),
    ],
)
def test_a_crowd_is_identified_over_the_ceiling_and_while_it_is_judged(
    more, over_bytes, judged, identified, pod, asked
):
    count, each = ALWAYS_IDENTIFIED + more, 1000
    ceiling_bytes = count * each - over_bytes
    pod.observer = Observer(pod.nvml, CAP_BYTES, ceiling_bytes=ceiling_bytes, proc=str(pod.folder))
    crowded(pod, count, each)
    seen = pod.observe(0, judged)
    assert seen.fault == ""
    assert seen.usages == tuple(
        Usage("GPU-a", Process(pid, 4711 if identified else UNIDENTIFIED), each)
        for pid in range(100, 100 + count)
    )
    assert sorted(asked) == (list(range(100, 100 + count)) if identified else [])


def test_in_a_crowd_a_process_without_a_figure_is_unknown_still(pod):
    crowded(pod, ALWAYS_IDENTIFIED + 1, 10)
    pod.nvml.listed["GPU-a"][100] = None
    assert [usage.used_bytes for usage in pod.observe(0, ()).usages] == [
        None,
        *[10] * ALWAYS_IDENTIFIED,
    ]


def test_who_was_identified_before_keeps_its_name_in_a_crowd(pod, asked):
    crowded(pod, ALWAYS_IDENTIFIED, 10)
    pod.observe(0, ())
    crowded(pod, ALWAYS_IDENTIFIED + 1, 10)
    asked.clear()
    started = [usage.process.started for usage in pod.observe(LIST_EVERY_S, ()).usages]
    assert (started, asked) == ([4711] * ALWAYS_IDENTIFIED + [UNIDENTIFIED], [])


def test_a_process_is_identified_once_while_it_stays_the_same(pod, asked, monkeypatch):
    monkeypatch.setattr(under_test.processes, "is_gone", lambda *_, **__: False)
    for now_s in range(5):
        pod.observe(now_s)
    assert asked == [7]


def test_a_number_that_is_nobody_here_is_a_failure_after_a_while_only(pod):
    pod.nvml.listed["GPU-a"][99] = 10
    for now_s in (0, 1, UNIDENTIFIED_AFTER_S - 0.1):
        seen = pod.observe(now_s)
        assert (listed(seen), seen.fault) == ([("GPU-a", 7, 4711)], "")
    seen = pod.observe(UNIDENTIFIED_AFTER_S)
    assert listed(seen) == [("GPU-a", 7, 4711)]
    assert seen.fault == (
        "the driver lists process 99 on GPU GPU-a with 1Mi, and there is no such process in this "
        "pod"
    )


def test_a_number_that_was_listed_once_is_no_failure_however_old_that_list_gets(pod):
    pod.nvml.listed["GPU-a"][99] = 10
    pod.observe(0)
    del pod.nvml.listed["GPU-a"][99]
    for now_s in (UNIDENTIFIED_AFTER_S, LIST_EVERY_S - 0.1, LIST_EVERY_S, 2 * LIST_EVERY_S):
        assert pod.observe(now_s, ()).fault == ""


def test_a_number_that_lists_a_while_apart_both_show_is_a_failure_of_the_gpu_that_lists_it(pod):
    pod.nvml.listed = {"GPU-a": {7: 70, 99: 1}, "GPU-b": {98: 1}}
    assert pod.observe(0, ()).fault == ""
    fault = pod.observe(LIST_EVERY_S, ()).fault
    assert "process 99 on GPU GPU-a" in fault
    assert "process 98 on GPU GPU-b" in fault


@pytest.mark.parametrize("becomes", ["known", "unlisted"])
def test_a_failure_for_a_number_ends_when_it_is_somebody_or_gone(becomes, pod):
    pod.nvml.listed["GPU-a"][99] = 10
    pod.observe(0)
    assert pod.observe(UNIDENTIFIED_AFTER_S).fault
    if becomes == "known":
        pod.runs(99)
    else:
        del pod.nvml.listed["GPU-a"][99]
    assert pod.observe(UNIDENTIFIED_AFTER_S + 1).fault == ""


def test_lists_are_read_when_the_total_moved_over_the_cap_or_time_is_up(pod):
    pod.nvml.total_bytes = 2 * CAP_BYTES
    assert pod.lists_read(0) == 2
    assert pod.lists_read(LIST_FLOOR_S) == 0
    pod.nvml.total_bytes += MOVED_BYTES
    assert pod.lists_read(2 * LIST_FLOOR_S) == 2
    assert pod.lists_read(LIST_EVERY_S) == 0
    assert pod.lists_read(2 * LIST_FLOOR_S + LIST_EVERY_S) == 2


def test_between_two_lists_the_last_one_is_told_with_its_time(pod):
    pod.observe(0)
    pod.nvml.listed["GPU-a"][7] = 75
    seen = pod.observe(3, ())
    assert [usage.used_bytes for usage in seen.usages] == [70]
    assert dict(seen.listed_at_s) == {"GPU-a": 0, "GPU-b": 0}


def test_a_gpu_that_is_judged_is_read_each_time_and_the_other_is_not(pod):
    pod.observe(0)
    pod.nvml.listed = {"GPU-a": {7: 75}, "GPU-b": {7: 1}}
    seen = pod.observe(0.5, {"GPU-a"})
    assert {usage.gpu: usage.used_bytes for usage in seen.usages} == {"GPU-a": 75}
    assert dict(seen.listed_at_s) == {"GPU-a": 0.5, "GPU-b": 0}


def test_a_gpu_whose_lists_take_long_is_read_half_as_often(pod, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(under_test, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert pod.lists_read(0) == 2
    assert pod.lists_read(LIST_EVERY_S) == 0
    assert pod.lists_read(2 * LIST_EVERY_S) == 2


def test_a_gpu_without_a_total_is_read_at_the_floor(pod):
    pod.nvml.total_bytes = None
    assert [pod.lists_read(tenth * LIST_FLOOR_S / 2) for tenth in range(4)] == [2, 0, 2, 0]


def test_what_a_failure_hid_is_read_as_soon_as_it_is_over(pod):
    pod.observe(0)
    pod.nvml.codes = {"device_used_bytes GPU-a": 10}
    assert listed(pod.observe(0.1, ())) == []
    pod.nvml.codes = {}
    assert listed(pod.observe(0.2, ())) == [("GPU-a", 7, 4711)]


def alone(pod, *, counts=True, gpus=("a",)):
    """Give the pod these GPUs; `counts` is True if unidentified processes count for it."""
    pod.nvml.listed = {f"GPU-{name}": {} for name in gpus}
    pod.nvml.listed["GPU-a"] = {7: 70, 99: 50}
    pod.observer = Observer(pod.nvml, CAP_BYTES, counts_unidentified=counts, proc=str(pod.folder))


def test_a_stranger_counts_after_a_while_where_it_is_surely_ours(pod):
    alone(pod)
    seen = {
        now_s: pod.observe(now_s)
        for now_s in (0, UNIDENTIFIED_AFTER_S, UNIDENTIFIED_COUNTS_AFTER_S, 30)
    }
    assert [listed(item) for item in seen.values()] == [
        *[[("GPU-a", 7, 4711)]] * 2,
        *[[("GPU-a", 7, 4711), ("GPU-a", 99, UNIDENTIFIED)]] * 2,
    ]
    assert seen[30].usages[1].used_bytes == 50
    assert [bool(item.fault) for item in seen.values()] == [False, True, False, False]


@pytest.mark.parametrize(("counts", "gpus"), [(False, ("a",)), (True, ("a", "b"))])
def test_a_stranger_is_reported_and_not_counted_where_there_is_a_doubt(counts, gpus, pod):
    alone(pod, counts=counts, gpus=gpus)
    seen = [pod.observe(now_s) for now_s in (0, UNIDENTIFIED_COUNTS_AFTER_S, 30)][-1]
    assert listed(seen) == [("GPU-a", 7, 4711)]
    assert "process 99" in seen.fault


def test_a_stranger_that_was_not_listed_for_a_moment_is_waited_for_again(pod):
    alone(pod)
    pod.observe(0)
    del pod.nvml.listed["GPU-a"][99]
    pod.observe(5)
    pod.nvml.listed["GPU-a"][99] = 50
    seen = [pod.observe(now_s) for now_s in (6, 6 + UNIDENTIFIED_AFTER_S, 15, 16)]
    assert [bool(item.fault) for item in seen] == [False, True, True, False]
    assert [len(item.usages) for item in seen] == [1, 1, 1, 2]


def test_a_stranger_without_a_figure_is_said_to_have_none(pod):
    alone(pod, counts=False)
    pod.nvml.listed["GPU-a"][99] = None
    pod.observe(0)
    assert "process 99 on GPU GPU-a without a figure, and there" in pod.observe(5).fault
