"""Which process is a pod's sidecar, and the report in its name."""

from __future__ import annotations

import os
from dataclasses import replace

from tests.sentry.fakes import ID, MIB, OTHER, OTHER_ID, TRAINER, Node, owner
from tests.support.fake_proc import put
from webhook.adapters.node_processes import NodeProcesses
from webhook.sentry.program_reports import SEARCH_EVERY_S, SidecarReports


def called(name, pid, pod=TRAINER, **more):
    one = owner(pid, pod, **more)
    return replace(one, process=replace(one.process, command=name))


class Bench:
    def __init__(self, *alive):
        self.now_s = 0.0
        self.node = Node(*alive)
        self.pods = {TRAINER}
        self.searches = 0
        self.takes_s = 0.0
        by_name = self.node.by_name

        def search(wanted):
            self.searches += 1
            self.now_s += self.takes_s
            return by_name(wanted)

        self.node.by_name = search
        self.stats = SidecarReports(self.node, lambda: self.pods, clock=lambda: self.now_s)

    def read(self, later_s=0.0):
        self.now_s += later_s
        self.stats.read()
        return self.stats.stats


def test_stops_and_peak_are_read_and_followed():
    bench = Bench(called("vw s3 6144", 50), called("train", 51), called("vw s9 9", 60, OTHER))
    assert bench.read() == {TRAINER: (3, 6144 * MIB)}
    bench.node.alive[50] = called("vw s4 7000", 50)
    assert bench.read() == {TRAINER: (4, 7000 * MIB)}
    assert bench.searches == 1


def test_of_many_that_say_so_the_oldest_counts():
    forged = called("vw s9 9", 40, started=12), called("vw s8 8", 90, started=11)
    bench = Bench(*forged, called("vw s3 6144", 50))
    assert bench.read() == {TRAINER: (3, 6144 * MIB)}


def test_another_process_of_that_number_or_place_is_not_believed():
    for other in (
        called("vw s9 9", 50, started=99),
        called("vw s9 9", 50, OTHER),
        called("vw s9 9", 50, container=OTHER_ID),
        called("python3", 50),
    ):
        bench = Bench(called("vw s3 6144", 50))
        bench.read()
        bench.node.alive[50] = other
        assert bench.read() == {}


def test_who_is_not_on_the_list_is_forgotten():
    bench = Bench(called("vw s3 6144", 50))
    bench.read()
    bench.pods = frozenset()
    assert bench.read() == {}


def test_a_search_is_seldom_and_the_longer_it_takes_the_more_so():
    bench = Bench(called("train", 51))
    for _ in range(100):
        bench.read(later_s=10.0)
    assert bench.searches == 1000 // SEARCH_EVERY_S + 1
    bench.takes_s, bench.searches = 60.0, 0
    for _ in range(200):
        bench.read(later_s=10.0)
    assert bench.searches == 2


def test_of_a_real_proc_only_names_are_read_until_one_fits(tmp_path):
    put(tmp_path, os.getpid(), cgroup=f"0::/kubepods/pod{OTHER}/{ID}\n")
    put(tmp_path, 50, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n", comm="vw s3 6144\n")
    put(tmp_path, 51, cgroup=f"0::/kubepods/pod{TRAINER}/{ID}\n", comm="train\n")
    (tmp_path / "51" / "cgroup").unlink()
    stats = SidecarReports(NodeProcesses(OTHER, proc=str(tmp_path)), lambda: {TRAINER})
    stats.read()
    assert stats.stats == {TRAINER: (3, 6144 * MIB)}
