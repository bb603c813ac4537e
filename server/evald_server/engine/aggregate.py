"""Aggregates results into one verdict.

FAILED outranks ERROR, ERROR outranks PASSED, and SKIPPED does not count: when every assertion was skipped, the call
is SKIPPED, not PASSED. Metrics and shadow results never affect the verdict.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from evald.result import Verdict, reaches

from .planned_evaluator import PlannedEvaluator

DEFAULT_THRESHOLD: Final = 0.8

ALL_PASSED: Final = "All evaluators passed"

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


class Policy(IntEnum):
    """How results are aggregated. Has the numbers of the contract's AggregationPolicy."""

    ALL_MUST_PASS = 1
    WEIGHTED_MEAN = 2


# Verdict and score of a result. A plain tuple, because there is one for each result.
Settled: TypeAlias = tuple[Verdict, float | None]


class Aggregate(NamedTuple):
    """The verdict of a call.

    deciding: index of the result that gives the call its reason, or None.
    passed, failed: enforced assertions. errors, skipped: all evaluators.
    ignored_errors: indexes of errors that fail-open ignores.
    """

    verdict: Verdict
    score: float | None
    min_score: float | None
    mean_score: float | None
    deciding: int | None
    passed: int
    failed: int
    errors: int
    skipped: int
    ignored_errors: list[int]


def aggregate(
    evaluators: Sequence[PlannedEvaluator],
    results: Sequence[Settled],
    policy: Policy = Policy.ALL_MUST_PASS,
    threshold: float = DEFAULT_THRESHOLD,
    not_run: Collection[int] = (),
) -> Aggregate:
    """Aggregate results, given in declared order.

    not_run: indexes of results that are SKIPPED because `fail_fast` ended the call. They count 0 in the mean, so that
    ending early never raises a score.

    ALL_MUST_PASS passes when every enforced assertion passed; the score is the lowest one. WEIGHTED_MEAN passes
    when the weighted mean reaches the threshold; an assertion without a score counts 1 or 0 by its verdict; the
    mean is 0 when the weights add up to 0. If the mean misses the threshold, nothing failed and an assertion had an
    error, the verdict is ERROR.
    """
    passed = failed = errors = skipped = assertions = blocked = 0
    low: float | None = None
    total, weights = 0.0, sum(evaluators[index].weight for index in not_run if evaluators[index].counts)
    first_failed: int | None = None
    first_error: int | None = None
    required_failed: int | None = None
    ignored: list[int] = []
    for index, evaluator in enumerate(evaluators):
        verdict, score = results[index]
        if verdict is _ERROR:
            errors += 1
        elif verdict is _SKIPPED:
            skipped += 1
        if not evaluator.counts:
            continue
        assertions += 1
        if verdict is _PASSED:
            passed += 1
        elif verdict is _FAILED:
            failed += 1
            if first_failed is None:
                first_failed = index
            if evaluator.required and required_failed is None:
                required_failed = index
        elif verdict is _ERROR:
            if evaluator.fail_open and not evaluator.required:
                ignored.append(index)
            else:
                blocked += 1
                if first_error is None:
                    first_error = index
            continue
        else:
            continue
        weight = evaluator.weight
        weights += weight
        if score is None:
            total += weight * (verdict is _PASSED)
        else:
            total += weight * score
            if low is None or score < low:
                low = score
    mean = (total / weights if weights else 0.0) if passed or failed else None

    deciding: int | None = None
    if policy is Policy.WEIGHTED_MEAN:
        score = mean
        # If nothing failed, the assertions with errors might have raised the mean.
        decided = failed > 0 or not blocked
        missed = mean is not None and not reaches(mean, threshold)
        fails = required_failed is not None or (missed and decided)
        if fails:
            deciding = required_failed if required_failed is not None else first_failed
    else:
        score = low
        fails = failed > 0
        deciding = first_failed
    if required_failed is not None:
        score = 0.0
    if fails:
        outcome = _FAILED
    elif blocked:
        outcome, deciding = _ERROR, first_error
    elif assertions and not passed and not failed:
        outcome, deciding = _SKIPPED, None
    else:
        outcome, deciding = _PASSED, None
    return Aggregate(outcome, score, low, mean, deciding, passed, failed, errors, skipped, ignored)


def is_lost(
    evaluators: Sequence[PlannedEvaluator],
    results: Sequence[Settled | None],
    policy: Policy = Policy.ALL_MUST_PASS,
    threshold: float = DEFAULT_THRESHOLD,
) -> bool:
    """Return whether the verdict is already FAILED, regardless of the missing results (None).

    ALL_MUST_PASS: an enforced assertion failed. WEIGHTED_MEAN: a required one failed, or any one failed and the mean
    would miss the threshold even if all missing results scored 1. Without a failure an error could still make the
    verdict ERROR, and after an error a failure could make it FAILED.
    """
    total = weights = 0.0
    failed = False
    for evaluator, result in zip(evaluators, results, strict=True):
        if not evaluator.counts:
            continue
        if result is None:
            worth = 1.0
        else:
            verdict, score = result
            if verdict is _FAILED and (evaluator.required or policy is Policy.ALL_MUST_PASS):
                return True
            failed = failed or verdict is _FAILED
            if verdict is not _PASSED and verdict is not _FAILED:
                continue
            worth = float(verdict is _PASSED) if score is None else score
        weights += evaluator.weight
        total += evaluator.weight * worth
    return bool(failed and weights) and not reaches(total / weights, threshold)
