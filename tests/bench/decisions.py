"""CPU time of a review within the process: one child process per commit, alternating."""

from __future__ import annotations

import json
import statistics
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.bench import settings
from tests.bench.baseline import sides
from tests.bench.figures import against
from tests.bench.servers import on_core
from tests.support.paths import REVIEWS

ANNOTATED = "mutate-pod-annotated.json"
TWO = "mutate-pod-from-replicaset-two-containers-init-native-sidecar.json"
CASES = [  # title, recorded review, phase, True if the pod is mutated first
    ("annotated, mutate", ANNOTATED, "MUTATE", False),
    ("annotated, validate", ANNOTATED, "VALIDATE", True),
    ("two containers, two init, mutate", TWO, "MUTATE", False),
    ("two containers, two init, validate", TWO, "VALIDATE", True),
    ("plain, mutate", "mutate-pod-plain.json", "MUTATE", False),
    ("denied, mutate", "mutate-pod-whole-gpu-half.json", "MUTATE", False),
]
PARTS = ("read", "decide", "write")
CALLS = 200


class Child:
    """A commit that times itself on request."""

    def __init__(self, side, stack):
        cases = [(title, str(REVIEWS / name), *rest) for title, name, *rest in CASES]
        script = Path(__file__).with_name("inside.py")
        with on_core(0):
            self._process = stack.enter_context(
                subprocess.Popen(
                    [side.python, "-P", script, json.dumps(cases)],
                    cwd=side.root,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        found = self._process.stdout.readline().strip()  # empty if the child ended with a traceback
        if not Path(found).is_relative_to(side.root):
            raise RuntimeError(f"{side.label}: wants its package in {side.root}, found {found!r}")

    def figures(self, calls):
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def bench_decisions():
    both = sides()
    taken = {side.label: [] for side in both}
    with ExitStack() as stack:
        children = {side.label: Child(side, stack) for side in both}
        for child in children.values():
            child.figures(CALLS)
        for _ in range(settings.ROUNDS):
            for label, child in children.items():
                taken[label].append(child.figures(CALLS))
    print(
        f"one review in process, µs of CPU, medians of {settings.ROUNDS} rounds; x: baseline / ours"
    )
    print(f"  {'':<36}" + "".join(f"{part:>7}{'base':>7}{'x':>7}" for part in (*PARTS, "all")))
    for title, *_ in CASES:
        cells = ""
        for names in (*((part,) for part in PARTS), PARTS):
            ours, base = (
                [sum(figures[title][name] for name in names) for figures in taken.get(label, ())]
                for label in ("ours", "baseline")
            )
            cells += f"{statistics.median(ours):7.1f}"
            cells += f"{statistics.median(base):7.1f}" if base else f"{'-':>7}"
            cells += against(base, ours)
        print(f"  {title:<36}{cells}")
