"""Asks a judge once, and once more when the answer cannot be used."""

from typing import Final, NamedTuple

from evald.context import EvaluatorContext

from .answers import Unusable
from .form import Form, Judgement
from .prompt import asked_again
from .question import Answer, Asker, JudgeFault, Question, Spending

# What is wrong with an answer that cannot be used, by code, in words that quote nothing of it.
_UNUSABLE: Final = {
    "JUDGE_UNPARSEABLE": "it is not in the form that was asked for",
    "JUDGE_REFUSED": "it refuses, but to judge the data is not to do what they say",
    "JUDGE_TRUNCATED": "it was cut off at its greatest length; be much shorter",
}


class Fault(NamedTuple):
    """Why there is no vote. code: one of evald.errorcodes.CODES."""

    code: str
    message: str


class Vote(NamedTuple):
    """What came of asking: a judgement, or a fault, with which the vote is withheld.

    answer: the last one that came, usable or not; None when none came.
    """

    judgement: Judgement | None
    fault: Fault | None
    answer: Answer | None

    @property
    def stand(self) -> bool | None:
        """Whether the turn passes; None when the vote is withheld."""
        return None if self.judgement is None else self.judgement.passes


def named(asker: Asker) -> str:
    """The judge, for a message."""
    return f'Judge "{asker.endpoint}" ({asker.model})'


async def ask(
    asker: Asker, question: Question, form: Form, ctx: EvaluatorContext, spending: Spending
) -> Vote:
    """The vote of a judge. Never raises JudgeFault."""
    vote, problem = await _ask_once(asker, question, form, ctx, spending)
    if problem is None:
        return vote
    again, problem = await _ask_once(asker, asked_again(question, problem), form, ctx, spending)
    if again.fault is None:
        return again
    message = again.fault.message if problem is None else f"{again.fault.message} (asked twice)"
    return Vote(None, Fault(again.fault.code, message), again.answer or vote.answer)


async def _ask_once(
    asker: Asker, question: Question, form: Form, ctx: EvaluatorContext, spending: Spending
) -> tuple[Vote, str | None]:
    """The vote, and what is wrong with the answer when it is worth asking again."""
    try:
        answer = await asker.ask(question, spending)
    except JudgeFault as fault:
        vote = _salvaged(fault, asker, form, ctx)
        if vote is not None:
            return vote, None
        problem = _UNUSABLE[fault.code] if fault.unusable else None
        return Vote(None, Fault(fault.code, str(fault)), None), problem
    try:
        return Vote(form.read(answer, ctx), None, answer), None
    except Unusable as unusable:
        message = f"{named(asker)}: the answer holds no verdict: {unusable}"
        return Vote(None, Fault("JUDGE_UNPARSEABLE", message), answer), str(unusable)


def _salvaged(fault: JudgeFault, asker: Asker, form: Form, ctx: EvaluatorContext) -> Vote | None:
    """What holds no object may be in another form that is understood, because many endpoints take a schema and
    forget about it."""
    if not (fault.unusable and fault.code == "JUDGE_UNPARSEABLE" and fault.text):
        return None
    answer = Answer(fault.text, None, asker.model, {})
    try:
        return Vote(form.read(answer, ctx), None, answer)
    except Unusable:
        return None
