"""Messages of gunicorn and asyncio are lines of the log."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import asyncio
from gunicorn.config import Config
from webhook.server.log import ServerLogger

ServerLogger(Config())

async def story():
    def stumble():
        raise RuntimeError("a bug")
    asyncio.get_running_loop().call_soon(stumble)
    await asyncio.sleep(0)

asyncio.run(story())
"""


def test_an_exception_in_the_event_loop_is_a_log_line():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    line = json.loads(done.stderr)
    assert (line["level"], line["logger"]) == ("error", "asyncio")
    assert line["trace"].endswith("RuntimeError: a bug")
