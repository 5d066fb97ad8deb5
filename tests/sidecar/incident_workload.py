"""A workload for incidents: a process that waits, and logs what happens to it.

HOW NOTES OUTPUTS USER CHILDREN

HOW is `plain` (a signal ends it, as in most frameworks), `leaves` (it logs the content of the files
in OUTPUTS at that moment, and exits with code 3) or `stays` (it logs every signal and continues).
Children do the same, except for this: the parent logs how they ended, and continues.

`restarts` and `breeds` start processes that hold 700 MiB and end only by SIGKILL. The first holds
no memory itself, and starts another for each that ends. The second starts them without end.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

how, notes, outputs, user, amount = sys.argv[1:]
file = Path(notes).open("a", encoding="utf-8")  # noqa: SIM115  # open while it lives
CATCHABLE = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


def note(*lines):
    file.write("".join(f"{line}\n" for line in lines))
    file.flush()


def answer(number, _frame):
    read = outputs.split(",") if how == "leaves" else []
    found = [Path(path).read_text(encoding="utf-8").strip() for path in read]
    note(signal.Signals(number).name, *found)
    if how == "leaves":
        os._exit(3)


if how != "plain":
    for caught in CATCHABLE:
        signal.signal(caught, answer)
holdings = os.open(Path(notes).parent / "pids", os.O_RDONLY)
os.setresuid(int(user), int(user), int(user))
if how == "breeds":
    resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
    print("ready", flush=True)
while how in ("restarts", "breeds"):
    try:
        child = os.fork()
    except OSError:  # the limit of processes is reached
        time.sleep(0.002)
        continue
    if not child:
        own = os.open(str(os.getpid()), os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=holdings)
        os.write(own, f"GPU-a {700 << 20}\n".encode())
        while how == "restarts":
            signal.pause()
    elif how == "restarts":
        note(child)
        print("ready", child, flush=True)
        os.waitpid(child, 0)
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
