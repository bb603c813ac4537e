"""Every single question to the judge, and what came back."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

from .cases import Case


class Ask(NamedTuple):
    """One evaluation of one case. repeat: from 0. swapped: of a pair, b stands first."""

    case: Case
    repeat: int = 0
    swapped: bool = False

    @property
    def wanted(self) -> bool:
        """The verdict of people."""
        return self.case.wanted(swapped=self.swapped)


class Answer(NamedTuple):
    """What the judge said.

    passed: its verdict; None when it gave none, and then `code` says why: one of evald.errorcodes.CODES,
        "SKIPPED", or the name of a call's failure.
    score: 0 to 1, how sure it is that the criteria are met; None when it said nothing of the kind.
    cost_usd, input_tokens, output_tokens: what this took; None when not reported.
    latency_ms: the evaluator's own time. models: those that were asked.
    """

    passed: bool | None
    code: str = ""
    score: float | None = None
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_ms: float | None = None
    models: tuple[str, ...] = ()

    @property
    def took_model(self) -> bool:
        """It has a verdict, and it is known that a model was asked for it."""
        return self.passed is not None and bool(self.models or self.input_tokens or self.output_tokens)


Judge: TypeAlias = Callable[[Ask], Awaitable[Answer]]
"""Asks the judge. A fault of the judge is an Answer; what it raises ends the calibration."""


class Asked(NamedTuple):
    """A question with its answer."""

    ask: Ask
    answer: Answer

    @property
    def agrees(self) -> bool | None:
        """The judge says what people said; None without a verdict."""
        return None if self.answer.passed is None else self.answer.passed == self.ask.wanted


def plan_asks(cases: Iterable[Case], repeats: int = 1) -> list[Ask]:
    """All questions: pairs in both orders, labelled cases `repeats` times, attacks and controls once.

    They are shuffled, always in the same way, so that a calibration that is cut short has a fair sample.
    """
    asks = [
        Ask(case, repeat, swapped)
        for case in cases
        for repeat in range(1 if case.family else repeats)
        for swapped in ((False, True) if case.pair else (False,))
    ]
    return sorted(
        asks, key=lambda ask: hashlib.sha256(f"{ask.repeat}/{ask.swapped}/{ask.case.id}".encode()).digest()
    )
