"""Where two JSON values differ."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from evald.strict_json import TooLarge

from .alignment import pair_in_any_order
from .values import MISSING, Check, Path, covers, cut, equal, pointer, shown, unlimited

Mode = Literal["exact", "subset", "superset"]
"""What the wanted value is of the one got: all of it, a part of it, or more than it."""


Place = tuple[str | int, ...]


class Difference(NamedTuple):
    """One place where two values differ; MISSING stands for nothing."""

    place: Place
    got: Any
    wanted: Any

    def __str__(self) -> str:
        where = cut(pointer(self.place), 500) or "the whole"
        if self.wanted is MISSING:
            return f"{where}: unexpected {shown(self.got)}"
        return f"{where}: got {shown(self.got)}, expected {shown(self.wanted)}"


# Values that may be looked at to find out which elements belong together, when their order does not count.
_SEARCH: Final = 5_000

MAX_DIFFERENCES: Final = 20

# At about 4 us each.
MAX_VALUES: Final = 1_000_000

# Characters of JSON text that take as long to make as a look at a value.
_CHARACTERS_PER_LOOK: Final = 8


class Comparison:
    """Compares two JSON values leaf by leaf.

    arrays: whether elements are compared by position, or each with the one that
    it has most in common with. ignored: places that are not compared.
    differences: the first MAX_DIFFERENCES places that differ, of difference_count. equal_leaves, different_leaves: how many.
    """

    def __init__(
        self,
        mode: Mode,
        arrays: Literal["ordered", "unordered"] = "ordered",
        ignored: Sequence[Path] = (),
        tolerance: float = 0,
        check: Check = unlimited,
    ) -> None:
        """check: called from time to time; may raise."""
        self.differences: list[Difference] = []
        self.difference_count = 0
        self.equal_leaves = 0
        self.different_leaves = 0
        self._mode: Mode = mode
        self._arrays: Literal["ordered", "unordered"] = arrays
        self._ignored = ignored
        self._tolerance = tolerance
        self._left = _SEARCH
        self._check = check
        self._steps = 0

    def compare(self, got: Any, wanted: Any, place: Place = ()) -> None:
        """Note how the two differ below the place."""
        self._left -= 1
        self._steps += 1
        if not self._steps & 31:
            self._look_at_the_clock()
        if self._ignored and self._is_ignored(place):
            return
        if got is MISSING or wanted is MISSING:
            if self._mode != ("superset" if got is MISSING else "subset"):
                leaves = self._leaves(wanted if got is MISSING else got, place)
                if leaves:
                    self._differ(got, wanted, place, leaves)
        elif isinstance(got, dict) and isinstance(wanted, dict) and (got or wanted):
            for key in (*wanted, *(key for key in got if key not in wanted)):
                self.compare(got.get(key, MISSING), wanted.get(key, MISSING), (*place, key))
        elif isinstance(got, list) and isinstance(wanted, list) and (got or wanted):
            if self._arrays == "unordered":
                got = self._reorder(got, wanted, place)
            for index in range(max(len(got), len(wanted))):
                self.compare(
                    got[index] if index < len(got) else MISSING,
                    wanted[index] if index < len(wanted) else MISSING,
                    (*place, index),
                )
        elif equal(got, wanted, self._tolerance, self._check):
            self.equal_leaves += 1
        else:
            self._differ(got, wanted, place, max(self._leaves(got, place), self._leaves(wanted, place), 1))

    def _look_at_the_clock(self) -> None:
        self._check()
        if self._steps > MAX_VALUES:
            raise TooLarge(
                f"the answer and the expected data have more than {MAX_VALUES} values to be compared"
            )

    def _differ(self, got: Any, wanted: Any, place: Place, leaves: int) -> None:
        self.different_leaves += leaves
        self.difference_count += 1
        if len(self.differences) < MAX_DIFFERENCES:
            self.differences.append(Difference(place, got, wanted))

    def _is_ignored(self, place: Place) -> bool:
        return any(covers(path, place) for path in self._ignored)

    def _leaves(self, value: Any, place: Place) -> int:
        """Leaves of a value, without the ignored ones. Without recursion: an answer may be very deep."""
        count = 0
        pending = [(value, place)]
        while pending:
            item, where = pending.pop()
            self._steps += 1
            if not self._steps & 255:
                self._look_at_the_clock()
            if self._is_ignored(where):
                continue
            if item and isinstance(item, dict | list):
                steps = item.items() if isinstance(item, dict) else enumerate(item)
                # Places take memory for each level, and only ignored paths need them.
                pending += [(inner, (*where, step) if self._ignored else ()) for step, inner in steps]
            else:
                count += 1
        return count

    def _reorder(self, got: list[Any], wanted: list[Any], place: Place) -> list[Any]:
        """The elements in the order of what they are compared with: equal ones first, then those with most
        in common, the rest as they come."""
        unused: dict[str, deque[int]] = {}
        for index, value in enumerate(got):
            text = self._canonical(value)
            self._left -= len(text) // _CHARACTERS_PER_LOOK
            unused.setdefault(text, deque()).append(index)
        chosen: dict[int, int] = {}
        for index, value in enumerate(wanted):
            same = unused.get(self._canonical(value))
            if same:
                chosen[index] = same.popleft()
        left = [index for index in range(len(wanted)) if index not in chosen]
        taken = set(chosen.values())
        right = [index for index in range(len(got)) if index not in taken]
        trials = len(left) * len(right)
        if 1 < trials <= self._left:
            self._left -= trials
            similar = [
                [self._in_common(got[mine], wanted[index], (*place, index)) for mine in right]
                for index in left
            ]
            weights = [{at: weight for at, weight in enumerate(row) if weight} for row in similar]
            for position, at in pair_in_any_order(weights, len(right), self._check):
                chosen[left[position]] = right[at]
        taken = set(chosen.values())
        rest = iter([value for index, value in enumerate(got) if index not in taken])
        return [
            *(got[chosen[index]] if index in chosen else next(rest, MISSING) for index in range(len(wanted))),
            *rest,
        ]

    def _in_common(self, got: Any, wanted: Any, place: Place) -> int:
        """How many leaves are equal; 0 when too much has been looked at already."""
        if self._left <= 0:
            return 0
        trial = Comparison(self._mode, self._arrays, self._ignored, self._tolerance, self._check)
        trial._left = self._left
        trial.compare(got, wanted, place)
        self._left = trial._left
        return trial.equal_leaves

    def _canonical(self, value: Any) -> str:
        """Text that is the same for values that are equal whatever the order of keys and elements."""
        self._steps += 1
        if not self._steps & 31:
            self._look_at_the_clock()
        try:
            return _sorted_text(value, self._check)
        except RecursionError:  # deeper than any expected data, so equal to none
            return f"#{id(value)}"


def _sorted_text(value: Any, check: Check) -> str:
    if isinstance(value, dict):
        check()
        inside = [f"{json.dumps(key)}:{_sorted_text(value[key], check)}" for key in sorted(value)]
        return f"{{{','.join(inside)}}}"
    if isinstance(value, list):
        check()
        return f"[{','.join(sorted([_sorted_text(item, check) for item in value]))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
