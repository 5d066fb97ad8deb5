"""Which exit code counts of several."""

from __future__ import annotations

from itertools import product

from webhook.options import first_of


def test_of_several_exit_codes_the_first_of_2_1_and_3_counts():
    for codes in product(range(4), repeat=3):
        order = sorted(codes, key=(2, 1, 3, 0).index)
        assert first_of(codes) == order[0]
    assert first_of([]) == 0
