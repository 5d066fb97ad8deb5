"""The table that `vramwarden simulate` prints, whole."""

from __future__ import annotations

SCENE = """\
nodes:
- {name: big, count: 2, gpus: 8x80Gi, labels: {zone: a}}
- {name: old, gpus: 2x8Gi, labels: {zone: b}}
pods:
- {name: train, count: 17, memory: 70Gi, nodeSelector: {zone: a}, duration: 2h}
- {name: pair, memory: 11Gi, gpus: 8, nodeSelector: {zone: a}, duration: 90s}
- {name: half, count: 3, memory: 5Gi, nodeSelector: {zone: b}, arrival: 1m}
- {name: huge, memory: 100Gi}
- {name: many, memory: 1Gi, gpus: 9}
- {name: lost, memory: 1Gi, nodeSelector: {zone: c}}
- {name: last, memory: 8Gi, nodeSelector: {zone: b}, arrival: 2m}
"""


def test_everything_is_shown(simulate):
    done = simulate("--nodes", "f", "--pods", "f", f=SCENE)
    assert done.out == EVERYTHING


def test_where_nothing_is_blocked_no_cause_is_shown(simulate):
    text = "nodes: [{name: a, gpus: 8Gi}]\npods: [{name: p, memory: 8Gi}]\n"
    done = simulate("--nodes", "f", "--pods", "f", "--scheduler", "pack", f=text)
    assert done.out == NOTHING


EVERYTHING = """\
3 nodes with 18 GPUs (1,296Gi), 25 pods; the scheduler spreads

                                          best fit (ours)        first fit        worst fit
pods that started at once                              18               18               18
pods that waited                                        2                2                2
pods that never started                                 5                5                5
longest wait                                         2h0m             2h0m             2h0m
memory taken at most                              1,130Gi          1,130Gi          1,130Gi
  free then                                         166Gi            166Gi            166Gi
  of this in pieces too small to use                  76%              76%              76%
memory of the GPUs in use at most                 1,296Gi          1,296Gi          1,296Gi
GPUs in use at most                                    18               18               18
GPUs needed at least                                   19

Pods that did not start when they arrived, by cause:
  no node has the labels they select                    1                1                1
  larger than any GPU                                   1                1                1
  more GPUs than a node has                             1                1                1
  fits the sum of a node, not its GPUs                  2                2                2
  fits the sum of all nodes, and none                   1                1                1
  no room at all                                        1                1                1

The first of them, by best fit:
  lost: no node has the labels they select
  huge: larger than any GPU
  many: more GPUs than a node has
  train-16: no GPU of node big-0 has 70Gi free, which this pod needs; \
the largest free amount is 10Gi, on GPU 0 (GPU-big-0-0); \
the scheduler retries, also on other nodes
  pair: fits the sum of all nodes, and none
  last: no room at all
"""
NOTHING = """\
1 node with 1 GPU (8Gi), 1 pod; the scheduler packs

                                          best fit (ours)        first fit        worst fit
pods that started at once                               1                1                1
pods that waited                                        0                0                0
pods that never started                                 0                0                0
longest wait                                           0s               0s               0s
memory taken at most                                  8Gi              8Gi              8Gi
  free then                                             0                0                0
  of this in pieces too small to use                   0%               0%               0%
memory of the GPUs in use at most                     8Gi              8Gi              8Gi
GPUs in use at most                                     1                1                1
GPUs needed at least                                    1
"""
