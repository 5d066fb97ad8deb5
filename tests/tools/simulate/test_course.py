"""The course of a replay: it agrees with the figures, and has bounds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.tools.simulate.clusters import a_node, a_pod
from webhook.core.pod.quantity import MIB
from webhook.tools.simulate.replay.bounds import stranded_bytes
from webhook.tools.simulate.replay.course import MOST_MOMENTS, Moment
from webhook.tools.simulate.replay.replay import replay

PODS = st.lists(
    st.builds(
        a_pod,
        st.integers(1, 9),
        st.integers(1, 2),
        st.just("p"),
        st.integers(0, 20).map(float),
        st.none() | st.integers(1, 9).map(float),
    ),
    max_size=30,
)
NODES = [a_node("n1", 8, 6), a_node("n2", 8)]


def numbered(pods):
    return [replace(pod, name=f"p{number}") for number, pod in enumerate(pods)]


@given(PODS)
def test_recording_changes_nothing_and_agrees_with_the_figures(pods):
    plain, recorded = replay(NODES, pods), replay(NODES, numbered(pods), record=True)
    course = recorded.course
    assert plain.course is None
    assert replace(recorded, course=None, examples={}) == replace(plain, examples={})
    taken = [gpu.taken_bytes for gpu in course.fullest]
    assert sum(taken) == recorded.taken_bytes
    assert sum(gpu.free_bytes for gpu in course.fullest) == recorded.free_bytes
    needs = {}
    for pod in pods:
        needs[pod.need.memory_bytes] = needs.get(pod.need.memory_bytes, 0) + 1
    pieces = [gpu.free_bytes for gpu in course.fullest]
    assert stranded_bytes(pieces, needs) == recorded.stranded_bytes
    assert len(course.waits_s) == recorded.waited
    assert max(course.waits_s, default=0.0) == recorded.longest_wait_s
    assert list(course.waits_s) == sorted(course.waits_s)
    if pods:
        assert course.moments[-1].waiting == recorded.never
        assert max(one.taken_bytes for one in course.moments) <= recorded.taken_bytes
        assert [one.at_s for one in course.moments] == sorted({one.at_s for one in course.moments})
    names = [name for gpu in course.fullest for name, _ in gpu.pods]
    gpus = {pod.name: pod.need.gpu_count for pod in numbered(pods)}
    assert all(names.count(name) == gpus[name] for name in names)


def test_each_moment_says_what_was_taken_and_stranded_and_who_waited():
    pods = [a_pod(6, duration_s=10.0), a_pod(4, arrival_s=4.0, duration_s=2.0)]
    course = replay([a_node("n1", 8)], pods, record=True).course
    assert course.moments == (
        Moment(0.0, 6 * MIB, 2 * MIB, 0),
        Moment(4.0, 6 * MIB, 2 * MIB, 1),
        Moment(10.0, 4 * MIB, 2 * MIB, 0),  # 4Mi are free, of no use to one of the two pods
        Moment(12.0, 0, 0, 0),
    )
    assert course.waits_s == (6.0,)
    assert course.fullest_s == 0.0
    assert [gpu.pods for gpu in course.fullest] == [(("p", 6 * MIB),)]


def test_too_small_is_what_the_smallest_waiting_pod_that_some_gpu_could_hold_cannot_use():
    nodes, first = [a_node("n1", 8)], a_pod(1)
    assert replay(nodes, [first], record=True).course.smallest_bytes == MIB
    late = a_pod(2, arrival_s=9.0)
    waiting = replay(nodes, [a_pod(99), a_pod(6), a_pod(5), a_pod(1), late], record=True).course
    assert waiting.smallest_bytes == 5 * MIB
    assert waiting.somebody_waited
    alone = replay(nodes, [a_pod(99), first], record=True).course
    assert (alone.smallest_bytes, alone.somebody_waited) == (MIB, False)


def test_a_long_course_is_thinned_and_keeps_its_peaks():
    pods = [a_pod(1, arrival_s=float(n), duration_s=0.5) for n in range(20_000)]
    pods.append(a_pod(5, arrival_s=777.1, duration_s=0.2))
    pods.append(a_pod(8, arrival_s=888.1, duration_s=0.1))  # waits for 0.4 s
    outcome = replay([a_node("n1", 8)], pods, record=True)
    course = outcome.course
    assert MOST_MOMENTS / 2 <= len(course.moments) <= 2 * MOST_MOMENTS
    assert max(one.taken_bytes for one in course.moments) == outcome.taken_bytes == 8 * MIB
    assert max(one.waiting for one in course.moments) == 1
    assert course.moments[0].at_s == 0.0
    apart = [b.at_s - a.at_s for a, b in zip(course.moments, course.moments[1:], strict=False)]
    assert max(apart) < 20_000 / 100
