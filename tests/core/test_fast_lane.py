"""Tests that wait or start a process fail in the folders of tests/support/fast_lane.py."""

import os
import subprocess
import time

import pytest

from tests.support.fast_lane import FOLDERS, shares
from tests.support.paths import TESTS


def test_a_test_that_waits_or_starts_a_process_fails():
    failed, how = pytest.fail.Exception, "mark it `process`"
    with pytest.raises(failed, match=how):
        subprocess.run(["true"], check=True)
    with pytest.raises(failed, match=how):
        os.fork()
    with pytest.raises(failed, match=how):
        time.sleep(1)


def test_each_file_of_the_lane_is_in_one_share():
    dealt = [path for share in shares(3) for path in share]
    assert sorted(dealt) == sorted(
        path for folder in FOLDERS for path in (TESTS / folder).rglob("test_*.py")
    )
