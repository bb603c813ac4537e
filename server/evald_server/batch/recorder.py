"""What tallies hear in one process, to be told to those of another."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from evald.evaluator import Metric
from evald_server.engine.plan import Plan

Note: TypeAlias = tuple[Any, ...]
"""A result that is not of the usual kind: the use's number and the arguments of `Tally.add`; or an error: the
number and the argument of `Tally.error`."""

Mark: TypeAlias = tuple[list[tuple[int, ...]], int]


class Heard(NamedTuple):
    """What was heard. usual: by use, as `Tally.usual`. notes: the rest, in order."""

    usual: Sequence[Sequence[int]]
    notes: Sequence[Note]

    def tell(self, plan: Plan) -> None:
        """Have the tallies of an equal plan hear it."""
        for use, (count, nanos) in zip(plan.uses, self.usual, strict=True):
            if count:
                usual = use.tally.usual
                usual[0] += count
                usual[1] += nanos
        for number, *note in self.notes:
            tally = plan.uses[number].tally
            if len(note) == 1:
                tally.error(*note)
            else:
                tally.add(*note)


class Recorder:
    """The observer of one plan: gives a tally to each use, in the plan's order, and remembers what they hear.

    measures: whether the tallies that will be told want the values of results, by use.
    """

    def __init__(self, measures: Sequence[bool]) -> None:
        self._measures = measures
        self._usual: list[list[int]] = []
        self._notes: list[Note] = []

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: Metric | None,
    ) -> "_Tally":
        """The tally of the next use."""
        number = len(self._usual)
        self._usual.append([0, 0])
        # A plan of another length is no equal one: nobody will be told.
        measures = number < len(self._measures) and self._measures[number]
        return _Tally(number, self._usual[number], self._notes, measures=measures)

    def mark(self) -> Mark:
        """How far it has come."""
        return list(map(tuple, self._usual)), len(self._notes)

    def forget(self, mark: Mark) -> None:
        """Unhear what came after the mark."""
        for usual, before in zip(self._usual, mark[0], strict=True):
            usual[:] = before
        del self._notes[mark[1] :]

    def take(self) -> Heard:
        """What was heard since the last time."""
        heard = Heard([usual[:] for usual in self._usual], self._notes[:])
        for usual in self._usual:
            usual[:] = 0, 0
        self._notes.clear()
        return heard


class _Tally:
    def __init__(self, number: int, usual: list[int], notes: list[Note], *, measures: bool) -> None:
        self.usual = usual
        self.measures = measures
        self._number = number
        self._notes = notes

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
    ) -> None:
        self._notes.append((self._number, int(verdict), seconds, score, value))

    def error(self, code: str) -> None:
        self._notes.append((self._number, code))
