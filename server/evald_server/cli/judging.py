"""Conversations judged one after the other or many at a time, whoever looks at the outcome."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .conversations import Conversation
from .specs import SpecSet
from .turns import base_of, last_turn_of, turns_of

if TYPE_CHECKING:
    from evald import AsyncClient, Evaluation

# Sessions at a time: enough to hide the waiting of judges, few enough to leave a server room for others.
_SESSIONS = 8


class Judged(NamedTuple):
    """A conversation with what came of it. evaluations: of its turns; a text where one was refused."""

    conversation: Conversation
    evaluations: "list[Evaluation | str]"

    @property
    def verdict(self) -> str:
        """The worst of its turns: failed, then error, then passed, then skipped."""
        verdicts = {"ERROR" if isinstance(e, str) else e.verdict.name for e in self.evaluations}
        return next((v for v in ("FAILED", "ERROR", "PASSED", "SKIPPED") if v in verdicts), "ERROR")

    @property
    def reason(self) -> str:
        """Why it got its verdict."""
        for number, evaluation in enumerate(self.evaluations, start=1):
            turn = f"turn {number}: " if len(self.evaluations) > 1 else ""
            if isinstance(evaluation, str):
                if self.verdict == "ERROR":
                    return f"{turn}{evaluation}"
            elif evaluation.verdict.name == self.verdict:
                return f"{'' if evaluation.passed else turn}{evaluation.reason}"
        return ""

    def judged_turns(self) -> "list[Evaluation]":
        """The evaluations alone."""
        return [evaluation for evaluation in self.evaluations if not isinstance(evaluation, str)]


async def judge_turns(
    client: "AsyncClient", conversation: Conversation, specs: SpecSet
) -> "AsyncIterator[Evaluation | str]":
    """The evaluation of every turn, through a session; a text where the server refused the turn."""
    from evald import TurnRefused

    async with client.session(specs.specs, base=base_of(conversation), options=specs.options) as session:
        for turn in turns_of(conversation):
            try:
                yield await session.turn(turn)
            except TurnRefused as problem:
                yield str(problem)


async def judge_last_turns(
    client: "AsyncClient", conversations: Iterator[Conversation], specs: SpecSet
) -> AsyncIterator[Judged]:
    """Last turns as one batch, answers in the order of the input."""
    feed = _Feed(conversations)
    done: dict[str, Evaluation | str] = {}
    next_number = 0
    async for answer in client.batch(feed, specs.specs, options=specs.options):
        refused = answer.error.message if answer.error else "no answer"
        done[answer.id] = answer.evaluation if answer.evaluation is not None else refused
        while (key := str(next_number)) in done:
            yield Judged(feed.sent.pop(key), [done.pop(key)])
            next_number += 1
    if feed.problem is not None:
        raise feed.problem


class _Feed:
    """Numbered turns for a batch. A conversation that cannot be read ends it; `problem` says why."""

    def __init__(self, conversations: Iterator[Conversation]) -> None:
        self._conversations = conversations
        self.sent: dict[str, Conversation] = {}
        self.problem: Exception | None = None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        try:
            for number, conversation in enumerate(self._conversations):
                turn = last_turn_of(conversation)
                self.sent[str(number)] = conversation
                yield str(number), turn
        except Exception as problem:  # noqa: BLE001 - raised again by the reader of the answers
            self.problem = problem


async def judge_all_turns(
    client: "AsyncClient", conversations: Iterator[Conversation], specs: SpecSet
) -> AsyncIterator[Judged]:
    """Every turn, a session a conversation, several sessions at a time, in the order of the input."""

    async def judge(conversation: Conversation) -> Judged:
        return Judged(conversation, [found async for found in judge_turns(client, conversation, specs)])

    begun: deque[asyncio.Task[Judged]] = deque()
    try:
        for conversation in conversations:
            begun.append(asyncio.create_task(judge(conversation)))
            if len(begun) >= _SESSIONS:
                yield await begun.popleft()
        while begun:
            yield await begun.popleft()
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
