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
    """What is calibrated: an evaluator type with its version and config."""

    type: str
    version: str
    config: Mapping[str, Any]


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
    # A judge that names its card would otherwise have another digest than the judge that got the card.
    config = {key: value for key, value in subject.config.items() if key != "calibration"}
    return Card(
        created=now().isoformat(timespec="seconds"),
        evald=version("evald"),
        verdict=verdict,
        reason=reason,
        confidence=CONFIDENCE,
        judge=JudgeCard(
            type=subject.type,
            version=subject.version,
            models=figures.models(asked),
            config=config,
            config_digest=digest_of(config),
        ),
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
