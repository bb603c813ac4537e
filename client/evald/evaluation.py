"""What comes back from an evaluation: frozen records, read from the messages of a server."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .errorcodes import CODES, Category
from .result import Check, Kind, TokenUsage, Verdict
from .spec import Spec
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import evaluation_service_pb2, evaluator_pb2, message_pb2, result_pb2

_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}
_CATEGORIES: Final = {int(category): category for category in Category}
_NO_TOKENS: Final = TokenUsage()


def _verdict(number: int) -> Verdict:
    # A verdict that this client does not know must not count as passed: it is no verdict.
    return _VERDICTS.get(number, Verdict.ERROR)


def read_kind(number: int) -> Kind:
    """The kind; one that this client does not know gates, to be on the safe side."""
    return Kind.METRIC if number == Kind.METRIC else Kind.ASSERTION


def _usage(pb: "message_pb2.TokenUsage") -> TokenUsage:
    return TokenUsage(
        pb.input_tokens if pb.HasField("input_tokens") else None,
        pb.output_tokens if pb.HasField("output_tokens") else None,
        pb.total_tokens if pb.HasField("total_tokens") else None,
    )


def _cost_usd(pb: Any) -> float | None:
    if not pb.HasField("cost") or pb.cost.currency_code not in ("USD", ""):
        return None
    amount: float = pb.cost.amount
    return amount


def _usage_dict(usage: TokenUsage) -> dict[str, int | None]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }


def present(data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that say something: not None and not empty."""
    return {
        key: value
        for key, value in data.items()
        if value is not None and not (isinstance(value, str | Mapping | Sequence) and not value)
    }


@dataclass(frozen=True, slots=True)
class EvaluatorError:
    """Why there is no verdict.

    code: one of `evald.errorcodes.CODES`, or one that a newer server knows.
    category: who has to act; None when this client does not know the category.
    message: for a developer.
    retryable: the same call may work later.
    metadata: every dynamic part of the message.
    """

    code: str
    message: str
    category: Category | None = None
    retryable: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_pb(cls, pb: "result_pb2.EvaluationError") -> "EvaluatorError":
        """Read from a server's message."""
        return cls(pb.code, pb.message, _CATEGORIES.get(pb.category), pb.retryable, dict(pb.metadata))

    @classmethod
    def of_code(cls, code: str, message: str) -> "EvaluatorError":
        """One of this client's own, with what is fixed for the code."""
        info = CODES[code]
        return cls(code, message, info.category, info.retryable)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase."""
        return present(
            {
                "code": self.code,
                "category": self.category.name if self.category else None,
                "message": self.message,
                "retryable": self.retryable,
                "metadata": dict(self.metadata),
            }
        )


@dataclass(frozen=True, slots=True)
class EvaluatorResult:
    """What one evaluator said about one turn.

    index: position in the call, from 0; automatic evaluators follow the requested ones.
    name: name of this use; type: type of the evaluator; label: its name for people.
    verdict: PASSED, FAILED, ERROR (no verdict: see `error`) or SKIPPED (see `reason`).
    score: assertions only, 0 to 1, higher is better; None means no score.
    value: what was measured, in the evaluator's own unit; None is not 0.
    shadow: it was reported and decided nothing.
    pending: failed, and a later turn can still make it pass.
    checks: the single findings behind the verdict.
    duration_ms: how long it took, queueing left out.
    token_usage, cost_usd: what the evaluator itself spent.
    instance_id: which remote instance ran it. cached: the result came from the server's cache.
    raw_request: what was asked of a judge or a script, where it is recorded.
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
    token_usage: TokenUsage = _NO_TOKENS
    cost_usd: float | None = None
    instance_id: str = ""
    cached: bool = False
    raw_request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    @property
    def success(self) -> bool:
        """Nothing to complain about: PASSED or SKIPPED, and always for metrics, which never fail."""
        return self.kind is Kind.METRIC or self.verdict in (Verdict.PASSED, Verdict.SKIPPED)

    @classmethod
    def from_pb(cls, pb: "result_pb2.EvaluationResult") -> "EvaluatorResult":
        """Read from a server's message."""
        has = pb.HasField
        return cls(
            pb.index,
            pb.name,
            pb.type,
            read_kind(pb.kind),
            _verdict(pb.verdict),
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
            _usage(pb.token_usage) if has("token_usage") else _NO_TOKENS,
            _cost_usd(pb),
            pb.instance_id,
            pb.cached,
            struct_to_dict(pb.raw_request) if has("raw_request") else {},
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase; what is unknown is left out."""
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
                "checks": [present(check._asdict()) for check in self.checks],
                "error": self.error.to_dict() if self.error else None,
                "startTime": self.start_time.isoformat() if self.start_time else None,
                "durationMs": self.duration_ms,
                "tokenUsage": present(_usage_dict(self.token_usage)),
                "costUsd": self.cost_usd,
                "instanceId": self.instance_id,
                "cached": self.cached or None,
                "rawRequest": dict(self.raw_request),
            }
        )


def _time(pb: Any) -> datetime:
    return datetime.fromtimestamp(pb.seconds + pb.nanos / 1e9, UTC)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What all evaluators said about one turn, and what follows from it.

    evaluation_id: the call's request_id, or one that the server made; "" in sessions and batches.
    verdict: FAILED when an assertion that counts failed; else ERROR, inconclusive, when one gave
        no verdict; else SKIPPED when all were skipped; else PASSED.
    reason: that of the first failure or error, else "All evaluators passed".
    score: the lowest score, or the weighted mean, as the policy says; None when nothing scored.
    min_score, mean_score: both of them, whatever the policy.
    results: all results in the order of the call.
    metrics: measured values of the metrics, by name.
    passed_count, failed_count: assertions that count. error_count, skipped_count: all evaluators.
    duration_ms: wall time in the server.
    token_usage, cost_usd: what the evaluators themselves spent.
    warnings: what a caller should know and what changed no verdict.
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
    token_usage: TokenUsage = _NO_TOKENS
    cost_usd: float | None = None
    warnings: tuple[str, ...] = ()
    evaluation_id: str = ""

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    @property
    def failed(self) -> bool:
        """True for FAILED alone: ERROR is inconclusive, SKIPPED says nothing."""
        return self.verdict is Verdict.FAILED

    @property
    def failures(self) -> tuple[EvaluatorResult, ...]:
        """Results of the assertions that failed and count."""
        return tuple(
            result for result in self.results if result.verdict is Verdict.FAILED and not result.shadow
        )

    @property
    def errors(self) -> tuple[EvaluatorResult, ...]:
        """Results of the evaluators that gave no verdict, whether they count or not."""
        return tuple(result for result in self.results if result.verdict is Verdict.ERROR)

    def __getitem__(self, name: str) -> EvaluatorResult:
        """The result of the evaluator of that name. Raises KeyError that lists the names."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"{name!r}; there are {', '.join(result.name for result in self.results)}")

    def __str__(self) -> str:
        return f"{self.verdict.name}: {self.reason}" if self.reason else self.verdict.name

    @classmethod
    def from_pb(
        cls,
        pb: "result_pb2.AggregatedEvaluation",
        evaluation_id: str = "",
        results: Iterable[EvaluatorResult] | None = None,
    ) -> "Evaluation":
        """Read from a server's message. results: those that a stream brought before the summary."""
        if results is None:
            results = [EvaluatorResult.from_pb(result) for result in pb.results]
        has = pb.HasField
        return cls(
            _verdict(pb.verdict),
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
            _usage(pb.token_usage) if has("token_usage") else _NO_TOKENS,
            _cost_usd(pb),
            tuple(pb.warnings),
            evaluation_id,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase; what is unknown is left out."""
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
                "tokenUsage": present(_usage_dict(self.token_usage)),
                "costUsd": self.cost_usd,
                "warnings": list(self.warnings),
            }
        ) | {"metrics": dict(self.metrics), "results": [result.to_dict() for result in self.results]}


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a stream. plan: what will run, names and versions filled in."""

    evaluation_id: str
    plan: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """What an evaluator says before it finishes. index: its place in the plan. fraction: 0 to 1."""

    index: int
    message: str
    fraction: float | None = None


Event: TypeAlias = Started | Progress | EvaluatorResult | Evaluation
"""What a stream yields: the plan first, the evaluation last."""


class EvaluationStream:
    """Puts together what the messages of one streamed evaluation bring."""

    def __init__(self) -> None:
        self._id = ""
        self._results: list[EvaluatorResult] = []
        self.evaluation: Evaluation | None = None

    def read(self, response: "evaluation_service_pb2.EvaluateResponse") -> list[Event]:
        """The events of the next message."""
        events: list[Event] = []
        if response.HasField("started"):
            self._id = response.started.evaluation_id
            events.append(Started(self._id, tuple(map(read_spec, response.started.plan))))
        for progress in response.progress:
            fraction = progress.fraction if progress.HasField("fraction") else None
            events.append(Progress(progress.index, progress.message, fraction))
        results = [EvaluatorResult.from_pb(result) for result in response.results]
        self._results += results
        events += results
        if response.HasField("summary"):
            self._results.sort(key=lambda result: result.index)
            self.evaluation = Evaluation.from_pb(response.summary, self._id, self._results)
            events.append(self.evaluation)
        return events


def read_spec(pb: "evaluator_pb2.EvaluatorSpec") -> Spec:
    """A spec as the server will run it."""
    return Spec(
        pb.type,
        struct_to_dict(pb.config) if pb.HasField("config") else {},
        name=pb.name,
        version=pb.version,
        when="final" if pb.turn_policy == 2 else "every_turn",
        weight=pb.weight if pb.HasField("weight") else None,
        required=pb.required,
        threshold=pb.threshold if pb.HasField("threshold") else None,
        negate=pb.negate,
        shadow=pb.enforcement == 2,
        on_error={1: "fail_closed", 2: "fail_open"}.get(pb.error_policy),  # type: ignore[arg-type]
        timeout_seconds=duration_ms(pb.timeout) / 1000 if pb.HasField("timeout") else None,
    )


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """What a whole session comes to.

    verdict: the worst of its turns: FAILED, then ERROR, then PASSED, then SKIPPED.
    failed_turn_ids: turns that did not pass, counted from 1.
    """

    verdict: Verdict
    turn_count: int
    failed_turn_ids: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.SessionSummary") -> "SessionSummary":
        """Read from a server's message."""
        return cls(_verdict(pb.verdict), pb.turn_count, tuple(pb.failed_turn_ids))


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer to one item of a batch: an evaluation, or the error that kept it from being evaluated."""

    id: str
    evaluation: Evaluation | None = None
    error: EvaluatorError | None = None

    @property
    def verdict(self) -> Verdict:
        """That of the evaluation; ERROR without one."""
        return self.evaluation.verdict if self.evaluation else Verdict.ERROR

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    def to_dict(self) -> dict[str, Any]:
        """As JSON data in camelCase."""
        return present(
            {
                "id": self.id,
                "verdict": self.verdict.name,
                "evaluation": self.evaluation.to_dict() if self.evaluation else None,
                "error": self.error.to_dict() if self.error else None,
            }
        )

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchAnswer") -> "BatchAnswer":
        """Read from a server's message."""
        if pb.HasField("summary"):
            return cls(pb.item_id, Evaluation.from_pb(pb.summary))
        if pb.HasField("error"):
            return cls(pb.item_id, None, EvaluatorError.from_pb(pb.error))
        return cls(
            pb.item_id,
            None,
            EvaluatorError.of_code(
                "CONTRACT_VIOLATION", "the server's answer is of a kind this client does not know"
            ),
        )


class EvaluatorTotals(NamedTuple):
    """One evaluator over a batch. mean_value: mean of the measured values; None when there are none."""

    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    mean_value: float | None = None

    @property
    def pass_rate(self) -> float | None:
        """Passed out of passed and failed, 0 to 1; None when there are none."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What a whole batch comes to. Counts are of items; error_count has those that could not be evaluated.

    evaluators: totals by name of the evaluator.
    """

    item_count: int = 0
    passed_count: int = 0
    failed_count: int = 0
    error_count: int = 0
    skipped_count: int = 0
    evaluators: Mapping[str, EvaluatorTotals] = field(default_factory=dict)

    @property
    def pass_rate(self) -> float | None:
        """Passed out of passed and failed, 0 to 1; None when there are none. Errors and skips stay out."""
        decided = self.passed_count + self.failed_count
        return self.passed_count / decided if decided else None

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.BatchSummary", refused_here: int = 0) -> "BatchSummary":
        """Read from a server's message. refused_here: items that never left this process."""
        return cls(
            pb.item_count + refused_here,
            pb.passed_count,
            pb.failed_count,
            pb.error_count + refused_here,
            pb.skipped_count,
            {
                name: EvaluatorTotals(
                    totals.passed_count,
                    totals.failed_count,
                    totals.error_count,
                    totals.mean_value if totals.HasField("mean_value") else None,
                )
                for name, totals in pb.evaluators.items()
            },
        )
