"""Who hears of every result. The engine knows these protocols and nothing of telemetry."""

from typing import Protocol

from evald.evaluator import Metric


class Tally(Protocol):
    """Hears of the results of one evaluator type.

    usual: how many results besides those of `add` passed, with score 1 where the type gates, within
    a millisecond, and how many nanoseconds these took together. The engine adds to it in place: a
    function call for each would cost as much as a check. Not where the tally `measures`.
    """

    @property
    def usual(self) -> list[int]:
        """Count and nanoseconds, to be added to."""

    @property
    def measures(self) -> bool:
        """Whether the values of results are wanted."""

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
    ) -> None:
        """One result. verdict: number of evald.Verdict; seconds: how long it took."""

    def error(self, code: str) -> None:
        """An error of this code, one of evald.errorcodes.CODES."""


class Observer(Protocol):
    """Gives out tallies. Asked once per plan and evaluator, not per call."""

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: Metric | None,
    ) -> Tally:
        """The tally of a type, for results that count (`enforced`) or shadow ones."""


class _NoTally:
    measures = False

    def __init__(self) -> None:
        self.usual = [0, 0]

    def add(
        self,
        verdict: int,
        seconds: float,
        score: float | None,
        value: float | None,
        trace_id: str | None = None,
    ) -> None:
        pass

    def error(self, code: str) -> None:
        pass


class NoObserver:
    """Hears nothing: for children of combinators, and for engines without telemetry."""

    _tally = _NoTally()

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: Metric | None,
    ) -> Tally:
        """A tally that forgets."""
        return self._tally
