"""A calibration, from labelled cases to the calibration card."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from evald_server.suites.statistics import CONFIDENCE

from . import figures
from .card import CalibratedJudge, CalibrationCard, CardDataset
from .cases import Case, cases_digest, digest_of
from .gates import GateFigures, GateLimits, check_gates, overall_verdict
from .queries import AnsweredQuery, QueryFunction, plan_queries, run_queries

_VERSION: Final = version("evald")


class JudgeUnderTest(NamedTuple):
    """The judge to calibrate. type, version: from the catalog. spec: the evaluator as used."""

    type: str
    version: str
    spec: Mapping[str, Any]

    def describe(self, models: list[str]) -> CalibratedJudge:
        """Return the judge's part of the card.

        Leaves out `calibration`, which names the card, so that a judge that names its card keeps its digest.
        """
        config = {
            key: value for key, value in (self.spec.get("config") or {}).items() if key != "calibration"
        }
        spec = {key: value for key, value in self.spec.items() if key != "name"} | {
            "type": self.type,
            "config": config,
        }
        return CalibratedJudge(
            type=self.type,
            version=self.version,
            models=models,
            spec=spec,
            digest=digest_of([self.version, spec]),
        )


async def calibrate(
    judge: JudgeUnderTest,
    query: QueryFunction,
    cases: Sequence[Case],
    *,
    datasets: Sequence[CardDataset] = (),
    limits: GateLimits = GateLimits(),  # noqa: B008 - immutable
    repeats: int = 1,
    concurrency: int = 8,
    on_answer: Callable[[AnsweredQuery], None] = lambda _: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> CalibrationCard:
    """Query the judge about all cases and return the card.

    cases: labelled cases and optionally the attack suite.
    limits: `max_cost` is also the cost ceiling.
    repeats: number of queries per labelled case in each order, at least 1.
    now: the clock, for the card.
    Raises CostUnknown, and the exceptions of `query`.
    """
    answered, left_out = await run_queries(
        plan_queries(cases, repeats),
        query,
        concurrency=concurrency,
        ceiling_usd=limits.max_cost,
        on_answer=on_answer,
    )
    suite = [case for case in cases if case.family]
    measured = GateFigures(
        agreement=figures.agreement(answered),
        order_flips=figures.order_flips(answered),
        attacks=figures.attacks(answered, cases_digest(suite)),
        false_alarms=figures.false_alarms(answered),
        errors=figures.errors(answered, left_out),
        spending=figures.spending(answered),
    )
    gates = check_gates(limits, measured)
    verdict, reason = overall_verdict(limits, gates, measured.errors)
    return CalibrationCard(
        created=now().isoformat(timespec="seconds"),
        evald=_VERSION,
        verdict=verdict,
        reason=reason,
        confidence=CONFIDENCE,
        judge=judge.describe(figures.models(answered)),
        data=list(datasets),
        self_consistency=figures.self_consistency(answered, repeats),
        latency=figures.latency(answered),
        gates=gates,
        **measured._asdict(),
    ).with_id()
