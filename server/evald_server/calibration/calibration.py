"""A calibration from its cases to its card."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

from . import figures
from .asking import ask_all
from .asks import Asked, Judge, plan_asks
from .card import Card, Data, JudgeCard
from .cases import Case, cases_digest, digest_of
from .gates import Figures, Limits, gates_of, verdict_of
from .intervals import CONFIDENCE


class Subject(NamedTuple):
    """What is calibrated. spec: the evaluator as it is used. type, version: as the catalogue has them."""

    type: str
    version: str
    spec: Mapping[str, Any]

    def card(self, models: list[str]) -> JudgeCard:
        """Its part of the card.

        A judge that names its card would otherwise have another digest than the judge that got the card.
        """
        config = {
            key: value for key, value in (self.spec.get("config") or {}).items() if key != "calibration"
        }
        spec = {key: value for key, value in self.spec.items() if key != "name"} | {
            "type": self.type,
            "config": config,
        }
        return JudgeCard(
            type=self.type,
            version=self.version,
            models=models,
            spec=spec,
            digest=digest_of([self.version, spec]),
        )


async def calibrate(
    subject: Subject,
    judge: Judge,
    cases: Sequence[Case],
    *,
    data: Sequence[Data] = (),
    limits: Limits = Limits(),  # noqa: B008 - immutable
    repeats: int = 1,
    concurrency: int = 8,
    on_answer: Callable[[Asked], None] = lambda _: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Card:
    """Ask the judge about every case and write the card. `cases` holds the attack suite, where it is wanted.

    limits: `max_cost` also is the ceiling.
    repeats: how often a labelled case is asked in each order, 1 or more.
    now: the time for the card.
    Raises CostUnknown, and whatever the judge raises.
    """
    asks = plan_asks(cases, repeats)
    asked, left_out = await ask_all(
        asks, judge, concurrency=concurrency, ceiling_usd=limits.max_cost, on_answer=on_answer
    )
    suite = [case for case in cases if case.family]
    measured = Figures(
        agreement=figures.agreement(asked),
        order_flips=figures.order_flips(asked),
        attacks=figures.attacks(asked, cases_digest(suite)),
        false_alarms=figures.false_alarms(asked),
        errors=figures.errors(asked, left_out),
        spending=figures.spending(asked),
    )
    gates = gates_of(limits, measured)
    verdict, reason = verdict_of(limits, gates, measured.errors)
    return Card(
        created=now().isoformat(timespec="seconds"),
        evald=version("evald"),
        verdict=verdict,
        reason=reason,
        confidence=CONFIDENCE,
        judge=subject.card(figures.models(asked)),
        data=list(data),
        agreement=measured.agreement,
        order_flips=measured.order_flips,
        self_consistency=figures.self_consistency(asked, repeats),
        attacks=measured.attacks,
        false_alarms=measured.false_alarms,
        errors=measured.errors,
        spending=measured.spending,
        latency=figures.latency(asked),
        gates=gates,
    ).sealed()
