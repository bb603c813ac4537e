"""One vote about one turn: who was asked, what each said, what it cost."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald.result import Result, Verdict, errored
from evald.scope import Scope

from .asking import Fault, Vote, named
from .panel import agreement, decide, poll
from .question import Asker, Spending

# Kept back of the time that is left, so that a result with all that was spent is there before the engine
# gives up. Endpoints, which know best what took so long, give up earlier still.
_RESERVE_SECONDS: Final = 0.02

AskSample = Callable[["Seat", int], Awaitable[Vote]]
"""Asks a judge for one of its samples, counted from 0."""


class Seat(NamedTuple):
    """One judge and how it is asked."""

    asker: Asker
    temperature: float


class Ballot:
    """A panel that votes once. A judge votes as a strict majority of its samples does."""

    def __init__(self, seats: Sequence[Seat], samples: int, scope: Scope) -> None:
        self.spending = Spending()
        self._seats = seats
        self._samples = samples
        self._scope = scope
        self._sampled: dict[int, Sequence[Vote | None]] = {}
        self._votes: Sequence[Vote | None] = ()

    async def run(self, ask: AskSample) -> Vote:
        """Let the judges vote, all at once. The vote that speaks for all."""

        async def vote(number: int) -> Vote:
            self._sampled[number] = await self._sample(self._seats[number], ask)
            return decide(self._sampled[number])

        self._votes = await poll(
            len(self._seats),
            vote,
            at_once=True,
            tell=lambda votes: self._tell(votes, len(self._seats), "judges"),
        )
        return decide(self._votes)

    def result(self, vote: Vote) -> Result:
        """The verdict, the score and the findings of the vote that speaks for all, and what all spent."""
        seat = self._seats[self._number(vote)]
        if vote.judgement is not None:
            said = vote.judgement
            verdict = Verdict.PASSED if said.passes else Verdict.FAILED
            result = Result(verdict, said.reason + self._majority(vote), said.score, checks=said.checks)
            result.pending = said.pending
        else:
            assert vote.fault is not None
            result = errored(
                vote.fault.code,
                vote.fault.message + self._majority(vote),
                judge=seat.asker.endpoint,
                model=seat.asker.model,
            )
        answers = [one.answer for one in self._all() if one.answer is not None]
        result.cached = bool(answers) and all(answer.cached for answer in answers)
        result.token_usage, result.cost_usd = self.spending.usage, self.spending.cost_usd
        return result

    def provenance(self, vote: Vote) -> dict[str, Any]:
        """Which judge it was, or which judges and how they voted."""
        seat = self._seats[self._number(vote)]
        found: dict[str, Any] = {
            "endpoint": seat.asker.endpoint,
            "model": vote.answer.model if vote.answer is not None else seat.asker.model,
            "attempts": self.spending.attempts,
        }
        if len(self._seats) > 1:
            found["votes"] = [
                {"endpoint": one.asker.endpoint, "model": one.asker.model, **_described(given)}
                for one, given in zip(self._seats, self._votes, strict=True)
            ]
        elif self._samples > 1:
            found["votes"] = [_described(given) for given in self._sampled.get(0, ())]
        if "votes" in found and vote.stand is not None:
            found["agreement"] = agreement(self._counted(), vote.stand)
        return found

    def request(self) -> Mapping[str, Any] | None:
        """What was sent first, as far as an answer came."""
        requests = (one.answer.request for one in self._all() if one.answer is not None)
        return next(filter(None, requests), None)

    async def _sample(self, seat: Seat, ask: AskSample) -> Sequence[Vote | None]:
        """The samples of a judge, in the task of its own that `poll` gave it."""
        left = self._scope.time_left()
        if left is None:
            return await self._poll(seat, ask)
        try:
            async with asyncio.timeout(left - min(_RESERVE_SECONDS, left / 20)):
                return await self._poll(seat, ask)
        except TimeoutError:
            fault = Fault("JUDGE_TIMEOUT", f"{named(seat.asker)}: no answer within {left:.3g} s")
            return [Vote(None, fault, None)]

    async def _poll(self, seat: Seat, ask: AskSample) -> Sequence[Vote | None]:
        def tell(votes: int) -> None:
            if len(self._seats) == 1:
                self._tell(votes, self._samples, "samples")

        return await poll(self._samples, lambda sample: ask(seat, sample), at_once=False, tell=tell)

    def _tell(self, votes: int, total: int, of_what: str) -> None:
        if total > 1:
            self._scope.progress(f"asked {votes} of {total} {of_what}", votes / total)

    def _counted(self) -> Sequence[Vote | None]:
        """The votes that are counted in the end."""
        return self._votes if len(self._seats) > 1 else self._sampled.get(0, ())

    def _all(self) -> list[Vote]:
        """Every sample there is, in the order of judges."""
        return [
            vote for number in sorted(self._sampled) for vote in self._sampled[number] if vote is not None
        ]

    def _number(self, vote: Vote) -> int:
        return next(number for number, one in enumerate(self._votes) if one is vote)

    def _majority(self, vote: Vote) -> str:
        counted = self._counted()
        if len(counted) < 2:
            return ""
        alike = sum(one is not None and one.stand is vote.stand for one in counted)
        what = "judges" if len(self._seats) > 1 else "samples"
        if vote.stand is None:
            return f" ({alike} of {len(counted)} {what} gave no vote, which could have decided)"
        return f" ({alike} of {len(counted)} {what} agree)"


def _described(vote: Vote | None) -> dict[str, Any]:
    if vote is None:
        return {"vote": "not needed"}
    if vote.judgement is None:
        assert vote.fault is not None
        return {"vote": "withheld", "error": vote.fault.code}
    return {"vote": "passed" if vote.judgement.passes else "failed", "score": vote.judgement.score}
