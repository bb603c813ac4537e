"""Voting: one result from many answers of judges.

- A turn passes with more than half of all votes, and fails with more than half. A tie is undecided: it is a failure
  that neither negation nor a threshold can invert.
- A vote that is missing because of an error does not shrink the panel.
- When the missing votes could have changed the outcome, there is no verdict. So an error never turns a failing
  turn into a passing one, nor, for callers who negate the verdict, a passing one into a failing one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from evald.result import Result, Verdict, errored
from evald.scope import Scope

from .prompt_request import CallSpending, JudgeError, JudgeModel, ModelAnswer
from .rubric_modes import Judgement

# Reserved from the time left, so that the result, with everything spent, is ready before the engine times out.
# Endpoints time out even earlier, because their errors name the cause.
_RESERVE_SECONDS: Final = 0.02


class Vote(NamedTuple):
    """A judgement, or the error that caused the vote to be missing.

    answer: the last answer, usable or not; None if there was none.
    tied: as many samples of the judge pass as fail, so the vote counts for neither.
    """

    judgement: Judgement | None
    error: JudgeError | None
    answer: ModelAnswer | None
    tied: bool = False

    @property
    def passes(self) -> bool | None:
        """Whether the turn passes; None when the vote is missing."""
        return None if self.judgement is None else self.judgement.passes


class Decision(Enum):
    """The decision by the votes so far. TIED: it cannot pass, but no majority fails it. UNDECIDABLE: too many votes
    are missing."""

    OPEN = "open"
    PASSES = "passes"
    FAILS = "fails"
    TIED = "tied"
    UNDECIDABLE = "undecidable"


class VoteCount(NamedTuple):
    """Votes so far. size: number of possible votes. tied: neither passing nor failing. missing: lost to an error."""

    size: int
    passing: int
    failing: int
    tied: int
    missing: int

    @classmethod
    def of(cls, size: int, votes: Iterable[Vote]) -> "VoteCount":
        """Count these votes."""
        stands = ["tied" if vote.tied else vote.passes for vote in votes]
        return cls(size, *map(stands.count, (True, False, "tied", None)))

    @property
    def decision(self) -> Decision:
        """The decision. It is made as soon as no further vote can change it."""
        if self._to_pass <= 0:
            return Decision.PASSES
        if self._to_fail <= 0:
            return Decision.FAILS
        if self.needed:
            return Decision.OPEN
        return Decision.TIED if self._to_tie <= 0 else Decision.UNDECIDABLE

    @property
    def needed(self) -> int:
        """The minimum number of further votes that can decide; 0 when none can."""
        left = self.size - self.passing - self.failing - self.tied - self.missing
        steps = (self._to_pass, self._to_tie, self._to_fail)
        return min((more for more in steps if 0 < more <= left), default=0)

    @property
    def _to_pass(self) -> int:
        """The number of further passing votes after which the turn passes."""
        return self.size // 2 + 1 - self.passing

    @property
    def _to_tie(self) -> int:
        """The number of further votes, failing or tied, after which the turn cannot pass."""
        return (self.size + 1) // 2 - self.failing - self.tied

    @property
    def _to_fail(self) -> int:
        """The number of further failing votes after which the turn fails."""
        return self.size // 2 + 1 - self.failing


async def collect_votes(
    size: int,
    ask: Callable[[int], Awaitable[Vote]],
    *,
    all_at_once: bool,
    on_vote: Callable[[int], None] = lambda _count: None,
) -> list[Vote | None]:
    """Ask for votes until they decide. Returns None in place of a vote that was not needed.

    all_at_once: ask for all votes; else never for more than the minimum that can decide.
    on_vote: called with the number of votes so far.
    """
    votes: dict[int, Vote] = {}
    running: dict[asyncio.Future[Vote], int] = {}
    try:
        while (count := VoteCount.of(size, votes.values())).decision is Decision.OPEN:
            wanted = size if all_at_once else len(votes) + count.needed
            for number in range(len(votes) + len(running), wanted):
                running[asyncio.ensure_future(ask(number))] = number
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                votes[running.pop(task)] = task.result()
            on_vote(len(votes))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return [votes.get(number) for number in range(size)]


def decide(votes: Sequence[Vote | None]) -> Decision:
    """Return the decision by these votes. None is a vote that was not needed."""
    return VoteCount.of(len(votes), (vote for vote in votes if vote is not None)).decision


def deciding_vote(votes: Sequence[Vote | None]) -> Vote:
    """Return the vote that represents all: the median of the votes cast, ordered by verdict, then score.

    It passes if and only if a strict majority does. So verdict, score, checks and reason are from one
    judge, never mixed. If undecidable, it is the first error.
    """
    cast = [vote for vote in votes if vote is not None]
    if decide(votes) is not Decision.UNDECIDABLE:
        judged = sorted(
            ((vote.judgement.passes, vote.judgement.score, position), vote)
            for position, vote in enumerate(cast)
            if vote.judgement is not None
        )
        # The lower of two medians, because half of the votes is no majority.
        return judged[(len(judged) - 1) // 2][1]
    return next(vote for vote in cast if vote.error is not None)


def agreement(votes: Sequence[Vote | None], passes: bool) -> float:
    """Return the share of the votes cast that agree with the verdict, 0 to 1."""
    cast = [vote.passes for vote in votes if vote is not None and vote.passes is not None]
    return cast.count(passes) / len(cast)


class PanelMember(NamedTuple):
    """One judge and the temperature of its requests."""

    model: JudgeModel
    temperature: float


AskSample = Callable[[PanelMember, int], Awaitable[Vote]]
"""Asks a judge for one of its samples, counted from 0."""


class Panel:
    """One or more judges, each with one vote. A judge's vote is the strict majority of its samples."""

    def __init__(self, members: Sequence[PanelMember], samples: int, scope: Scope) -> None:
        self.spending = CallSpending()
        self._members = members
        self._samples = samples
        self._scope = scope
        self._votes: Sequence[Vote | None] = ()
        self._samples_of: dict[int, Sequence[Vote | None]] = {}

    async def vote(self, ask: AskSample) -> Vote:
        """Query all judges concurrently; return the deciding vote."""

        async def ask_member(number: int) -> Vote:
            samples = self._samples_of[number] = await self._sample(self._members[number], ask)
            return deciding_vote(samples)._replace(tied=decide(samples) is Decision.TIED)

        self._votes = await collect_votes(
            len(self._members),
            ask_member,
            all_at_once=True,
            on_vote=lambda count: self._report(count, len(self._members), "judges"),
        )
        return deciding_vote(self._votes)

    def result(self, vote: Vote) -> Result:
        """Return the deciding vote as a result, with the spending of all judges."""
        majority = self._majority(vote)
        if vote.judgement is not None:
            judgement = vote.judgement
            verdict = Verdict.PASSED if judgement.passes else Verdict.FAILED
            result = Result(verdict, judgement.reason + majority, judgement.score, checks=judgement.checks)
            result.pending, result.unproven = judgement.pending, decide(self._votes) is Decision.TIED
        else:
            assert vote.error is not None
            model = self._member_of(vote).model
            message = f"{vote.error}{majority}"
            result = errored(vote.error.code, message, judge=model.endpoint, model=model.model)
        answers = self._answers()
        result.cached_answers = sum(answer.cached for answer in answers)
        result.cached = 0 < result.cached_answers == len(answers)
        result.token_usage, result.cost_usd = self.spending.usage, self.spending.cost_usd
        return result

    def votes_of(self, vote: Vote) -> dict[str, Any]:
        """Return metadata: the judge of the deciding vote, and all votes."""
        model = self._member_of(vote).model
        found: dict[str, Any] = {
            "endpoint": model.endpoint,
            "model": vote.answer.model if vote.answer is not None else model.model,
            "attempts": self.spending.attempts,
        }
        if len(self._members) > 1:
            found["votes"] = [
                {"endpoint": member.model.endpoint, "model": member.model.model, **_described(cast)}
                for member, cast in zip(self._members, self._votes, strict=True)
            ]
        elif self._samples > 1:
            found["votes"] = [_described(cast) for cast in self._counted()]
        if "votes" in found and vote.passes is not None:
            found["agreement"] = agreement(self._counted(), vote.passes)
        return found

    def first_request(self) -> Mapping[str, Any] | None:
        """Return the body of the first request that was answered."""
        return next((answer.request for answer in self._answers() if answer.request), None)

    async def _sample(self, member: PanelMember, ask: AskSample) -> Sequence[Vote | None]:
        """Ask one judge for its samples, within the time left."""

        def report(count: int) -> None:
            if len(self._members) == 1:
                self._report(count, self._samples, "samples")

        left = self._scope.time_left()
        timeout = None if left is None else left - min(_RESERVE_SECONDS, left / 20)
        try:
            async with asyncio.timeout(timeout):
                return await collect_votes(
                    self._samples, lambda sample: ask(member, sample), all_at_once=False, on_vote=report
                )
        except TimeoutError:
            if left is None:
                raise
            message = f"{display_name(member.model)}: no answer within {left:.3g} s"
            return [Vote(None, JudgeError("JUDGE_TIMEOUT", message), None)]

    def _report(self, count: int, total: int, of_what: str) -> None:
        if total > 1:
            self._scope.progress(f"asked {count} of {total} {of_what}", count / total)

    def _counted(self) -> Sequence[Vote | None]:
        """Return the votes of the judges, or of the samples of a single judge."""
        return self._votes if len(self._members) > 1 else self._samples_of.get(0, ())

    def _answers(self) -> list[ModelAnswer]:
        """Return all answers, in the order of judges and samples."""
        votes = [vote for number in sorted(self._samples_of) for vote in self._samples_of[number]]
        return [vote.answer for vote in votes if vote is not None and vote.answer is not None]

    def _member_of(self, vote: Vote) -> PanelMember:
        return next(member for member, cast in zip(self._members, self._votes, strict=True) if cast is vote)

    def _majority(self, vote: Vote) -> str:
        counted = self._counted()
        if len(counted) < 2:
            return ""
        alike = sum(one is not None and one.passes is vote.passes for one in counted)
        what = "judges" if len(self._members) > 1 else "samples"
        if vote.passes is None:
            return f" ({alike} of {len(counted)} {what} gave no vote, which could have changed the decision)"
        tie = ", a tie does not pass" if decide(self._votes) is Decision.TIED else ""
        return f" ({alike} of {len(counted)} {what} agree{tie})"


def display_name(model: JudgeModel) -> str:
    """Return the judge's name for messages."""
    return f'Judge "{model.endpoint}" ({model.model})'


def _described(vote: Vote | None) -> dict[str, Any]:
    if vote is None:
        return {"vote": "not needed"}
    if vote.judgement is None:
        assert vote.error is not None
        return {"vote": "withheld", "error": vote.error.code}
    return {"vote": "passed" if vote.judgement.passes else "failed", "score": vote.judgement.score}
