"""The observer's handling of each NVML error, with a clock that the test advances."""

from itertools import pairwise

import pytest

from tests.sidecar.parts import ScriptedNvml, put
from webhook.core.nvidia.drivers import Fault, classify_error, explain_fault
from webhook.sidecar.observer import SEARCH_INTERVAL_S, DriverChangedError, Observer

CODES = [1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 25, 28, 999, 4242]
OF_THE_DRIVER = {Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED}
OF_ONE_GPU = [code for code in CODES if classify_error(code) not in OF_THE_DRIVER]
LOST = [code for code in CODES if classify_error(code) is Fault.GPU_LOST]
WORDS = {
    1: "the NVIDIA driver is not loaded, or is being replaced",
    3: "this GPU does not offer it",
    4: "the driver denies access",
    7: "the answer outgrew every buffer",
    999: "the driver failed for a reason not known here",
}
A, B = {("GPU-a", 7): 70}, {("GPU-b", 8): 80}
METHODS = ["devices", "device_used_bytes", "processes"]
PAUSES_S = [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.fixture
def nvml():
    return ScriptedNvml(a={7: 70}, b={8: 80})


@pytest.fixture
def observe(nvml, tmp_path):
    """Return a function that observes at a time; lists of `judged` GPUs are read each time."""
    for pid in (7, 8, 9):
        put(tmp_path, pid)
    observer = Observer(nvml, 1000, proc=str(tmp_path))

    def observe_at(now_s, judged=("GPU-a", "GPU-b")):
        nvml.now_s = now_s
        return observer.observe(now_s, judged)

    return observe_at


def held(observation):
    return {(usage.gpu, usage.process.pid): usage.used_bytes for usage in observation.usages}


def until(observe, nvml, method, from_s, times):
    """Observe every half second until a method was called this often; return the time."""
    now_s = from_s
    while len(found := [time for time in nvml.times(method) if time >= from_s]) < times:
        observe(now_s)
        now_s += 0.5
    return found


def gaps(times_s):
    return [late - early for early, late in pairwise(times_s)]


def test_without_a_failure_every_process_is_reported_and_gpus_are_searched_once(observe, nvml):
    for now_s in range(0, 200, 5):
        seen = observe(now_s)
        assert (held(seen), seen.fault) == (A | B, "")
        assert dict(seen.listed_at_s) == {"GPU-a": now_s, "GPU-b": now_s}
    assert nvml.times("devices") == [0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", [1, 9])
def test_a_driver_that_is_down_is_closed_and_nothing_is_known(code, method, observe, nvml):
    observe(0)
    nvml.codes = {method: code, "processes": code}
    seen = observe(40)
    assert seen.usages == ()
    assert dict(seen.listed_at_s) == {}
    assert WORDS[1] == explain_fault(Fault.DRIVER_DOWN)
    assert WORDS[1] in seen.fault
    assert nvml.times("close") == [40]


@pytest.mark.parametrize("code", [9, 999, 12])
def test_a_driver_that_is_down_is_retried_after_pauses_that_double_up_to_thirty_seconds(
    code, observe, nvml
):
    observe(0)
    nvml.codes = {"processes": 9, "reopen": code}
    down = observe(100)
    retried_s = until(observe, nvml, "reopen", 100, len(PAUSES_S))
    assert gaps([100, *retried_s]) == PAUSES_S
    assert {name for when_s, name in nvml.calls if when_s > 100} == {"close", "reopen"}
    assert held(down) == {}


def test_between_two_attempts_the_driver_is_left_alone_and_the_reason_stays(observe, nvml):
    observe(0)
    nvml.codes = {"processes": 9}
    first = observe(100)
    calls = len(nvml.calls)
    again = observe(100.9)
    assert (again.fault, again.usages, len(nvml.calls)) == (first.fault, (), calls)


def test_a_driver_that_is_back_is_searched_and_measured_in_one_observation(observe, nvml):
    observe(0)
    nvml.codes = {"processes": 9}
    observe(1)
    nvml.codes = {}
    seen = observe(2)
    assert held(seen) == A | B
    assert seen.fault == ""
    assert nvml.times("devices") == [0, 2]


def test_what_was_known_before_an_outage_is_not_reported_after_it(observe, nvml):
    observe(0)
    nvml.codes = {"device_used_bytes GPU-a": 9}
    observe(1)
    nvml.codes = {}
    nvml.listed = {"GPU-a": {}, "GPU-b": {8: 85}}
    seen = observe(2, ())
    assert held(seen) == {("GPU-b", 8): 85}
    assert dict(seen.listed_at_s) == {"GPU-a": 2, "GPU-b": 2}


def test_after_a_complete_observation_the_pauses_begin_again(observe, nvml):
    observe(0)
    nvml.codes = {"processes": 9, "reopen": 9}
    observe(100)
    until(observe, nvml, "reopen", 100, 5)
    nvml.codes = {}
    assert observe(200).fault == ""
    nvml.codes = {"processes": 9, "reopen": 9}
    observe(300)
    assert gaps([300, *until(observe, nvml, "reopen", 300, 3)]) == PAUSES_S[:3]


@pytest.mark.parametrize("method", METHODS)
def test_a_driver_that_opens_and_fails_at_once_is_not_retried_any_sooner(method, observe, nvml):
    observe(0)
    nvml.codes = {"processes": 9}
    observe(100)
    nvml.codes = {method: 9}
    assert gaps([100, *until(observe, nvml, "reopen", 100, 6)]) == PAUSES_S[:6]


@pytest.mark.parametrize(
    ("before", "method"),
    [*[({"processes GPU-b": 3}, method) for method in METHODS], ({"processes": 9}, "reopen")],
)
def test_a_driver_that_was_replaced_ends_the_program(before, method, observe, nvml):
    observe(0)
    nvml.codes = before
    observe(40)  # so that the library is searched for or opened again
    nvml.codes = {method: 18}
    with pytest.raises(DriverChangedError, match="only a new container gets the new one"):
        observe(80)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("code", OF_ONE_GPU)
def test_any_other_failure_of_one_gpu_makes_that_one_unknown_and_no_other(
    code, method, observe, nvml
):
    observe(0)
    nvml.codes = {f"{method} GPU-b": code}
    seen = observe(1)
    assert held(seen) == A
    assert dict(seen.listed_at_s) == {"GPU-a": 1}
    assert "GPU-b" in seen.fault
    assert explain_fault(classify_error(code)) in seen.fault
    assert f" returned {code}" in seen.fault
    assert WORDS.get(code, "") in seen.fault
    assert nvml.times("close") == []
    if code not in LOST:  # such a fault ends with the next observation
        nvml.codes = {}
        seen = observe(2)
        assert (held(seen), seen.fault) == (A | B, "")


@pytest.mark.parametrize("code", LOST)
def test_a_lost_gpu_is_searched_every_half_minute_and_measured_when_back(code, observe, nvml):
    observe(0)
    nvml.codes = {"processes GPU-b": code, "devices GPU-b": code}
    observe(10)
    found_s = until(observe, nvml, "devices", 10.5, 4)
    assert gaps(found_s) == [SEARCH_INTERVAL_S] * 3
    nvml.codes = {}
    last_s = found_s[-1]
    waiting = observe(last_s + SEARCH_INTERVAL_S - 1)
    assert held(waiting) == A
    assert "GPU-b" in waiting.fault
    back = observe(last_s + SEARCH_INTERVAL_S)
    assert held(back) == A | B
    assert back.fault == ""


def test_a_gpu_that_did_not_answer_at_the_start_is_missed_and_measured_when_it_does(observe, nvml):
    nvml.codes = {"devices GPU-b": 15}
    seen = observe(0)
    assert held(seen) == A
    assert "GPU-b" in seen.fault
    assert observe(29).fault == seen.fault
    assert observe(30).fault == seen.fault
    nvml.codes = {}
    assert held(observe(59)) == A
    back = observe(60)
    assert held(back) == A | B
    assert back.fault == ""
    assert nvml.times("devices") == [0, 30, 60]


@pytest.mark.parametrize("code", OF_ONE_GPU)
def test_a_failing_search_leaves_nothing_known_until_one_succeeds(code, observe, nvml):
    nvml.codes = {"devices": code}
    seen = observe(0)
    assert (seen.usages, dict(seen.listed_at_s)) == ((), {})
    assert explain_fault(classify_error(code)) in seen.fault
    nvml.codes = {}
    assert observe(29).fault == seen.fault
    assert (held(observe(30)), observe(31).fault) == (A | B, "")


def test_a_driver_that_shows_no_gpu_is_a_failure_and_asked_every_half_minute(observe, nvml):
    listed, nvml.listed = nvml.listed, {}
    assert observe(0).fault == "the driver shows no GPU to this container"
    assert until(observe, nvml, "devices", 0, 3) == [0, 30, 60]
    nvml.listed = listed
    assert observe(89).fault == "the driver shows no GPU to this container"
    assert observe(90).fault == ""


def test_a_gpu_that_is_hidden_after_the_driver_came_back_is_missed(observe, nvml):
    observe(0)
    nvml.codes = {"processes": 9}
    observe(1)
    nvml.codes = {}
    hidden = nvml.listed.pop("GPU-b")
    seen = observe(2)
    assert held(seen) == A
    assert "GPU-b" in seen.fault
    nvml.listed["GPU-b"] = hidden
    assert observe(32).fault == ""


def test_several_failures_are_reported_together(observe, nvml):
    observe(0)
    nvml.codes = {"processes GPU-a": 10, "processes GPU-b": 4}
    seen = observe(1)
    assert seen.usages == ()
    assert explain_fault(Fault.STUCK) in seen.fault
    assert explain_fault(Fault.NO_PERMISSION) in seen.fault
