"""First process of the node's namespaces. Sets them up, then reaps orphaned processes.

When this process ends, the kernel ends all processes in its PID namespace. Mounts and links end
with the last of them, so nothing has to be cleaned up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Paths that containerd, the kubelet and their plugins write outside their folders.
OWN_FOLDERS = ("/run", "/var/log", "/var/lib/kubelet")


def main(ready: str) -> None:
    """Prepare the namespaces for a node, write the file `ready`, and wait for the end."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for folder in OWN_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", folder)
    run("mount", "--make-rshared", "/")  # as on a real node, since volumes may need propagation
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    Path(ready).touch()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.5)


def run(*command: str) -> None:
    """Run a command; raise an error if it fails."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
