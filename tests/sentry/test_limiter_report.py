"""The limiter's file, and its effect on pods on the list."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.sentry.fakes import CAP_MIB, MIB, OTHER, TRAINER, an_assignment, cap_terms, sentry_terms
from webhook.core.node.limiter_state import (
    LARGEST_FILE_BYTES,
    STALE_AFTER_S,
    STATE_FILE,
    LimiterState,
    LimitEvent,
    PodLimitState,
    write_limiter_state,
)
from webhook.core.nvidia.drivers import Proof
from webhook.sentry.program_reports import SILENT, UNREADABLE, LimiterReport

PROVEN = Proof(holds=True, back_end="misc")
HELD = PodLimitState(TRAINER, "GPU-a", CAP_MIB * MIB, 400 * MIB, late=False)
STATE = LimiterState(written_s=1000.0, started_s=5.0, proof=PROVEN, limited=(HELD,))


class Left:
    """A limiter's file and its reader."""

    def __init__(self, folder):
        self.path, self.now_s = folder / STATE_FILE, 1000.0
        self.limits = LimiterReport(str(folder), clock=lambda: self.now_s)

    def leave(self, state=STATE, **more):
        text = state if isinstance(state, str) else write_limiter_state(replace(state, **more))
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)
        return self

    def proof(self, after_s=0.0):
        self.now_s += after_s
        self.limits.read()
        return self.limits.proof

    def find_holder(self, line=None, gpu="GPU-a", enforcement="sidecar", *, acts=True):
        of = {"enforcement": enforcement, "acts": acts}
        return self.limits.find_holder(TRAINER, line or an_assignment("*"), gpu, **of)

    def counted_bytes(self):
        return self.limits.counted_bytes(TRAINER, "GPU-a", CAP_MIB * MIB)


@pytest.fixture
def left(tmp_path):
    return Left(tmp_path)


NOT_READ, OLD = Proof(holds=False, why=UNREADABLE), Proof(holds=False, why=SILENT)


def elsewhere(path):
    path.with_suffix(".other").write_text(write_limiter_state(STATE))
    path.symlink_to(path.with_suffix(".other"))


@pytest.mark.parametrize(
    ("make", "proof"),
    [
        (lambda _: None, None),
        (lambda path: path.write_text(write_limiter_state(STATE)), PROVEN),
        (lambda path: path.write_text("{"), NOT_READ),
        (lambda path: path.write_bytes(b"\xff"), NOT_READ),
        (
            lambda path: path.write_text(" " * LARGEST_FILE_BYTES + write_limiter_state(STATE)),
            NOT_READ,
        ),
        (elsewhere, NOT_READ),
        (os.mkfifo, NOT_READ),
        (lambda path: path.mkdir(), NOT_READ),
        (lambda path: path.parent.rmdir(), None),
    ],
    ids=["none", "ours", "cut", "bytes", "large", "link", "pipe", "folder", "no folder"],
)
def test_the_proof_is_what_a_file_of_ours_says(left, make, proof):
    make(left.path)
    assert [left.proof(), left.proof()] == [proof, proof]
    left.path.parent.mkdir(exist_ok=True)


def test_what_is_too_old_or_of_the_future_proves_nothing_and_its_limits_count_on(left):
    left.leave()
    assert [left.proof(STALE_AFTER_S), left.find_holder(), left.counted_bytes()] == [
        PROVEN,
        "driver",
        400 * MIB,
    ]
    for after_s in (1.0, -2 * STALE_AFTER_S - 2):
        assert [left.proof(after_s), left.find_holder()] == [OLD, "sidecar"]
        assert left.counted_bytes() == 400 * MIB
    left.leave("{")
    assert [left.proof(), left.find_holder(), left.counted_bytes()] == [
        NOT_READ,
        "sidecar",
        400 * MIB,
    ]
    failed = Proof(holds=False, why="x")
    left.leave(written_s=left.now_s, limited=(), proof=failed)
    assert [left.proof(), left.find_holder(), left.counted_bytes()] == [
        failed,
        "sidecar",
        400 * MIB,
    ]
    left.leave(written_s=left.now_s, limited=())
    assert [left.proof(), left.find_holder(), left.counted_bytes()] == [PROVEN, "sidecar", None]
    left.leave()
    left.proof()
    left.path.unlink()
    assert [left.proof(), left.find_holder(), left.counted_bytes()] == [None, "sidecar", None]


MORE = {"hard_bytes": CAP_MIB * MIB + 1}
NO_ACT, REPORTS = cap_terms(enforce=False), replace(cap_terms(enforce=False), reports=True)


@pytest.mark.parametrize(
    ("limited", "line", "asked", "holder"),
    [
        ({}, an_assignment(), {"enforcement": ""}, "driver"),
        ({"uid": TRAINER.upper()}, an_assignment(), {}, "driver"),
        ({"hard_bytes": 5}, an_assignment(terms=NO_ACT), {"acts": False}, "driver"),
        ({"late": True}, an_assignment(), {}, "driver, late"),
        ({}, replace(an_assignment(), terms=None), {}, "driver"),
        (MORE, an_assignment(), {}, "sidecar"),
        (MORE, an_assignment(), {"acts": False}, "sidecar"),
        ({"gpu": "GPU-b"}, an_assignment(), {}, "sidecar"),
        ({"uid": OTHER}, an_assignment(), {}, "sidecar"),
        (MORE, an_assignment(), {"enforcement": "none"}, "sentry"),
        (MORE, an_assignment(), {"enforcement": "none", "acts": False}, ""),
        (MORE, an_assignment(terms=sentry_terms()), {}, "sentry"),
        (MORE, an_assignment(terms=sentry_terms()), {"enforcement": "none"}, "sentry"),
        (MORE, an_assignment(terms=sentry_terms()), {"acts": False}, ""),
        (MORE, an_assignment(terms=sentry_terms(enforce=False)), {}, ""),
        ({}, an_assignment(terms=sentry_terms()), {}, "driver"),
        (MORE, an_assignment(terms=NO_ACT), {}, ""),
        (MORE, an_assignment(terms=REPORTS), {"enforcement": "none"}, ""),
        (MORE, replace(an_assignment(), terms=None), {}, ""),
    ],
)
def test_the_strongest_holds_a_pod(left, limited, line, asked, holder):
    left.leave(limited=(replace(HELD, **limited),)).proof()
    assert left.find_holder(line, **asked) == holder
    assert (left.counted_bytes() is None) == (holder not in {"driver", "driver, late"})


def test_what_happened_to_a_pods_limit_is_told_once_of_pods_on_the_list(left):
    line = {TRAINER: an_assignment()}
    numbers = []

    def tell(promises, **more):
        left.leave(**more).proof()
        numbers.append([(uid, item.number) for uid, item in left.limits.new_events(promises)])

    first, second = LimitEvent(1, TRAINER.upper(), "a"), LimitEvent(2, OTHER, "b")
    assert left.limits.new_events(line) == []
    tell({}, events=(first,))
    tell(line, events=(first, second))
    tell(line, events=(first, second, replace(first, number=3)))
    tell(line | {OTHER: an_assignment()}, events=(first, second))
    tell(line, events=(first,), started_s=6.0)
    assert numbers == [[], [(TRAINER, 1)], [(TRAINER, 3)], [(OTHER, 2)], [(TRAINER, 1)]]
