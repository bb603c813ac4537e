"""Optimal pairing of two sequences: in order, by dynamic programming, or in any order, by assignment.

`weights` has one mapping for each item on the left: from positions on the right (from 0) to weights above 0. The
result has the largest possible sum of weights, which a greedy pairing may miss.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from .json_values import CheckTime, unlimited

Weights = Sequence[Mapping[int, int]]
Pairs = list[tuple[int, int]]

_INFINITE: Final = 1 << 60


def pair_in_order(weights: Weights, right: int, check: CheckTime = unlimited) -> Pairs:
    """Return the best pairing that keeps the order; with weights of 1, a longest common subsequence.

    right: number of items on the right. check: called regularly, may raise. Takes left times right steps.
    """
    rows = [[0] * (right + 1)]
    for row in weights:
        check()
        above, best, current = rows[-1], 0, [0]
        for column in range(right):
            weight = row.get(column)
            best = max(best, above[column + 1])
            if weight is not None:
                best = max(best, above[column] + weight)
            current.append(best)
        rows.append(current)
    pairs: Pairs = []
    column = right
    for position in range(len(weights) - 1, -1, -1):
        above, current = rows[position], rows[position + 1]
        # Use the leftmost equally good place, so that pairs are as early as possible.
        while column and current[column - 1] == current[column]:
            column -= 1
        if column and current[column] != above[column]:
            pairs.append((position, column - 1))
            column -= 1
    pairs.reverse()
    return pairs


def pair_in_any_order(weights: Weights, right: int, check: CheckTime = unlimited) -> Pairs:
    """Return the best pairing in any order, by the Hungarian method.

    right: number of items on the right. check: called regularly, may raise. Takes at most shorter * shorter *
    longer steps, usually far fewer. Source: J. Munkres, J. SIAM 5(1), 1957, in the form with potentials.
    """
    if len(weights) <= right:
        return _assign(weights, right, check)
    flipped: list[dict[int, int]] = [{} for _ in range(right)]
    for position, row in enumerate(weights):
        for column, weight in row.items():
            flipped[column][position] = weight
    return sorted((position, column) for column, position in _assign(flipped, len(weights), check))


def _assign(weights: Weights, right: int, check: CheckTime) -> Pairs:
    """Minimise the sum of -weight, where an absent weight is 0. Row and column 0 are sentinels."""
    row_potential = [0] * (len(weights) + 1)
    column_potential = [0] * (right + 1)
    row_of = [0] * (right + 1)
    for row in range(1, len(weights) + 1):
        row_of[0] = row
        column = 0
        slack = [_INFINITE] * (right + 1)
        came_from = [0] * (right + 1)
        open_columns = list(range(1, right + 1))
        visited = [0]
        while row_of[column]:
            check()
            current = row_of[column]
            costs = weights[current - 1]
            potential = row_potential[current]
            step, nearest = _INFINITE, 0
            for other in open_columns:
                cost = -costs.get(other - 1, 0) - potential - column_potential[other]
                if cost < slack[other]:
                    slack[other] = cost
                    came_from[other] = column
                # Of equally near columns, a free one ends the search: 200 equal items take 6 ms instead of 370.
                if slack[other] < step or (slack[other] == step and not row_of[other]):
                    step, nearest = slack[other], other
            for done in visited:
                row_potential[row_of[done]] += step
                column_potential[done] -= step
            for other in open_columns:
                slack[other] -= step
            open_columns.remove(nearest)
            visited.append(nearest)
            column = nearest
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    pairs = [(row_of[column] - 1, column - 1) for column in range(1, right + 1) if row_of[column]]
    return sorted((row, column) for row, column in pairs if column in weights[row])


def match_as_many(
    left: Sequence[int],
    right: Sequence[int],
    matches: Callable[[int, int], bool | None],
    pairs: dict[int, int],
    check: CheckTime = unlimited,
) -> bool:
    """Extend `pairs`, from left to right, to a largest set of matching pairs, by augmenting paths.

    A paired item stays paired, but maybe with another one. matches: None ends the search. check: called regularly, may
    raise. Takes at most left * left * right calls of `matches`. Returns whether the search came to its end. Source:
    C. Berge, PNAS 43(9), 1957.
    """
    partner = {other: item for item, other in pairs.items()}
    free = dict.fromkeys(other for other in right if other not in partner)
    for start in left:
        if start in pairs:
            continue
        came_from: dict[int, int] = {}
        pending = deque([start])
        end = None
        while pending and end is None:
            check()
            item = pending.popleft()
            for other in chain(free, partner):
                if other in came_from:
                    continue
                match = matches(item, other)
                if match is None:
                    return False
                if match:
                    came_from[other] = item
                    if other in free:
                        end = other
                        break
                    pending.append(partner[other])
        if end is not None:
            del free[end]
        while end is not None:  # each item of the path takes the partner of the next one
            item = partner[end] = came_from[end]
            pairs[item], end = end, pairs.get(item)
    return True
