"""Assertion that a JSON answer equals the expected data, and the comparison of the two."""

import json
from collections import deque
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from evald.context import EvaluatorContext
from evald.result import ASSERTION, Result, failed, passed
from evald.strict_json import TooLarge
from evald_server.jsonschema.check import json_pointer
from evald_server.untrusted import encodable, shorten

from .json_answers import Reference
from .json_values import (
    MISSING,
    CheckTime,
    Path,
    PathText,
    covers,
    equal,
    parse_path,
    shown,
    unlimited,
)
from .pairing import match_as_many, pair_in_any_order
from .results import MAX_NAMED, Amount

Mode = Literal["exact", "subset", "superset"]
"""The relation of the expected value to the answer's: equal, a part of it, or more than it."""


Place = tuple[str | int, ...]


class Difference(NamedTuple):
    """One place where two values differ. got, wanted: MISSING if absent."""

    place: Place
    got: Any
    wanted: Any

    def __str__(self) -> str:
        where = shorten(json_pointer(self.place), _MAX_PLACE) or "the whole answer"
        if self.wanted is MISSING:
            return f"{where}: unexpected {shown(self.got)}"
        return f"{where}: got {shown(self.got)}, expected {shown(self.wanted)}"


class _Attempt(NamedTuple):
    """A comparison of two elements that may be paired. matches: nothing differs."""

    matches: bool
    equal_leaves: int


# Budget of the search for matching elements in unordered arrays: number of values compared.
_SEARCH: Final = 50_000

# Pairs of elements that do not match, of which the most similar are paired.
_MAX_SIMILAR: Final = 5_000

_MAX_PLACE: Final = 500  # characters
_MAX_IGNORED: Final = 100

# About 4 us each.
_MAX_VALUES: Final = 1_000_000

# Characters of JSON text that take as long to encode as a comparison of one value.
_CHARACTERS_PER_LOOK: Final = 8


class Comparison:
    """A comparison of two JSON values, leaf by leaf.

    arrays: whether elements are compared by position, or each with a matching or similar one. ignored: places that
    are not compared. differences: the first MAX_NAMED of difference_count places that differ. equal_leaves,
    different_leaves: counts. incomplete: the search for matching elements ended early, so the values may match in
    another order.
    """

    def __init__(
        self,
        mode: Mode,
        arrays: Literal["ordered", "unordered"] = "ordered",
        ignored: Sequence[Path] = (),
        tolerance: float = 0,
        check: CheckTime = unlimited,
    ) -> None:
        """check: called regularly, may raise."""
        self.differences: list[Difference] = []
        self.difference_count = 0
        self.equal_leaves = 0
        self.different_leaves = 0
        self.incomplete = False
        self._mode: Mode = mode
        self._arrays: Literal["ordered", "unordered"] = arrays
        self._ignored = ignored
        self._tolerance = tolerance
        self._left = _SEARCH
        self._check = check
        self._steps = 0

    def compare(self, got: Any, wanted: Any, place: Place = ()) -> None:
        """Record the differences of the two values at the place."""
        self._left -= 1
        self._steps += 1
        if not self._steps & 31:
            self._check_limits()
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

    def _check_limits(self) -> None:
        self._check()
        if self._steps > _MAX_VALUES:
            raise TooLarge(f"the answer and the expected data have more than {_MAX_VALUES} values to compare")

    def _differ(self, got: Any, wanted: Any, place: Place, leaves: int) -> None:
        self.different_leaves += leaves
        self.difference_count += 1
        if len(self.differences) < MAX_NAMED:
            self.differences.append(Difference(place, got, wanted))

    def _is_ignored(self, place: Place) -> bool:
        return any(covers(path, place) for path in self._ignored)

    def _leaves(self, value: Any, place: Place) -> int:
        """Count the leaves of a value that are not ignored. Not recursive, because an answer may be very deep."""
        count = 0
        pending = [(value, place)]
        while pending:
            item, where = pending.pop()
            self._steps += 1
            if not self._steps & 255:
                self._check_limits()
            if self._is_ignored(where):
                continue
            if item and isinstance(item, dict | list):
                steps = item.items() if isinstance(item, dict) else enumerate(item)
                # Places use memory for each level, and are only needed for ignored paths.
                pending += [(inner, (*where, step) if self._ignored else ()) for step, inner in steps]
            else:
                count += 1
        return count

    def _reorder(self, got: list[Any], wanted: list[Any], place: Place) -> list[Any]:
        """Return the elements in the order of the wanted elements to compare them with.

        As many elements as possible are paired with one from which they do not differ, then the most similar ones,
        then the rest by position.
        """
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
        tried = cache(lambda index, at: self._try(got[at], wanted[index], (*place, index)))

        def matches(index: int, at: int) -> bool | None:
            return tried(index, at).matches if self._left > 0 else None

        # A tolerance does not carry over: 1.0 is near 1.1, and 1.1 near 1.2. So equal elements may have to part.
        if self._tolerance or self._ignored:
            every = range(len(wanted)), range(len(got))
            self.incomplete |= not match_as_many(*every, matches, chosen, self._check)
        elif self._mode != "exact":
            others: dict[int, int] = {}
            unpaired = _unpaired(chosen, wanted, got)
            self.incomplete |= not match_as_many(*unpaired, matches, others, self._check)
            chosen |= others
        left, right = _unpaired(chosen, wanted, got)
        if 1 < len(left) * len(right) <= _MAX_SIMILAR and self._left > 0:
            leaves = [[tried(index, at).equal_leaves for at in right] for index in left]
            weights = [{position: count for position, count in enumerate(row) if count} for row in leaves]
            for position, at in pair_in_any_order(weights, len(right), self._check):
                chosen[left[position]] = right[at]
        rest = iter([got[at] for at in _unpaired(chosen, wanted, got)[1]])
        return [
            *(got[chosen[index]] if index in chosen else next(rest, MISSING) for index in range(len(wanted))),
            *rest,
        ]

    def _try(self, got: Any, wanted: Any, place: Place) -> _Attempt:
        """Compare two elements that may be paired; they have nothing in common if the search budget is used up."""
        if self._left <= 0:
            return _Attempt(False, 0)
        attempt = Comparison(self._mode, self._arrays, self._ignored, self._tolerance, self._check)
        attempt._left = self._left
        attempt.compare(got, wanted, place)
        self._left = attempt._left
        self.incomplete |= attempt.incomplete
        return _Attempt(not attempt.difference_count, attempt.equal_leaves)

    def _canonical(self, value: Any) -> str:
        """Return a canonical text, equal for values that differ only in the order of keys and elements."""
        self._steps += 1
        if not self._steps & 31:
            self._check_limits()
        try:
            return _sorted_text(value, self._check)
        except RecursionError:  # deeper than any expected data, so equal to none
            return f"#{id(value)}"


def _unpaired(
    pairs: dict[int, int], left: Sequence[Any], right: Sequence[Any]
) -> tuple[list[int], list[int]]:
    """Return the positions on the left and on the right that are in no pair."""
    taken = set(pairs.values())
    free = [at for at in range(len(right)) if at not in taken]
    return [at for at in range(len(left)) if at not in pairs], free


def _sorted_text(value: Any, check: CheckTime) -> str:
    if isinstance(value, dict):
        check()
        inside = [f"{json.dumps(key)}:{_sorted_text(value[key], check)}" for key in sorted(value)]
        return f"{{{','.join(inside)}}}"
    if isinstance(value, list):
        check()
        return f"[{','.join(sorted([_sorted_text(item, check) for item in value]))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


class JsonMatch(
    Reference, type="json-match", kind=ASSERTION, label="JSON Match", aliases={"json-diff": {}}, inline=True
):
    """The answer is JSON that equals the expected data.

    The order of keys never counts, 1 equals 1.0, true does not equal 1.
    Score: the share of equal leaves among the leaves of both sides. A leaf is a
    value that is neither object nor array, or is empty.
    """

    mode: Mode = Field(
        "exact",
        description="How the answer may differ from the expected data. exact: not at all. subset: the expected data "
        "is a part of the answer, which may have more keys, and more elements after the expected ones. "
        "superset: the answer is a part of the expected data: it may lack keys and elements, but must "
        "not have others.",
    )
    arrays: Literal["ordered", "unordered"] = Field(
        "ordered",
        description="How elements of arrays are compared. ordered: by position. unordered: as many as possible with "
        "one from which they do not differ, the others with the most similar one.",
    )
    ignore: Annotated[list[PathText], Field(max_length=_MAX_IGNORED)] = Field(
        [], description='Paths that are not compared: "meta.id", "items[*].id" or "/items/*/id".'
    )
    tolerance: Amount = Field(0.0, description="Maximum difference between two numbers.")

    @cached_property
    def _ignored(self) -> list[Path]:
        return [parse_path(text) for text in self.ignore]

    def compare(self, ctx: EvaluatorContext, got: Any, wanted: Any) -> Result:
        """Compare the answer with the expected data leaf by leaf."""
        comparison = Comparison(self.mode, self.arrays, self._ignored, self.tolerance, ctx.check_time)
        comparison.compare(got, wanted)
        differences, equal_leaves = comparison.differences, comparison.equal_leaves
        count = comparison.difference_count
        if not differences:
            return passed(f"Response matches the expected JSON: {equal_leaves} value(s) agree", 1.0)
        listed = "; ".join(map(str, differences))
        more = f"; and {count - len(differences)} more" if count > len(differences) else ""
        if comparison.incomplete:
            more += f"; the elements may match in another order, but the search ended after {_SEARCH:,} comparisons"
        result = failed(
            f"Response differs from the expected JSON in {comparison.different_leaves} of "
            f"{equal_leaves + comparison.different_leaves} value(s): {listed}{more}",
            equal_leaves / (equal_leaves + comparison.different_leaves),
            metadata={
                "differences": [
                    {
                        "path": shorten(encodable(json_pointer(d.place)), _MAX_PLACE),
                        "got": shown(d.got),
                        "expected": shown(d.wanted),
                    }
                    for d in differences
                ],
                **({"differenceCount": count} if count > len(differences) else {}),
            },
        )
        result.unproven = comparison.incomplete
        return result
