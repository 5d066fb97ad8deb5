"""A certificate in a folder: renewed beside the reviews, and what is said of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from certs import Bundle, advance, read
from tests.certs.handshakes import handshake, put
from tests.support.logs import RecordedLog
from webhook.server.certificates import FolderKeeper
from webhook.server.metrics import Metrics

NAMES = ("localhost",)


class Kept:
    """A keeper, its log and its metrics, without a thread."""

    def __init__(self, folder):
        self.log, self.metrics = RecordedLog(), Metrics()
        self.keeper = FolderKeeper(folder, NAMES, self.metrics, self.log)

    def days_left(self):
        labels = {"role": "serving"}
        name = "vramwarden_certificate_days_left"
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


def an_old_set():
    return advance(Bundle(), NAMES, datetime.now(UTC) - timedelta(days=300)).bundle


def test_a_certificate_that_is_due_is_renewed_and_its_days_are_shown(kept, tmp_path):
    put(tmp_path, old := an_old_set())
    kept.keeper.keep()
    assert read(tmp_path).certificate_pem != old.certificate_pem
    assert kept.log.messages == ["certificates renewed"]
    assert kept.days_left() == pytest.approx(365, abs=0.1)
    kept.keeper.keep()
    assert kept.log.messages == ["certificates renewed"]


def test_a_broken_certificate_is_not_served_and_said(kept, tmp_path):
    def shown():
        ca_pem = (tmp_path / "ca.crt").read_bytes()
        return handshake(kept.keeper.context(), ca_pem, "localhost")

    served = shown()
    (tmp_path / "tls.crt").resolve().write_text("not a certificate")
    assert [shown(), shown()] == [served, served]
    assert kept.log.messages == ["certificate rejected, the last good one is served"]
    loads = "vramwarden_certificate_loads_total"
    assert kept.metrics.registry.get_sample_value(loads, {"result": "refused"}) == 1


def test_what_keeps_it_from_a_renewal_is_said_and_nothing_is_written(kept, tmp_path):
    put(tmp_path, an_old_set())
    (tmp_path / "tls.key").write_text("junk")
    kept.keeper.keep()
    assert kept.log.messages == ["certificates cannot be renewed"]
    assert (tmp_path / "tls.key").read_text() == "junk"


def test_it_is_ready_at_once_and_named_after_its_folder(kept, tmp_path):
    assert kept.keeper.loaded
    assert (kept.keeper.obstacle(), str(kept.keeper)) == ("", str(tmp_path))
