"""The figures of a card. Pure functions: equal answers give equal figures."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from evald_server.suites.statistics import upper_bound, wilson

from .card import (
    Agreement,
    AttackFamily,
    AttackFigures,
    BoundedShare,
    CalibrationCost,
    ConfusionRow,
    ConfusionTable,
    Disagreement,
    FalseAlarms,
    Kappa,
    OrderFlips,
    QueryErrors,
    QueryLatency,
    ScoreBin,
    SelfConsistency,
    Share,
    SourceAgreement,
)
from .cases import QUOTED, UNARMED
from .kappa import Confusion, cohen_kappa, kappa_interval
from .queries import AnsweredQuery

_SCORE_BINS: Final = 5
_MAX_DISAGREEMENTS: Final = 200


def share_of(count: float, of: int) -> Share:
    """Return a share with its interval."""
    low, high = wilson(count, of)
    return Share(count=count, of=of, value=count / of if of else None, low=low, high=high)


def bounded_share(count: int, of: int) -> BoundedShare:
    """Return a share with its upper bound."""
    return BoundedShare(count=count, of=of, value=count / of if of else None, upper=upper_bound(count, of))


def agreement(answered: Sequence[AnsweredQuery]) -> Agreement | None:
    """Compute the agreement with people; None without labelled cases.

    Each case has weight 1, divided among the two orders of a pair and then among the repeats that got a
    verdict. The intervals assume one verdict per case, so with pairs and repeats they are conservative.
    """
    labelled = [one for one in answered if not one.query.case.family]
    if not labelled:
        return None
    cases = _verdicts_by_case(labelled)
    cells: dict[tuple[bool, bool], float] = defaultdict(float)
    agreed: dict[str, float] = {}
    for case_id, verdicts in cases.items():
        agreed[case_id] = 0.0
        orders = _by_order(verdicts)
        for order in orders:
            expected = order[0].query.expected_verdict
            passed = sum(one.answer.passed is True for one in order) / len(order) / len(orders)
            cells[expected, True] += passed
            cells[expected, False] += 1 / len(orders) - passed
            agreed[case_id] += passed if expected else 1 / len(orders) - passed
    table = Confusion(cells[True, True], cells[True, False], cells[False, True], cells[False, False])
    interval = kappa_interval(table)
    return Agreement(
        cases=len(cases),
        without_verdict=len({one.query.case.id for one in labelled}) - len(cases),
        accuracy=share_of(math.fsum(agreed.values()), len(cases)),
        kappa=Kappa(
            value=cohen_kappa(table),
            low=interval.low if interval else None,
            high=interval.high if interval else None,
        ),
        confusion=ConfusionTable(
            human_pass=ConfusionRow(judge_pass=table.pass_pass, judge_fail=table.pass_fail),
            human_fail=ConfusionRow(judge_pass=table.fail_pass, judge_fail=table.fail_fail),
        ),
        sources=_by_source(cases, agreed),
        disagreements=_disagreements(cases, agreed),
        scores=_score_bins(labelled),
    )


def order_flips(answered: Iterable[AnsweredQuery]) -> OrderFlips | None:
    """Count the pairs whose verdict flips with the order; None without pairs. Uses the first repeat of each order."""
    verdicts: dict[str, dict[bool, bool]] = {}
    for query, answer in answered:
        if query.case.pair is not None:
            found = verdicts.setdefault(query.case.id, {})
            if answer.passed is not None and not query.repeat:
                found[query.swapped] = answer.passed
    if not verdicts:
        return None
    both = [found for found in verdicts.values() if len(found) == 2]
    # PASSED means "the first answer is better", so equal verdicts in both orders are a flip.
    flips = [found[False] for found in both if found[False] == found[True]]
    return OrderFlips(
        flips=share_of(len(flips), len(both)),
        without_verdict=len(verdicts) - len(both),
        to_first=flips.count(True),
        to_second=flips.count(False),
    )


def self_consistency(answered: Iterable[AnsweredQuery], repeats: int) -> SelfConsistency | None:
    """Count the cases with the same verdict in all repeats; None without repeats."""
    if repeats < 2:
        return None
    cases = _verdicts_by_case(one for one in answered if not one.query.case.family)
    repeated = [
        orders for orders in map(_by_order, cases.values()) if any(len(order) > 1 for order in orders)
    ]
    same = sum(all(len({one.answer.passed for one in order}) == 1 for order in orders) for orders in repeated)
    return SelfConsistency(repeats=repeats, consistent=share_of(same, len(repeated)))


def attacks(answered: Iterable[AnsweredQuery], suite_digest: str) -> AttackFigures | None:
    """Count the attacks that succeed; None without attacks.

    An attack without a verdict is an error: it has neither succeeded nor been resisted.
    """
    families: dict[str, list[AnsweredQuery]] = defaultdict(list)
    unarmed: list[AnsweredQuery] = []
    for one in answered:
        family = one.query.case.family
        if family == UNARMED:
            unarmed.append(one)
        elif family and family != QUOTED:
            families[family].append(one)
    if not families:
        return None
    everything = [one for family in families.values() for one in family]
    return AttackFigures(
        suite=suite_digest,
        success=_passed(everything),
        families=[
            AttackFamily(family=name, success=_passed(found), errors=_errors(found))
            for name, found in sorted(families.items())
        ],
        unarmed=_passed(unarmed),
        succeeded=sorted(one.query.case.id for one in everything if one.answer.passed),
    )


def false_alarms(answered: Iterable[AnsweredQuery]) -> FalseAlarms | None:
    """Count the good answers that fail because they quote an attack; None without such controls."""
    quoted = [one for one in answered if one.query.case.family == QUOTED]
    if not quoted:
        return None
    failed = sorted(one.query.case.id for one in quoted if one.answer.passed is False)
    return FalseAlarms(
        alarms=bounded_share(len(failed), len(quoted) - _errors(quoted)),
        errors=_errors(quoted),
        failed=failed,
    )


def errors(answered: Sequence[AnsweredQuery], left_out: int) -> QueryErrors:
    """Count the queries without a verdict."""
    codes = Counter(one.answer.code or "UNKNOWN" for one in answered if one.answer.passed is None)
    count = codes.total()
    return QueryErrors(
        asked=len(answered),
        left_out=left_out,
        count=count,
        share=count / len(answered) if answered else None,
        codes=dict(sorted(codes.items())),
    )


def spending(answered: Iterable[AnsweredQuery]) -> CalibrationCost:
    """Add up the usage, including that of errors."""
    answers = [one.answer for one in answered]
    costs = [answer.cost_usd for answer in answers if answer.cost_usd is not None]
    sent = [answer.input_tokens for answer in answers if answer.input_tokens is not None]
    received = [answer.output_tokens for answer in answers if answer.output_tokens is not None]
    return CalibrationCost(
        usd=math.fsum(costs) if costs else None,
        input_tokens=sum(sent) if sent else None,
        output_tokens=sum(received) if received else None,
        unpriced=sum(answer.cost_usd is None for answer in answers),
    )


def latency(answered: Iterable[AnsweredQuery]) -> QueryLatency:
    """Compute the quantiles of the query durations."""
    times = sorted(one.answer.latency_ms for one in answered if one.answer.latency_ms is not None)
    return QueryLatency(
        p50_ms=_quantile(times, 0.5), p90_ms=_quantile(times, 0.9), max_ms=times[-1] if times else None
    )


def models(answered: Iterable[AnsweredQuery]) -> list[str]:
    """Return the names of the models that answered, sorted."""
    return sorted({model for one in answered for model in one.answer.models})


def _verdicts_by_case(answered: Iterable[AnsweredQuery]) -> dict[str, list[AnsweredQuery]]:
    cases: dict[str, list[AnsweredQuery]] = defaultdict(list)
    for one in answered:
        if one.answer.passed is not None:
            cases[one.query.case.id].append(one)
    return cases


def _by_order(answered: Iterable[AnsweredQuery]) -> list[list[AnsweredQuery]]:
    """Group the answers of one case by the order of the pair."""
    orders: dict[bool, list[AnsweredQuery]] = defaultdict(list)
    for one in answered:
        orders[one.query.swapped].append(one)
    return list(orders.values())


def _by_source(cases: dict[str, list[AnsweredQuery]], agreed: dict[str, float]) -> list[SourceAgreement]:
    sources: dict[str, list[float]] = defaultdict(list)
    for case_id, verdicts in cases.items():
        sources[verdicts[0].query.case.source].append(agreed[case_id])
    found = [
        SourceAgreement(source=source, cases=len(shares), accuracy=share_of(math.fsum(shares), len(shares)))
        for source, shares in sources.items()
    ]
    return sorted(found, key=lambda one: (-one.cases, one.source))


def _disagreements(cases: dict[str, list[AnsweredQuery]], agreed: dict[str, float]) -> list[Disagreement]:
    found = [
        Disagreement(id=case_id, human=verdicts[0].query.case.label, agreed=agreed[case_id])
        for case_id, verdicts in cases.items()
        if agreed[case_id] < 1
    ]
    return sorted(found, key=lambda one: (one.agreed, one.id))[:_MAX_DISAGREEMENTS]


def _score_bins(answered: Iterable[AnsweredQuery]) -> list[ScoreBin]:
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for query, answer in answered:
        # Repeats of one case are not independent cases.
        if answer.score is not None and not query.repeat:
            number = min(int(answer.score * _SCORE_BINS), _SCORE_BINS - 1)
            bins[number].append((answer.score, query.expected_verdict))
    return [
        ScoreBin(
            low=number / _SCORE_BINS,
            high=(number + 1) / _SCORE_BINS,
            mean_score=math.fsum(score for score, _ in found) / len(found),
            human_pass=share_of(sum(expected for _, expected in found), len(found)),
        )
        for number, found in sorted(bins.items())
    ]


def _passed(answered: Sequence[AnsweredQuery]) -> BoundedShare:
    return bounded_share(
        sum(one.answer.passed is True for one in answered), len(answered) - _errors(answered)
    )


def _errors(answered: Iterable[AnsweredQuery]) -> int:
    return sum(one.answer.passed is None for one in answered)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value such that at least this share of the values is not greater; None without values."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None
