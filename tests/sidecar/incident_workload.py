"""A workload for incidents: a process that waits, and notes what becomes of it.

    HOW NOTES OUTPUTS USER CHILDREN

HOW is `plain` (a signal ends it, as most frameworks leave it), `leaves` (it notes what the files in
OUTPUTS say at that moment, and exits with code 3) or `stays` (it notes every signal, and goes on).
Children do the same, except for this: the parent notes how they ended, and continues.
"""

import os
import signal
import sys
from pathlib import Path

how, notes, outputs, user, amount = sys.argv[1:]
file = Path(notes).open("a", encoding="utf-8")  # noqa: SIM115  # open while it lives
CATCHABLE = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def note(*lines):
    file.write("".join(f"{line}\n" for line in lines))
    file.flush()


def answer(number, _frame):
    found = [Path(path).read_text(encoding="utf-8").strip() for path in outputs.split(",")]
    note(signal.Signals(number).name, *(found if how == "leaves" else []))
    if how == "leaves":
        os._exit(3)


if how != "plain":
    for caught in CATCHABLE:
        signal.signal(caught, answer)
os.setresuid(int(user), int(user), int(user))
children = []
for _ in range(int(amount)):
    if not (child := os.fork()):
        children = []
        break
    children.append(child)
else:
    print("ready", *children, flush=True)
while children:
    ended, status = os.wait()
    children.remove(ended)
    note(f"{ended} ended with {os.waitstatus_to_exitcode(status)}")
while True:
    signal.pause()
