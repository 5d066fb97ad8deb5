"""Whoever counts what a list brings counts each object once, however often pages are read."""

from __future__ import annotations

from webhook.tools.report.read import read_stored_pods
from webhook.tools.shared.once import once
from webhook.tools.simulate.judge.cluster import TodayObjects
from webhook.tools.simulate.read import list_pods_and_nodes


def test_an_object_is_taken_once_by_its_uid_or_else_its_name():
    taken = []
    keep = once(taken.append)
    named = {"metadata": {"namespace": "a", "name": "x"}}
    other = {"metadata": {"namespace": "b", "name": "x"}}
    known = {"metadata": {"namespace": "a", "name": "x", "uid": "1"}}
    for found in (named, known, named, other, known):
        keep(found)
    assert taken == [named, known, other]


def test_what_reads_pods_and_nodes_takes_each_once():
    class Kube:
        def list_all(self, _path, keep, **_query):
            for _ in range(2):  # as for a page that was too large
                keep({"metadata": {"name": "x", "uid": "1"}, "spec": {"resourceClaims": [{}]}})

    taken, found = [], TodayObjects()
    read_stored_pods(Kube(), "", taken.append)
    list_pods_and_nodes(Kube(), found)
    assert (len(taken), found.left_out.total(), found.others) == (1, 1, 1)
