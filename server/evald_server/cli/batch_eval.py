"""Evaluation of recorded conversations: last turns in one batch, or every turn through sessions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from evald.records import read_verdict
from evald.v1 import result_pb2

from ..suites.recorded_turns import RECORDED_ERROR, recorded_error
from ..suites.verdicts import trial_verdict
from .conversations import RecordedConversation, every_turn, last_turn, session_base
from .specs import SpecSet

if TYPE_CHECKING:
    from evald import AsyncClient, Evaluation

# Concurrent sessions: enough to hide the latency of judges, few enough not to crowd out other clients.
_SESSIONS = 8


class EvaluatedConversation(NamedTuple):
    """A conversation with the evaluations of its turns. A string is the error message of a refused turn."""

    conversation: RecordedConversation
    turns: "list[Evaluation | str]"

    @property
    def verdict(self) -> str:
        """The worst verdict of its turns: failed, then error, then passed, then skipped."""
        verdicts = (
            result_pb2.VERDICT_ERROR if isinstance(turn, str) else turn.verdict for turn in self.turns
        )
        return read_verdict(trial_verdict(verdicts)).name

    @property
    def reason(self) -> str:
        """The reason of the first turn that has this verdict."""
        for number, turn in enumerate(self.turns, start=1):
            prefix = f"turn {number}: " if len(self.turns) > 1 else ""
            if isinstance(turn, str):
                if self.verdict == "ERROR":
                    return f"{prefix}{turn}"
            elif turn.verdict.name == self.verdict:
                return f"{'' if turn.passed else prefix}{turn.reason}"
        return ""

    @property
    def evaluations(self) -> "list[Evaluation]":
        """The evaluations, without refused turns."""
        return [turn for turn in self.turns if not isinstance(turn, str)]


def concluded(conversation: RecordedConversation, turns: "list[Evaluation | str]") -> EvaluatedConversation:
    """Return a conversation with its turns. A recorded error replaces every evaluation."""
    if error := recorded_error(conversation.data):
        turns = [f"{RECORDED_ERROR}: {error}"] * len(turns)
    return EvaluatedConversation(conversation, turns)


async def evaluate_session(
    client: "AsyncClient", conversation: RecordedConversation, specs: SpecSet
) -> "AsyncIterator[Evaluation | str]":
    """Evaluate every turn through one session. Yields an evaluation, or the error message of a refused turn."""
    from evald import TurnRefused

    base = session_base(conversation)
    async with client.session(specs.specs, base=base, options=specs.options) as session:
        for turn in every_turn(conversation):
            try:
                yield await session.turn(turn)
            except TurnRefused as problem:
                yield str(problem)


async def evaluate_last_turns(
    client: "AsyncClient", conversations: Iterator[RecordedConversation], specs: SpecSet
) -> AsyncIterator[EvaluatedConversation]:
    """Evaluate the last turns in one batch. Yields in the order of the input."""
    items = _BatchItems(conversations)
    done: dict[str, Evaluation | str] = {}
    next_number = 0
    async for answer in client.batch(items, specs.specs, options=specs.options):
        error = answer.error.message if answer.error else "no answer"
        done[answer.id] = answer.evaluation if answer.evaluation is not None else error
        while (key := str(next_number)) in done:
            yield concluded(items.sent.pop(key), [done.pop(key)])
            next_number += 1
    if items.problem is not None:
        raise items.problem


class _BatchItems:
    """An iterable of numbered turns for a batch. problem: the error that ended the input early."""

    def __init__(self, conversations: Iterator[RecordedConversation]) -> None:
        self._conversations = conversations
        self.sent: dict[str, RecordedConversation] = {}
        self.problem: Exception | None = None

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        try:
            for number, conversation in enumerate(self._conversations):
                turn = last_turn(conversation)
                self.sent[str(number)] = conversation
                yield str(number), turn
        except Exception as problem:  # noqa: BLE001 - raised once the answers so far are consumed
            self.problem = problem


async def evaluate_every_turn(
    client: "AsyncClient", conversations: Iterator[RecordedConversation], specs: SpecSet
) -> AsyncIterator[EvaluatedConversation]:
    """Evaluate every turn through concurrent sessions. Yields in the order of the input."""

    async def evaluate(conversation: RecordedConversation) -> EvaluatedConversation:
        turns = [turn async for turn in evaluate_session(client, conversation, specs)]
        return concluded(conversation, turns)

    started: deque[asyncio.Task[EvaluatedConversation]] = deque()
    try:
        for conversation in conversations:
            started.append(asyncio.create_task(evaluate(conversation)))
            if len(started) >= _SESSIONS:
                yield await started.popleft()
        while started:
            yield await started.popleft()
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
