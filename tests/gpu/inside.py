"""Print as JSON the processes that NVML lists inside a PID namespace.

With `start`, first start two processes, print their PIDs and wait for a line.
"""

import json
import sys

from tests.gpu.machine import MIB, programs
from webhook.adapters.nvml import Nvml

with Nvml() as nvml, programs(2 * (sys.argv[1:] == ["start"])) as made:
    gpu = nvml.devices()[0].uuid
    for number, item in enumerate(made, 1):
        item.does(f"alloc {number * 512 * MIB}")
    seen = {"listed": nvml.processes(gpu), "pids": [item.pid for item in made]}
    print(json.dumps(seen), flush=True)
    if made:
        sys.stdin.readline()
