"""Here as in all folders of tests/support/fast_lane.py, what waits or starts a process fails."""

import os
import subprocess
import time

import pytest


def test_a_test_that_waits_or_starts_a_process_fails():
    failed, how = pytest.fail.Exception, "mark it `process`"
    with pytest.raises(failed, match=how):
        subprocess.run(["true"], check=True)
    with pytest.raises(failed, match=how):
        os.fork()
    with pytest.raises(failed, match=how):
        time.sleep(1)
