"""Heartbeat file; `python3 -I -m webhook.agent.heartbeat live|ready FOLDER` is the kubelet's probe.

With a file the agent needs no port that the network can reach. Its line has the time until which
the last heartbeat is valid, and the reason why the node was not in its desired state. Probes run
often, so this module imports very little.
"""

import os
import sys
import time

RUN_FOLDER = "/run/vramwarden-agent"
VALID_FOR_S = 120.0
"""Validity of a heartbeat, in seconds. The main thread writes one every few seconds, and waits
at most 90 s for an API server that hangs."""

_FILE = "heartbeat"
_WRONG_USAGE = 2


def beat(folder: str, *, unready: str) -> None:
    """Record that the main thread works and why it is not ready; raises OSError on failure."""
    path = f"{folder}/{_FILE}"
    with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{time.monotonic() + VALID_FOR_S:.3f} {unready}\n")
    os.replace(f"{path}.new", path)  # noqa: PTH105


def probe(kind: str, folder: str) -> str:
    """Return the reason why the probe fails; empty if it passes.

    | kind | passes |
    | --- | --- |
    | live | while the main thread beats: a restart fixes neither driver nor API server |
    | ready | while it beats, the node was read, and the node is in its desired state |
    """
    try:
        with open(f"{folder}/{_FILE}", encoding="utf-8") as file:  # noqa: PTH123
            until, _, unready = file.read(2000).strip().partition(" ")
        late_s = time.monotonic() - float(until)
    except FileNotFoundError:
        return "no heartbeat yet"
    except (OSError, ValueError) as error:
        return f"the heartbeat in {folder} cannot be read: {error}"
    if not late_s <= 0:  # true for NaN, too
        return f"the last heartbeat was {VALID_FOR_S + late_s:.0f} s ago: stuck or stopped"
    return unready if kind == "ready" else ""


def main(arguments: list[str]) -> int:
    """Run the probe; return the exit code."""
    if len(arguments) != 2 or arguments[0] not in ("live", "ready"):  # noqa: PLR2004
        print("usage: python3 -m webhook.agent.heartbeat live|ready FOLDER", file=sys.stderr)  # noqa: T201
        return _WRONG_USAGE
    why = probe(*arguments)
    print(why or arguments[0])  # noqa: T201
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
