"""Says as JSON what NVML lists in a PID namespace of our own, and which processes we started."""

import json
import sys

from tests.gpu.machine import MIB, programs
from webhook.adapters.nvml import Nvml

with Nvml() as nvml, programs(2) as made:
    gpu = nvml.devices()[0].uuid
    for number, one in enumerate(made, 1):
        one.does(f"alloc {number * 512 * MIB}")
    seen = {"listed": nvml.processes(gpu), "pids": [one.pid for one in made]}
    print(json.dumps(seen), flush=True)
    sys.stdin.readline()
