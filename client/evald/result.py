"""The result that an evaluator returns for a turn, and the functions that create it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import ulp
from typing import Any, Final, NamedTuple

from .errorcodes import CODES


class Kind(IntEnum):
    """The kind of an evaluator: an assertion decides, a metric measures. Values as in the contract's EvaluatorKind."""

    ASSERTION = 1
    METRIC = 2


class Verdict(IntEnum):
    """The outcome of an evaluator or of a whole turn. Values as in the contract's Verdict.

    Treat every value except PASSED as not passed.
    """

    PASSED = 1
    FAILED = 2
    ERROR = 3
    SKIPPED = 4


ASSERTION = Kind.ASSERTION
METRIC = Kind.METRIC

# Larger than the rounding error of a sum of a hundred thousand weights.
_ROUNDING: Final = 1e-10


def reaches(score: float, threshold: float) -> bool:
    """Return whether the score is at least the threshold, up to binary rounding: 0.7 + 0.1 reaches 0.8.

    For thresholds from 1 on, the tolerance is only 4 ulp, so that a miss of tiny weight still counts. A score of 0
    reaches no threshold above 0.
    """
    if 0 < threshold <= _ROUNDING:
        return score >= threshold
    return score >= threshold - (_ROUNDING if threshold < 1 else 4 * ulp(threshold))


class Check(NamedTuple):
    """One finding behind a verdict. met: True for a hit, False for a miss."""

    text: str
    met: bool
    evidence: str = ""


class ErrorInfo(NamedTuple):
    """The error of an evaluator that gave no verdict. code: one of `errorcodes.CODES`."""

    code: str
    message: str
    details: Mapping[str, str] = {}


class TokenUsage(NamedTuple):
    """Tokens of one or several model calls. None means not reported, which is not 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None

    @property
    def total(self) -> int | None:
        """The total as reported, else input plus output, else None."""
        if self.total_tokens is not None:
            return self.total_tokens
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)


class Metric(NamedTuple):
    """The unit, direction and range of a metric's value.

    unit: base unit in the plural, for example "seconds"; "" for a plain number.
    higher_is_better: None if neither direction is better.
    minimum, maximum: None for no limit.
    bucket_bounds: upper bounds of its histogram; empty means the server's bounds for the unit.
    """

    unit: str = ""
    higher_is_better: bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    bucket_bounds: tuple[float, ...] = ()


class Provenance(NamedTuple):
    """The origin of a result, beside the evaluator's type and version. Only the server sets it.

    config_sha256: hex SHA-256 of the config with all defaults (of remote evaluators: as sent); "" means unknown.
    judge_models: the models that are queried, in order.
    prompt_sha256: hex SHA-256 of the judge's prompt without the judged texts.
    calibration_card: id of the judge's calibration card; "" means none.
    """

    config_sha256: str = ""
    judge_models: tuple[str, ...] = ()
    prompt_sha256: str = ""
    calibration_card: str = ""

    @classmethod
    def of_judges(cls, judges: "Iterable[Provenance]") -> "Provenance":
        """Return the models and cards of several judges as one. The card is "" unless each judge has one."""
        found = list(judges)
        cards = dict.fromkeys(judge.calibration_card for judge in found)
        return cls(
            judge_models=tuple(dict.fromkeys(model for judge in found for model in judge.judge_models)),
            calibration_card="" if "" in cards else ", ".join(cards),
        )


@dataclass(repr=False, slots=True)
class Result:
    """The result that an evaluator returns.

    Created by `passed`, `failed`, `unproven`, `skipped`, `measured`, `unavailable` and `errored`.

    verdict: the outcome. A metric that measured something is PASSED.
    reason: for people; contains the numbers. Cut at 8 KiB.
    score: assertions only, 0 to 1, higher is better; None means no score.
    value: the measured value in the evaluator's own unit; None is not 0. A metric that cannot measure
        returns `unavailable`, with value 0 and `available` false in its metadata.
    metadata: JSON-like evidence for debugging.
    checks: individual findings behind the verdict.
    pending: failed, but a later turn can still make it pass.
    unproven: failed because the data are missing, or because the judges' votes are tied. Neither negation
        nor a threshold may turn it into passed.
    token_usage, cost_usd: consumed by the evaluator itself.
    raw_request: the request to a judge or a script, without secrets.
    cached: the result is from a cache, without cost. cached_answers: number of judges' answers from a cache.
    instance_id: the remote instance that returned it.
    alternative: within a formula, the result for the text with its reasoning, if that finds more. For engines.
    warning: why the verdict says little, such as nothing to check; shown among the warnings of the call.
    """

    verdict: Verdict
    reason: str
    score: float | None = None
    value: float | None = None
    metadata: Mapping[str, Any] | None = None
    checks: Sequence[Check] = ()
    pending: bool = False
    error: ErrorInfo | None = None
    token_usage: TokenUsage | None = None
    cost_usd: float | None = None
    raw_request: Mapping[str, Any] | None = None
    unproven: bool = False
    cached: bool = False
    instance_id: str = ""
    cached_answers: int = 0
    alternative: "Result | None" = None
    warning: str = ""

    def __repr__(self) -> str:
        shown = [f"{self.verdict.name}, {self.reason!r}"]
        for name in ("score", "value", "metadata", "checks", "pending", "error"):
            if getattr(self, name):
                shown.append(f"{name}={getattr(self, name)!r}")
        return f"Result({', '.join(shown)})"

    @property
    def passed(self) -> bool:
        """True only for PASSED."""
        return self.verdict is Verdict.PASSED


# Module constants, because a lookup of an enum member takes as long as a whole check.
_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


def passed(
    reason: str,
    score: float | None = None,
    value: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
    *,
    warning: str = "",
) -> Result:
    """Return a PASSED result of an assertion. Arguments as in `Result`."""
    return Result(_PASSED, reason, score, value, metadata, checks, warning=warning)


def failed(
    reason: str,
    score: float | None = None,
    value: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    checks: Sequence[Check] = (),
    pending: bool = False,
) -> Result:
    """Return a FAILED result of an assertion. Arguments as in `Result`."""
    return Result(_FAILED, reason, score, value, metadata, checks, pending)


def unproven(reason: str) -> Result:
    """Return a failed result with score 0 because the turn lacks the data that the assertion needs.

    Unlike `failed`, it stays failed under `negate` and under any threshold: missing data must not make a
    negated assertion pass.
    """
    return Result(_FAILED, reason, 0.0, unproven=True)


def skipped(reason: str) -> Result:
    """Return a SKIPPED result: the evaluator does not apply to this turn. It does not affect the verdict."""
    return Result(_SKIPPED, reason)


def measured(value: float, reason: str, metadata: Mapping[str, Any] | None = None) -> Result:
    """Return the result of a metric. value: in the metric's own unit."""
    return Result(_PASSED, reason, None, value, metadata)


def unavailable(reason: str) -> Result:
    """Return the result of a metric whose data are missing: value 0, and `available` false in the metadata.

    `Evaluation.metrics`, means and histograms ignore such a 0.
    """
    return Result(_PASSED, reason, None, 0.0, {"available": False})


def measurement(value: float | None, metadata: Mapping[str, Any] | None) -> float | None:
    """Return the value of a metric's result; None for the 0 of `unavailable`."""
    if metadata and metadata.get("available") is False:
        return None
    return value


def errored(code: str, message: str, **details: str) -> Result:
    """Return an ERROR result.

    code: one of `errorcodes.CODES`. details: for programs. Raises KeyError for another code.
    """
    if code not in CODES:
        raise KeyError(f"code: got {code!r}, wanted one of {', '.join(CODES)}")
    return Result(_ERROR, message, error=ErrorInfo(code, message, details))
