"""What others log is a line of our log too."""

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


def test_a_bug_that_reaches_the_event_loop_is_a_line_of_the_log():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    line = json.loads(done.stderr)
    assert (line["level"], line["logger"]) == ("error", "asyncio")
    assert line["trace"].endswith("RuntimeError: a bug")
