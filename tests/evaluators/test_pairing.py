"""The pairing is optimal: no other one has a larger sum of weights."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald_server.evaluators.pairing import Pairs, Weights, match_as_many, pair_in_any_order, pair_in_order

SIZE = 5


def best_by_trying_all(weights: Weights, *, in_order: bool) -> int:
    def best(row: int, free: frozenset[int], last: int) -> int:
        if row == len(weights):
            return 0
        options = [best(row + 1, free, last)]
        options += [
            weight + best(row + 1, free - {column}, column)
            for column, weight in weights[row].items()
            if column in free and (column > last or not in_order)
        ]
        return max(options)

    return best(0, frozenset(range(SIZE)), -1)


def total(weights: Weights, pairs: Pairs) -> int:
    return sum(weights[left][right] for left, right in pairs)


# Weights as the trajectory makes them (pairs outweigh bonuses) and others.
tables = st.lists(
    st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from((1, 3, 6, 7)), max_size=SIZE), max_size=SIZE
)


@settings(max_examples=100, deadline=None)
@given(tables)
def test_no_pairing_in_order_is_better(weights: list[dict[int, int]]) -> None:
    pairs = pair_in_order(weights, SIZE)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    assert total(weights, pairs) == best_by_trying_all(weights, in_order=True)


@settings(max_examples=100, deadline=None)
@given(tables)
def test_no_pairing_in_any_order_is_better(weights: list[dict[int, int]]) -> None:
    pairs = pair_in_any_order(weights, SIZE)
    assert pairs == sorted(pairs)
    assert len({right for _, right in pairs}) == len({left for left, _ in pairs}) == len(pairs)
    assert total(weights, pairs) == best_by_trying_all(weights, in_order=False)


@settings(max_examples=100, deadline=None)
@given(tables, st.integers(0, SIZE))
def test_no_more_pairs_match_whatever_is_paired_before(weights: list[dict[int, int]], known: int) -> None:
    pairs: dict[int, int] = {}
    for left, row in enumerate(weights[:known]):
        unused = row.keys() - pairs.values()
        if unused:
            pairs[left] = min(unused)
    before = set(pairs)
    assert match_as_many(range(len(weights)), range(SIZE), lambda left, right: right in weights[left], pairs)
    assert all(right in weights[left] for left, right in pairs.items())
    assert before <= set(pairs)
    ones = [dict.fromkeys(row, 1) for row in weights]
    assert len(set(pairs.values())) == len(pairs) == best_by_trying_all(ones, in_order=False)


def names(wanted: str, made: str) -> list[dict[int, int]]:
    return [{column: 1 for column, other in enumerate(made) if other == name} for name in wanted]


@pytest.mark.parametrize(
    ("wanted", "made", "pairs"),
    [
        pytest.param("", "", [], id="nothing"),
        pytest.param("ab", "", [], id="nothing-made"),
        pytest.param("abc", "abc", [(0, 0), (1, 1), (2, 2)], id="equal"),
        pytest.param("abc", "axbyc", [(0, 0), (1, 2), (2, 4)], id="others-between"),
        # Taking the first b, as a greedy search does, would lose both a and c.
        pytest.param("bac", "acb", [(1, 0), (2, 1)], id="greedy-loses"),
        pytest.param("aa", "aaa", [(0, 0), (1, 1)], id="as-early-as-possible"),
    ],
)
def test_pairs_in_order(wanted: str, made: str, pairs: Pairs) -> None:
    assert pair_in_order(names(wanted, made), len(made)) == pairs


@pytest.mark.parametrize(
    ("weights", "right", "pairs"),
    [
        pytest.param([], 3, [], id="no-left"),
        pytest.param([{}, {}], 0, [], id="no-right"),
        # The first takes either; taking the first place would leave the second without any.
        pytest.param([{0: 1, 1: 1}, {0: 1}], 2, [(0, 1), (1, 0)], id="greedy-loses"),
        pytest.param([{0: 4}, {0: 5}], 1, [(1, 0)], id="heavier-wins"),
        pytest.param([{0: 4, 1: 5}, {0: 5, 1: 4}], 2, [(0, 1), (1, 0)], id="all-heavier"),
    ],
)
def test_pairs_in_any_order(weights: Sequence[dict[int, int]], right: int, pairs: Pairs) -> None:
    assert pair_in_any_order(weights, right) == pairs


def test_a_shuffled_trajectory_of_200_calls_is_paired_completely() -> None:
    weights = [{(7 * row) % 200: 1, (7 * row + 3) % 200: 1, (11 * row) % 200: 1} for row in range(200)]
    pairs = pair_in_any_order(weights, 200)
    assert len(pairs) == 200
