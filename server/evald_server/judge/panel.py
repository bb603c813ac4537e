"""Many votes, one verdict: strict majority, withheld votes, and no more questions than are needed.

- A turn passes with more than half of all votes. Half of them is no pass.
- A vote that is withheld, because of a fault, counts as none and does not shrink the panel.
- When the withheld votes could have changed the outcome there is no verdict. So no fault turns a failing
  turn into a passing one, nor, for whoever negates the verdict, a passing one into a failing one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from .asking import Vote


class Outcome(Enum):
    """Where a vote stands. UNDECIDABLE: too many votes are withheld."""

    OPEN = "open"
    PASSES = "passes"
    FAILS = "fails"
    UNDECIDABLE = "undecidable"


class Count(NamedTuple):
    """Votes so far. seats: all that there can be. withheld: given up because of a fault."""

    seats: int
    passing: int = 0
    failing: int = 0
    withheld: int = 0

    @classmethod
    def of(cls, seats: int, votes: Iterable[Vote]) -> "Count":
        """Count these votes."""
        stands = [vote.stand for vote in votes]
        return cls(seats, stands.count(True), stands.count(False), stands.count(None))

    @property
    def _to_pass(self) -> int:
        """Further passing votes that make it pass."""
        return self.seats // 2 + 1 - self.passing

    @property
    def _to_fail(self) -> int:
        """Further failing votes after which no others could make it pass."""
        return (self.seats + 1) // 2 - self.failing

    @property
    def _left(self) -> int:
        return self.seats - self.passing - self.failing - self.withheld

    @property
    def outcome(self) -> Outcome:
        """Decided as soon as no further vote can change it."""
        if self._to_pass <= 0:
            return Outcome.PASSES
        if self._to_fail <= 0:
            return Outcome.FAILS
        return Outcome.OPEN if self.needed else Outcome.UNDECIDABLE

    @property
    def needed(self) -> int:
        """The fewest further votes that can decide; 0 when none can."""
        return min((more for more in (self._to_pass, self._to_fail) if 0 < more <= self._left), default=0)


async def poll(
    seats: int,
    ask: Callable[[int], Awaitable[Vote]],
    *,
    at_once: bool,
    tell: Callable[[int], None] = lambda _votes: None,
) -> list[Vote | None]:
    """Ask for votes until the outcome is decided; None for who was not asked, or no longer needed.

    at_once: ask everybody; else never more than the fewest that can decide. tell: told how many have voted.
    """
    votes: dict[int, Vote] = {}
    running: dict[asyncio.Future[Vote], int] = {}
    try:
        while (count := Count.of(seats, votes.values())).outcome is Outcome.OPEN:
            wanted = seats if at_once else len(votes) + count.needed
            for seat in range(len(votes) + len(running), wanted):
                running[asyncio.ensure_future(ask(seat))] = seat
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                votes[running.pop(task)] = task.result()
            tell(len(votes))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [votes.get(seat) for seat in range(seats)]


def decide(votes: Sequence[Vote | None]) -> Vote:
    """The vote that speaks for all: of those given, the middle one by verdict, then score.

    It passes if and only if a strict majority of all does. So verdict, score, checks and reason are
    what one judge said, never a mixture. Undecidable: the first fault.
    """
    given = [vote for vote in votes if vote is not None]
    outcome = Count.of(len(votes), given).outcome
    standing = sorted(
        (vote for vote in given if vote.judgement is not None),
        key=lambda vote: (vote.judgement.passes, vote.judgement.score),  # type: ignore[union-attr]
    )
    if outcome in {Outcome.PASSES, Outcome.FAILS}:
        # The lower of two middle ones, because half of the votes is no majority.
        return standing[(len(standing) - 1) // 2]
    return next(vote for vote in given if vote.fault is not None)


def agreement(votes: Sequence[Vote | None], passes: bool) -> float:
    """The part of the votes given that agree with the verdict, 0 to 1."""
    stands = [vote.stand for vote in votes if vote is not None and vote.stand is not None]
    return stands.count(passes) / len(stands)
