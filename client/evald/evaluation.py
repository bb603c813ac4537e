"""The results of an evaluation: one result per evaluator, and the verdict on the turn.

They are frozen records, created from a server's messages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .errors import EvaluatorError
from .records import (
    NO_TOKENS,
    UNKNOWN_PROVENANCE,
    present,
    read_cost_usd,
    read_kind,
    read_provenance,
    read_usage,
    read_verdict,
    tuple_to_dict,
)
from .result import Check, Kind, Provenance, TokenUsage, Verdict, measurement
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import result_pb2


@dataclass(frozen=True, slots=True)
class EvaluatorResult:
    """The result of one evaluator for one turn. Truthy only if it passed.

    index: position in the call, from 0; automatic evaluators follow the requested ones.
    name: name of the spec; type: type of the evaluator; label: its display name.
    verdict: PASSED, FAILED, ERROR (no verdict: see `error`) or SKIPPED (see `reason`).
    score: assertions only, 0 to 1, higher is better; None means no score.
    value: the measured value in the evaluator's own unit; None is not 0. A metric that could not
        measure has 0 here, its reason, and `available` false in its metadata; see `measurement`.
    shadow: the result has no effect on the verdict of the turn.
    pending: failed, but a later turn can still make it pass.
    checks: the individual findings behind the verdict.
    duration_ms: run time without queueing.
    token_usage, cost_usd: consumed by the evaluator itself, for example by a judge.
    instance_id: the remote instance that ran it. cached: the result is from the server's cache.
    raw_request: the request to a judge or a script, if recorded.
    provenance: digests of the config and the prompt, and the models. Verdicts of two results can be compared
        only if type, version and provenance are equal.
    """

    index: int
    name: str
    type: str
    kind: Kind
    verdict: Verdict
    reason: str = ""
    score: float | None = None
    value: float | None = None
    label: str = ""
    version: str = ""
    shadow: bool = False
    pending: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    error: EvaluatorError | None = None
    start_time: datetime | None = None
    duration_ms: float | None = None
    token_usage: TokenUsage = NO_TOKENS
    cost_usd: float | None = None
    instance_id: str = ""
    cached: bool = False
    raw_request: Mapping[str, Any] = field(default_factory=dict)
    provenance: Provenance = UNKNOWN_PROVENANCE

    @property
    def passed(self) -> bool:
        """True only for PASSED."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Return `passed`, so that `assert` fails for any other verdict."""
        return self.passed

    @property
    def measurement(self) -> float | None:
        """The measured value of a metric; None if it could not measure, and for assertions."""
        if self.kind is not Kind.METRIC or self.verdict is not Verdict.PASSED:
            return None
        return measurement(self.value, self.metadata)

    @property
    def success(self) -> bool:
        """True for PASSED and SKIPPED, and always for metrics, which never fail."""
        return self.kind is Kind.METRIC or self.verdict in (Verdict.PASSED, Verdict.SKIPPED)

    @classmethod
    def from_pb(cls, pb: "result_pb2.EvaluationResult") -> "EvaluatorResult":
        """Create the record from the server's message."""
        has = pb.HasField
        return cls(
            pb.index,
            pb.name,
            pb.type,
            read_kind(pb.kind),
            read_verdict(pb.verdict),
            pb.reason,
            pb.score if has("score") else None,
            pb.value if has("value") else None,
            pb.label,
            pb.version,
            pb.enforcement == 2,  # ENFORCEMENT_SHADOW
            pb.pending,
            struct_to_dict(pb.metadata) if has("metadata") else {},
            tuple([Check(check.text, check.met, check.evidence) for check in pb.checks]) if pb.checks else (),
            EvaluatorError.from_pb(pb.error) if has("error") else None,
            _time(pb.start_time) if has("start_time") else None,
            duration_ms(pb.duration) if has("duration") else None,
            read_usage(pb.token_usage) if has("token_usage") else NO_TOKENS,
            read_cost_usd(pb),
            pb.instance_id,
            pb.cached,
            struct_to_dict(pb.raw_request) if has("raw_request") else {},
            read_provenance(pb.provenance) if has("provenance") else UNKNOWN_PROVENANCE,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data in camelCase, without unknown values."""
        return present(
            {
                "index": self.index,
                "name": self.name,
                "type": self.type,
                "label": self.label,
                "version": self.version,
                "kind": self.kind.name.lower(),
                "verdict": self.verdict.name,
                "success": self.success,
                "reason": self.reason,
                "score": self.score,
                "value": self.value,
                "shadow": self.shadow or None,
                "pending": self.pending or None,
                "metadata": dict(self.metadata),
                "checks": [tuple_to_dict(check) for check in self.checks],
                "error": self.error.to_dict() if self.error else None,
                "startTime": self.start_time.isoformat() if self.start_time else None,
                "durationMs": self.duration_ms,
                "tokenUsage": tuple_to_dict(self.token_usage),
                "costUsd": self.cost_usd,
                "instanceId": self.instance_id,
                "cached": self.cached or None,
                "rawRequest": dict(self.raw_request),
                "provenance": tuple_to_dict(self.provenance),
            }
        )


def _time(pb: Any) -> datetime:
    return datetime.fromtimestamp(pb.seconds + pb.nanos / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all evaluators for one turn, and the resulting verdict. Truthy only if the turn passed.

    evaluation_id: the call's request_id, or an id of the server; "" in sessions and batches.
    verdict: FAILED if an assertion that counts failed; else ERROR (inconclusive) if one gave no verdict;
        else SKIPPED if all were skipped; else PASSED.
    reason: the reason of the first failure or error, else "All evaluators passed".
    score: the lowest score or the weighted mean, depending on the policy; None without scores.
    min_score, mean_score: the lowest score and the weighted mean, under every policy.
    results: all results in the order of the call.
    metrics: measured values by metric name, without metrics that could not measure.
    passed_count, failed_count: assertions that count. error_count, skipped_count: all evaluators.
    duration_ms: wall time in the server.
    token_usage, cost_usd: consumed by the evaluators themselves, for example by judges.
    warnings: problems that did not change the verdict.
    """

    verdict: Verdict
    reason: str = ""
    score: float | None = None
    results: tuple[EvaluatorResult, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    skipped_count: int = 0
    min_score: float | None = None
    mean_score: float | None = None
    duration_ms: float | None = None
    token_usage: TokenUsage = NO_TOKENS
    cost_usd: float | None = None
    warnings: tuple[str, ...] = ()
    evaluation_id: str = ""

    @property
    def passed(self) -> bool:
        """True only for PASSED."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Return `passed`, so that `assert` fails for any other verdict."""
        return self.passed

    @property
    def failed(self) -> bool:
        """True only for FAILED: ERROR is inconclusive, and SKIPPED gives no information."""
        return self.verdict is Verdict.FAILED

    @property
    def failures(self) -> tuple[EvaluatorResult, ...]:
        """The results of failed assertions, without shadow ones."""
        return tuple(
            result for result in self.results if result.verdict is Verdict.FAILED and not result.shadow
        )

    @property
    def errors(self) -> tuple[EvaluatorResult, ...]:
        """The results of evaluators that gave no verdict, including shadow ones."""
        return tuple(result for result in self.results if result.verdict is Verdict.ERROR)

    def __getitem__(self, name: str) -> EvaluatorResult:
        """Return the result of the evaluator with this name. Raises KeyError, whose message lists the names."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(
            f"no result is named {name!r}; the names are {', '.join(result.name for result in self.results)}"
        )

    def __str__(self) -> str:
        return f"{self.verdict.name}: {self.reason}" if self.reason else self.verdict.name

    @classmethod
    def from_pb(
        cls,
        pb: "result_pb2.AggregatedEvaluation",
        evaluation_id: str = "",
        results: Iterable[EvaluatorResult] | None = None,
    ) -> "Evaluation":
        """Create the evaluation from the server's message.

        results: the results that a stream delivered before the summary; None if the message contains them.
        """
        if results is None:
            results = [EvaluatorResult.from_pb(result) for result in pb.results]
        has = pb.HasField
        return cls(
            read_verdict(pb.verdict),
            pb.reason,
            pb.score if has("score") else None,
            tuple(results),
            dict(pb.metrics),
            pb.passed_count,
            pb.failed_count,
            pb.error_count,
            pb.skipped_count,
            pb.min_score if has("min_score") else None,
            pb.mean_score if has("mean_score") else None,
            duration_ms(pb.duration) if has("duration") else None,
            read_usage(pb.token_usage) if has("token_usage") else NO_TOKENS,
            read_cost_usd(pb),
            tuple(pb.warnings),
            evaluation_id,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data in camelCase, without unknown values."""
        return present(
            {
                "evaluationId": self.evaluation_id,
                "verdict": self.verdict.name,
                "success": self.passed,
                "reason": self.reason,
                "score": self.score,
                "minScore": self.min_score,
                "meanScore": self.mean_score,
                "passedCount": self.passed_count,
                "failedCount": self.failed_count,
                "errorCount": self.error_count,
                "skippedCount": self.skipped_count,
                "durationMs": self.duration_ms,
                "tokenUsage": tuple_to_dict(self.token_usage),
                "costUsd": self.cost_usd,
                "warnings": list(self.warnings),
            }
        ) | {"metrics": dict(self.metrics), "results": [result.to_dict() for result in self.results]}
