"""One verdict out of many results.

Failed outranks error, error outranks passed, and skipped counts for nothing:
when every assertion was skipped the call is skipped, not passed. Metrics and
shadow results change nothing.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from evald.result import Verdict

DEFAULT_THRESHOLD: Final = 0.8

# Rounding of a weighted mean must not fail a call: (0.8 * 3) / 3 can be 0.7999999999999999.
ROUNDING: Final = 1e-9
ALL_PASSED: Final = "All evaluators passed"

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


class Policy(IntEnum):
    """How results become one verdict. Equal to the wire's AggregationPolicy."""

    ALL_MUST_PASS = 1
    WEIGHTED_MEAN = 2


class Weighing(Protocol):
    """What of a use of an evaluator matters here."""

    @property
    def counts(self) -> bool:
        """An enforced assertion."""

    @property
    def fail_open(self) -> bool:
        """Its error is ignored."""

    @property
    def required(self) -> bool:
        """Its failure fails the call whatever the policy, its error is never ignored."""

    @property
    def weight(self) -> float:
        """Share in the mean, 0 or more."""


# What of a result matters here: verdict and score. A plain tuple, because there is one for each result.
Settled: TypeAlias = tuple[Verdict, float | None]


class Aggregate(NamedTuple):
    """The verdict of a call.

    deciding: index of the result whose reason is the call's, or None.
    passed, failed: enforced assertions. errors, skipped: all evaluators.
    ignored_errors: indexes of errors that fail-open let pass.
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
    uses: Sequence[Weighing],
    results: Sequence[Settled],
    policy: Policy = Policy.ALL_MUST_PASS,
    threshold: float = DEFAULT_THRESHOLD,
    not_run: Collection[int] = (),
) -> Aggregate:
    """The verdict of a call out of its results, both in declared order.

    not_run: indexes of skipped results that `fail_fast` did not let run. They stay in the mean and count 0
    there, because nothing may look better for not having been run.

    ALL_MUST_PASS: passes when every enforced assertion passed; the score is
    the lowest one given. WEIGHTED_MEAN: passes when the weighted mean reaches
    the threshold; an assertion without a score counts 1 or 0 by its verdict;
    weights that add up to 0 make it 0.
    """
    passed = failed = errors = skipped = assertions = blocked = 0
    low: float | None = None
    total, weights = 0.0, sum(uses[index].weight for index in not_run if uses[index].counts)
    first_failed: int | None = None
    first_error: int | None = None
    required_failed: int | None = None
    ignored: list[int] = []
    for index, use in enumerate(uses):
        verdict, score = results[index]
        if verdict is _ERROR:
            errors += 1
        elif verdict is _SKIPPED:
            skipped += 1
        if not use.counts:
            continue
        assertions += 1
        if verdict is _PASSED:
            passed += 1
        elif verdict is _FAILED:
            failed += 1
            if first_failed is None:
                first_failed = index
            if use.required and required_failed is None:
                required_failed = index
        elif verdict is _ERROR:
            if use.fail_open and not use.required:
                ignored.append(index)
            else:
                blocked += 1
                if first_error is None:
                    first_error = index
            continue
        else:
            continue
        weight = use.weight
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
        fails = required_failed is not None or (mean is not None and mean < threshold - ROUNDING)
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
    uses: Sequence[Weighing],
    results: Sequence[Settled | None],
    policy: Policy = Policy.ALL_MUST_PASS,
    threshold: float = DEFAULT_THRESHOLD,
) -> bool:
    """Whether the verdict is FAILED already, whatever the results that are still None will be.

    ALL_MUST_PASS: an enforced assertion failed. WEIGHTED_MEAN: a required one failed, or the mean would be
    below the threshold even if all that is left scored 1. An error decides nothing: something may yet fail.
    """
    total = weights = 0.0
    for use, result in zip(uses, results, strict=True):
        if not use.counts:
            continue
        if result is None:
            worth = 1.0
        else:
            verdict, score = result
            if verdict is _FAILED and (use.required or policy is Policy.ALL_MUST_PASS):
                return True
            if verdict is not _PASSED and verdict is not _FAILED:
                continue
            worth = float(verdict is _PASSED) if score is None else score
        weights += use.weight
        total += use.weight * worth
    if policy is Policy.ALL_MUST_PASS or not weights:
        return False
    return total / weights < threshold - ROUNDING
