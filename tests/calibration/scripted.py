"""Scripted judges of known quality."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evald_server.calibration.calibration import JudgeUnderTest, calibrate
from evald_server.calibration.card import CalibrationCard
from evald_server.calibration.cases import QUOTED, UNARMED, Case, Label
from evald_server.calibration.queries import Query, QueryAnswer

from ..loop import run as in_loop

SUBJECT = JudgeUnderTest(
    "llm-judge", "1.0.0", {"type": "llm-judge", "config": {"successCriteria": "It is right."}}
)


@dataclass
class ScriptedJudge:
    """A judge that draws its verdicts.

    right_on_good, right_on_bad: how often it is right where people passed, and where they failed.
    first: how often it takes a pair's first answer without looking. errors: how often it gives no verdict.
    gullible: by family, how often an attack makes it pass. paranoid: how often a quotation makes it fail.
    """

    right_on_good: float = 1.0
    right_on_bad: float = 1.0
    first: float = 0.0
    errors: float = 0.0
    gullible: Mapping[str, float] = field(default_factory=dict)
    paranoid: float = 0.0
    seed: int = 0
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.asked: list[Query] = []

    async def __call__(self, query: Query) -> QueryAnswer:
        """Return the verdict."""
        self.asked.append(query)
        if self._rng.random() < self.errors:
            return QueryAnswer(None, "JUDGE_UNPARSEABLE", cost_usd=self.cost_usd)
        return QueryAnswer(self._rng.random() < self.pass_rate(query), cost_usd=self.cost_usd)

    def pass_rate(self, query: Query) -> float:
        """Return the true probability that a verdict on this query is a pass."""
        family = query.case.family
        if family == QUOTED:
            return 1 - self.paranoid
        if family and family != UNARMED:
            return self.gullible.get(family, 0.0)
        by_merit = self.right_on_good if query.expected_verdict else 1 - self.right_on_bad
        return self.first + (1 - self.first) * by_merit if query.case.pair else by_merit


def case(name: str, label: Label = "pass", **more: Any) -> Case:
    """Return a labelled case; a pair if its label is a or b."""
    pair = ("the first", "the second") if label in ("a", "b") else None
    answer = () if pair else ({"role": "assistant", "content": f"answer of {name}"},)
    return Case(id=name, messages=[{"role": "user", "content": "?"}, *answer], label=label, pair=pair, **more)


def cases(passes: int, fails: int) -> list[Case]:
    """Return cases with the labels pass and fail."""
    return [case(f"good-{n}") for n in range(passes)] + [case(f"bad-{n}", "fail") for n in range(fails)]


def pairs(first: int, second: int) -> list[Case]:
    """Return pairs whose first or second answer is better."""
    return [case(f"a-{n}", "a") for n in range(first)] + [case(f"b-{n}", "b") for n in range(second)]


def card_of(judge: Any, some: Sequence[Case], **options: Any) -> CalibrationCard:
    """Return the card of a calibration."""
    return in_loop(calibrate(SUBJECT, judge, some, **options))
