"""What the observer does about each of NVML's failures, by a clock that the test moves."""

from itertools import pairwise

import pytest

from tests.sidecar.parts import ScriptedNvml, put
from webhook.core.nvidia.drivers import Fault, explain_fault, fault_of
from webhook.sidecar.observer import LOOK_UP_EVERY_S, DriverChangedError, Observer

CODES = [1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 25, 28, 999, 4242]
OF_THE_DRIVER = {Fault.DRIVER_DOWN, Fault.DRIVER_CHANGED}
OF_ONE_GPU = [code for code in CODES if fault_of(code) not in OF_THE_DRIVER]
LOST = [code for code in CODES if fault_of(code) is Fault.GPU_LOST]
METHODS = ["devices", "device_used_bytes", "processes"]
PAUSES_S = [1, 2, 4, 8, 16, 30, 30, 30]


@pytest.fixture
def nvml():
    return ScriptedNvml(a={7: 70}, b={8: 80})


@pytest.fixture
def look(nvml, tmp_path):
    """Return a function that looks at a time, at GPUs whose lists are read each time."""
    for pid in (7, 8, 9):
        put(tmp_path, pid)
    observer = Observer(nvml, 1000, proc=str(tmp_path))

    def looking(now_s, judged=("GPU-a", "GPU-b")):
        nvml.now_s = now_s
        return observer.observe(now_s, judged)

    return looking


def held(observation):
    return {(one.gpu, one.process.pid): one.used_bytes for one in observation.usages}


def until(look, nvml, method, from_s, times):
    """Look every half second until a method was called so often from then on; return when."""
    now_s = from_s
    while len(found := [one for one in nvml.times(method) if one >= from_s]) < times:
        look(now_s)
        now_s += 0.5
    return found


def gaps(times_s):
    return [late - early for early, late in pairwise(times_s)]


def test_without_a_failure_every_process_is_told_with_its_figure(look, nvml):
    seen = look(100)
    assert held(seen) == {("GPU-a", 7): 70, ("GPU-b", 8): 80}
    assert seen.fault == ""
    assert dict(seen.listed_at_s) == {"GPU-a": 100, "GPU-b": 100}
    assert nvml.times("devices") == [100]


def test_gpus_are_not_looked_up_again_while_all_of_them_answer(look, nvml):
    for now_s in range(0, 200, 5):
        assert look(now_s).fault == ""
    assert nvml.times("devices") == [0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", [1, 9])
def test_a_driver_that_is_down_is_closed_and_nothing_is_known(code, method, look, nvml):
    look(0)
    nvml.codes = {method: code, "processes": code}
    seen = look(40)
    assert seen.usages == ()
    assert dict(seen.listed_at_s) == {}
    assert explain_fault(Fault.DRIVER_DOWN) in seen.fault
    assert nvml.times("close") == [40]


@pytest.mark.parametrize("code", [9, 999, 12])
def test_a_driver_that_is_down_is_tried_again_after_pauses_that_double_up_to_thirty_seconds(
    code, look, nvml
):
    look(0)
    nvml.codes = {"processes": 9, "reopen": code}
    down = look(100)
    tried_s = until(look, nvml, "reopen", 100, len(PAUSES_S))
    assert gaps([100, *tried_s]) == PAUSES_S
    assert {name for when_s, name in nvml.calls if when_s > 100} == {"close", "reopen"}
    assert held(down) == {}


def test_between_two_tries_the_driver_is_left_alone_and_the_reason_stays(look, nvml):
    look(0)
    nvml.codes = {"processes": 9}
    first = look(100)
    calls = len(nvml.calls)
    again = look(100.9)
    assert (again.fault, again.usages, len(nvml.calls)) == (first.fault, (), calls)


def test_a_driver_that_is_back_is_looked_up_and_measured_in_the_same_look(look, nvml):
    look(0)
    nvml.codes = {"processes": 9}
    look(1)
    nvml.codes = {}
    seen = look(2)
    assert held(seen) == {("GPU-a", 7): 70, ("GPU-b", 8): 80}
    assert seen.fault == ""
    assert nvml.times("devices") == [0, 2]


def test_what_was_known_before_an_outage_is_not_told_after_it(look, nvml):
    look(0)
    nvml.codes = {"device_used_bytes GPU-a": 9}
    look(1)
    nvml.codes = {}
    nvml.listed = {"GPU-a": {}, "GPU-b": {8: 85}}
    seen = look(2, ())
    assert held(seen) == {("GPU-b", 8): 85}
    assert dict(seen.listed_at_s) == {"GPU-a": 2, "GPU-b": 2}


def test_after_a_whole_look_the_pauses_begin_anew(look, nvml):
    look(0)
    nvml.codes = {"processes": 9, "reopen": 9}
    look(100)
    until(look, nvml, "reopen", 100, 5)
    nvml.codes = {}
    assert look(200).fault == ""
    nvml.codes = {"processes": 9, "reopen": 9}
    look(300)
    assert gaps([300, *until(look, nvml, "reopen", 300, 3)]) == PAUSES_S[:3]


@pytest.mark.parametrize("method", METHODS)
def test_a_driver_that_opens_and_fails_at_once_is_not_tried_any_sooner(method, look, nvml):
    look(0)
    nvml.codes = {"processes": 9}
    look(100)
    nvml.codes = {method: 9}
    assert gaps([100, *until(look, nvml, "reopen", 100, 6)]) == PAUSES_S[:6]


@pytest.mark.parametrize("method", METHODS)
def test_a_driver_that_was_replaced_ends_the_program(method, look, nvml):
    look(0)
    nvml.codes = {"processes GPU-b": 3}
    look(40)  # so that it is looked up again
    nvml.codes = {method: 18}
    with pytest.raises(DriverChangedError, match="only a new container gets the new one"):
        look(80)


def test_a_driver_that_was_replaced_while_it_was_down_ends_the_program(look, nvml):
    look(0)
    nvml.codes = {"processes": 9, "reopen": 18}
    look(1)
    with pytest.raises(DriverChangedError, match="only a new container gets the new one"):
        look(2)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("code", OF_ONE_GPU)
def test_any_other_failure_of_one_gpu_makes_that_one_unknown_and_no_other(code, method, look, nvml):
    look(0)
    nvml.codes = {f"{method} GPU-b": code}
    seen = look(1)
    assert held(seen) == {("GPU-a", 7): 70}
    assert dict(seen.listed_at_s) == {"GPU-a": 1}
    assert "GPU-b" in seen.fault
    assert explain_fault(fault_of(code)) in seen.fault
    assert nvml.times("close") == []


@pytest.mark.parametrize("code", [one for one in OF_ONE_GPU if one not in LOST])
def test_a_failure_that_passes_is_over_with_the_next_look(code, look, nvml):
    look(0)
    nvml.codes = {"processes GPU-b": code}
    look(1)
    nvml.codes = {}
    seen = look(2)
    assert held(seen) == {("GPU-a", 7): 70, ("GPU-b", 8): 80}
    assert seen.fault == ""


@pytest.mark.parametrize("code", LOST)
def test_a_lost_gpu_is_looked_up_every_half_minute_and_measured_when_it_is_back(code, look, nvml):
    look(0)
    nvml.codes = {"processes GPU-b": code, "devices GPU-b": code}
    look(10)
    found_s = until(look, nvml, "devices", 10.5, 4)
    assert gaps(found_s) == [LOOK_UP_EVERY_S] * 3
    nvml.codes = {}
    last_s = found_s[-1]
    waiting = look(last_s + LOOK_UP_EVERY_S - 1)
    assert held(waiting) == {("GPU-a", 7): 70}
    assert "GPU-b" in waiting.fault
    back = look(last_s + LOOK_UP_EVERY_S)
    assert held(back) == {("GPU-a", 7): 70, ("GPU-b", 8): 80}
    assert back.fault == ""


def test_a_gpu_that_did_not_answer_at_the_start_is_missed_and_measured_when_it_does(look, nvml):
    nvml.codes = {"devices GPU-b": 15}
    seen = look(0)
    assert held(seen) == {("GPU-a", 7): 70}
    assert "GPU-b" in seen.fault
    assert look(29).fault == seen.fault
    assert look(30).fault == seen.fault
    nvml.codes = {}
    assert held(look(59)) == {("GPU-a", 7): 70}
    back = look(60)
    assert held(back) == {("GPU-a", 7): 70, ("GPU-b", 8): 80}
    assert back.fault == ""
    assert nvml.times("devices") == [0, 30, 60]


@pytest.mark.parametrize("code", OF_ONE_GPU)
def test_a_failing_look_up_leaves_nothing_known_until_one_succeeds(code, look, nvml):
    nvml.codes = {"devices": code}
    seen = look(0)
    assert (seen.usages, dict(seen.listed_at_s)) == ((), {})
    assert explain_fault(fault_of(code)) in seen.fault
    nvml.codes = {}
    assert look(29).fault == seen.fault
    assert (held(look(30)), look(31).fault) == ({("GPU-a", 7): 70, ("GPU-b", 8): 80}, "")


def test_a_driver_that_shows_no_gpu_is_a_failure_and_asked_every_half_minute(look, nvml):
    listed, nvml.listed = nvml.listed, {}
    assert look(0).fault == "the driver shows no GPU to this container"
    assert until(look, nvml, "devices", 0, 3) == [0, 30, 60]
    nvml.listed = listed
    assert look(89).fault == "the driver shows no GPU to this container"
    assert look(90).fault == ""


def test_a_gpu_that_is_hidden_after_the_driver_came_back_is_missed(look, nvml):
    look(0)
    nvml.codes = {"processes": 9}
    look(1)
    nvml.codes = {}
    hidden = nvml.listed.pop("GPU-b")
    seen = look(2)
    assert held(seen) == {("GPU-a", 7): 70}
    assert "GPU-b" in seen.fault
    nvml.listed["GPU-b"] = hidden
    assert look(32).fault == ""


def test_several_failures_are_told_together(look, nvml):
    look(0)
    nvml.codes = {"processes GPU-a": 10, "processes GPU-b": 4}
    seen = look(1)
    assert seen.usages == ()
    assert explain_fault(Fault.STUCK) in seen.fault
    assert explain_fault(Fault.NO_PERMISSION) in seen.fault
