"""The watch for Xids: what it reports, and that it lets the driver go."""

import threading
from contextlib import suppress

import pytest

from tests.core.nvidia.test_xids import OF_PROGRAMS
from tests.support.agents import ScriptedNvml, a_device
from tests.support.programs import wait_until
from webhook.adapters.nvml import NvmlError
from webhook.agent import scanner
from webhook.agent.scanner import DriverLease, XidSeen, XidsWatched, watch_xids


class Enough(BaseException):
    """Ends a thread that works forever."""


class Watched(ScriptedNvml):
    """Reports these Xids, then none; a failure is raised, what can be called is called."""

    def __init__(self, *xids):
        super().__init__(a_device())
        self.xids = iter(xids)
        self.slices = 0

    def register_xids(self):
        self._meet("register_xids")

    def next_xid(self, wait_s):
        assert (self.is_open, wait_s) == (True, scanner.SLICE_S)
        self.slices += 1
        match next(self.xids, None):
            case BaseException() as error:
                raise error
            case xid if callable(xid):
                return xid()
            case xid:
                return xid


@pytest.fixture
def pauses(monkeypatch):
    """Pause no time, and no more than three times."""
    slept = []

    def sleep(pause_s):
        slept.append(pause_s)
        if len(slept) == 3:
            raise Enough

    monkeypatch.setattr(scanner.time, "sleep", sleep)
    return slept


def reports_of(nvml):
    lease, reports = DriverLease(), []
    lease.allow(True)
    with pytest.raises(Enough):
        watch_xids(nvml, lease, reports.append)
    assert not nvml.is_open
    return reports


def test_what_means_a_broken_gpu_is_reported_and_nothing_that_a_program_can_cause():
    caused = [("GPU-a", xid) for xid in sorted(OF_PROGRAMS)]
    nvml = Watched(*caused, ("GPU-a", 79), None, ("GPU-b", 48), Enough())
    assert reports_of(nvml) == [XidsWatched(), XidSeen("GPU-a", 79), XidSeen("GPU-b", 48)]


@pytest.mark.parametrize("method", ["open", "devices", "register_xids"])
def test_a_driver_that_cannot_be_watched_is_tried_again_after_a_pause(method, pauses):
    nvml = Watched()
    nvml.codes = {method: 3}
    assert reports_of(nvml) == [XidsWatched(str(NvmlError(method, 3)))] * 3
    assert pauses == [15.0] * 3


def test_a_watch_that_fails_begins_again_with_a_library_opened_anew(pauses):
    error = NvmlError("nvmlEventSetWait_v2", 15)
    nvml = Watched(error, ("GPU-a", 79), error, error)
    failed = XidsWatched(str(error))
    watched = XidsWatched()
    expected = [watched, failed, watched, XidSeen("GPU-a", 79), failed, watched, failed]
    assert reports_of(nvml) == expected
    assert nvml.opened == 3


class Idle(Watched):
    """Never reports an Xid, and ends its thread with the test."""

    def next_xid(self, _):
        self.slices += 1
        if self.ends.wait(0.001):
            raise Enough


def watch_until_the_end(*arguments):
    with suppress(Enough):
        watch_xids(*arguments)


@pytest.fixture
def watched():
    """Return a driver that is watched on a thread where it may be, and what lets it."""
    nvml, lease = Idle(), DriverLease()
    nvml.ends = threading.Event()
    threading.Thread(target=watch_until_the_end, args=(nvml, lease, print), daemon=True).start()
    yield nvml, lease
    nvml.ends.set()
    lease.allow(True)


def is_watching(nvml):
    slices = nvml.slices
    wait_until("another slice", lambda: nvml.slices > slices + 1, timeout=60)
    return nvml.is_open


def test_the_driver_is_let_go_where_it_must_not_be_held_and_held_again_after(watched):
    nvml, lease = watched
    assert nvml.opened == 0
    lease.allow(True)
    assert is_watching(nvml)
    lease.allow(False)
    wait_until("the driver is let go", lambda: not nvml.is_open, timeout=60)
    lease.allow(True)
    assert is_watching(nvml)


def test_a_scan_gets_the_library_fresh_and_the_watch_goes_on_after_it(watched):
    nvml, lease = watched
    with lease.fresh():
        assert not nvml.is_open
    lease.allow(True)
    for _ in range(3):
        assert is_watching(nvml)
        with lease.fresh():
            assert not nvml.is_open


def test_a_driver_that_hangs_in_the_watch_holds_up_no_scan(monkeypatch):
    monkeypatch.setattr(scanner, "PATIENCE_S", 0.01)
    hangs, ended = threading.Event(), threading.Event()
    nvml, lease = Watched(lambda: hangs.set() or (ended.wait() and None)), DriverLease()
    lease.allow(True)
    threading.Thread(target=watch_xids, args=(nvml, lease, print), daemon=True).start()
    assert hangs.wait(60)
    with lease.fresh():
        assert nvml.is_open
    lease.allow(False)
    ended.set()
