"""The token bucket that limits Events and patches."""

from hypothesis import given
from hypothesis import strategies as st

from webhook.core.node.events import TokenBucket


def taken(allowance, times):
    """Return the times at which an action is allowed."""
    allowed = []
    for now_s in times:
        left = allowance.take(now_s)
        allowed += [now_s] if left else []
        allowance = left or allowance
    return allowed


def test_an_allowance_refills_with_time():
    times = (0, 0, 0, 4, 5, 6, 100, 100, 100)
    assert taken(TokenBucket(2, 5.0), times) == [0, 0, 5, 100, 100]


def test_what_is_not_taken_does_not_pile_up():
    assert taken(TokenBucket(3, 5.0), [1e6] * 10) == [1e6] * 3


def test_asking_in_vain_costs_nothing():
    assert taken(TokenBucket(1, 5.0), [0, 1, 2, 3, 4, 5]) == [0, 5]


def test_a_value_is_not_changed_by_spending():
    allowance = TokenBucket(1, 5.0)
    assert allowance.take(7) == allowance.take(7) == TokenBucket(1, 5.0, spent=1, counted_s=7)


@given(
    st.integers(1, 5),
    st.integers(1, 8).map(float),
    st.lists(st.integers(0, 400).map(lambda quarters: quarters / 4)).map(sorted),
)
def test_in_any_time_no_more_happens_than_at_once_and_by_the_pace(most, every_s, times):
    allowed = taken(TokenBucket(most, every_s), times)
    for first, begins_s in enumerate(allowed):
        for last, ends_s in enumerate(allowed[first:], 1):
            assert last <= most + (ends_s - begins_s) / every_s + 1e-6
