"""Edit distance and longest common subsequence of two sequences, by rapidfuzz when it is installed.

Without it the same bit-parallel algorithms run on Python's integers: one
column of the table is one integer, so that a pair of 5,000 characters takes
12 ms where a table of numbers takes 5 s. Both give the same numbers.
"""

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any


@cache
def _rapidfuzz() -> Any:
    """`rapidfuzz.distance`, or None. Imported when first used: it takes 20 ms."""
    try:
        from rapidfuzz import distance
    except ImportError:
        return None
    return distance


def max_cells() -> int:
    """Largest product of two lengths that takes at most 15 ms: 10 ms with rapidfuzz, 12 ms without."""
    return 25_000_000 if _rapidfuzz() is None else 100_000_000


def levenshtein(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Fewest insertions, deletions and substitutions that turn one into the other.

    Source: V. Levenshtein, Soviet Physics Doklady 10(8), 1966.
    """
    distance = _rapidfuzz()
    return int(distance.Levenshtein.distance(left, right)) if distance else bit_levenshtein(left, right)


def common_subsequence(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Length of the longest sequence that is left of both after deletions."""
    distance = _rapidfuzz()
    return int(distance.LCSseq.similarity(left, right)) if distance else bit_subsequence(left, right)


def _positions(items: Sequence[Hashable]) -> dict[Hashable, int]:
    """For each item, an integer with a bit set at every position where it stands."""
    positions: dict[Hashable, list[int]] = {}
    for position, item in enumerate(items):
        positions.setdefault(item, []).append(position)
    masks = {}
    for item, found in positions.items():
        mask = bytearray(len(items) // 8 + 1)
        for position in found:
            mask[position >> 3] |= 1 << (position & 7)
        masks[item] = int.from_bytes(mask, "little")
    return masks


def bit_levenshtein(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """`levenshtein` in pure Python.

    Source: G. Myers, J. ACM 46(3), 1999, in the form of H. Hyyrö, Nordic J.
    Computing 10(1), 2003: vertical and horizontal differences between
    neighbouring cells are -1, 0 or 1, so two bits say each.
    """
    if not left:
        return len(right)
    masks = _positions(left)
    full = (1 << len(left)) - 1
    last = 1 << (len(left) - 1)
    higher, lower, distance = full, 0, len(left)
    for item in right:
        equal = masks.get(item, 0)
        diagonal = (((equal & higher) + higher) ^ higher) | equal | lower
        right_higher = lower | (~(diagonal | higher) & full)
        right_lower = diagonal & higher
        if right_higher & last:
            distance += 1
        elif right_lower & last:
            distance -= 1
        right_higher = (right_higher << 1 | 1) & full
        right_lower = right_lower << 1 & full
        higher = right_lower | (~(diagonal | right_higher) & full)
        lower = right_higher & diagonal
    return distance


def bit_subsequence(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """`common_subsequence` in pure Python.

    Source: H. Hyyrö, "Bit-parallel LCS-length computation revisited", AWOCA 2004.
    """
    masks = _positions(left)
    full = (1 << len(left)) - 1
    rows = full
    for item in right:
        matched = rows & masks.get(item, 0)
        rows = ((rows + matched) | (rows - matched)) & full
    return len(left) - rows.bit_count()
