"""A certificate in a folder: it is issued once, reloaded when it changes, and reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certs import Bundle, advance, read_folder
from tests.certs.handshakes import handshake, mount, put
from tests.support.recorded_log import RecordedLog
from webhook.server.certificates import FolderKeeper
from webhook.server.metrics import Metrics

NAMES = ("localhost",)
REJECTED = "certificate rejected, the last good one is served"


class ManualKeeper:
    """A keeper with its log and metrics, without a thread."""

    def __init__(self, folder):
        self.log, self.metrics = RecordedLog(), Metrics()
        self.keeper = FolderKeeper(folder, NAMES, self.metrics, self.log)

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"vramwarden_certificate_{name}", labels)

    def served_certificate(self, bundle):
        """Return the certificate that a client with this set's CA gets."""
        return handshake(self.keeper.listening_context(), bundle.ca_pem, "localhost")


def a_set(age=timedelta()):
    return advance(Bundle(), NAMES, datetime.now(UTC) - age).bundle


@pytest.mark.parametrize("again", [False, True], ids=["at the first start", "at the next"])
def test_an_empty_folder_is_filled_once(tmp_path, again):
    manual = ManualKeeper(tmp_path)
    made = read_folder(tmp_path)
    if again:
        manual = ManualKeeper(tmp_path)
    assert manual.served_certificate(made)
    assert read_folder(tmp_path) == made
    manual.keeper.check()
    assert manual.sample("days_left", role="serving") == pytest.approx(365, abs=0.1)
    assert manual.log.lines == []


def test_a_certificate_in_a_folder_is_never_renewed_and_its_end_is_reported(tmp_path):
    put(tmp_path, old := a_set(timedelta(days=366)))
    manual = ManualKeeper(tmp_path)
    manual.keeper.check()
    assert read_folder(tmp_path) == old
    assert manual.sample("days_left", role="serving") == pytest.approx(-1, abs=0.1)
    ((level, message, values),) = manual.log.lines
    assert (level, message) == ("warning", "certificates have problems")
    assert "tls.crt expired on" in values["problems"][0]


def test_the_last_valid_certificate_of_a_mounted_folder_is_served(tmp_path):
    """Another program renews the certificate. A mismatched pair is logged and counted."""
    first, second, other = a_set(), a_set(), a_set()
    mount(tmp_path, first, "1")
    manual = ManualKeeper(tmp_path)
    served = manual.served_certificate(first)
    wrong = replace(second, key_pem=other.key_pem)
    for version, bad in (("2", wrong), ("3", replace(second, certificate_pem=b"half"))):
        mount(tmp_path, bad, version)
        assert [manual.served_certificate(first), manual.served_certificate(first)] == [
            served,
            served,
        ]
    assert manual.log.messages == [REJECTED] * 2
    assert manual.sample("loads_total", result="rejected") == 2
    assert "PRIVATE" not in str(manual.log.lines)
    mount(tmp_path, second, "4")
    assert manual.served_certificate(second)["serialNumber"] != served["serialNumber"]
    assert manual.log.messages[2:] == ["certificate loaded"]
    assert manual.sample("loads_total", result="loaded") == 1


def test_it_is_ready_at_once_and_named_after_its_folder(tmp_path):
    manual = ManualKeeper(tmp_path)
    assert manual.keeper.has_certificate
    assert (manual.keeper.obstacle(), str(manual.keeper)) == ("", str(tmp_path))
