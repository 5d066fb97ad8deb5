"""Run a test function in its own interpreter, usually in a PID namespace.

Scenarios fork, drop privileges and end processes, which pytest's own process must not. The source
of the function is sent, and its result is returned. It runs below a process that only reaps, as
`pause` does, so it never is PID 1. It runs without site-packages, which take longer to load than
most scenarios last.
"""

import inspect
import json
import os
import subprocess
import sys
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def play(scene, scenario, *arguments, within=NAMESPACE, timeout_s=120, **sent):
    """Return the result of a scenario: a function, or the name of one in the module `scene`.

    The scenario may use the module's names. The module's `play` gets the scenario and all keyword
    arguments.
    """
    name = scenario if isinstance(scenario, str) else scenario.__name__
    source = "" if isinstance(scenario, str) else dedent(inspect.getsource(scenario))
    sent |= {"scene": scene, "name": name, "source": source, "arguments": arguments}
    ended = subprocess.run(
        [*within, sys.executable, "-I", "-S", __file__, json.dumps(sent)],
        capture_output=True, text=True, check=False, timeout=timeout_s,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@cache
def missing():
    """Return the reason why no PID namespace can be created, or "" if one can."""
    try:
        command = [*NAMESPACE, "true"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no new PID namespace can be made here: {error}"
    return ended.stderr.strip() and f"no new PID namespace can be made here: {ended.stderr.strip()}"


def main(sent):
    """Run the scenario in a child process, print its result, and reap processes meanwhile."""
    if not (child := os.fork()):
        try:
            sys.path.insert(0, str(ROOT))
            scene = import_module(sent["scene"])
            known = dict(vars(scene))
            exec(compile(sent["source"], "scenario", "exec"), known)  # noqa: S102  # our own
            print(json.dumps(scene.play(known[sent["name"]], sent)), flush=True)
        except BaseException:  # noqa: BLE001  # this copy of the interpreter must end here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    while True:
        ended, status = os.wait()
        if ended == child:
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
