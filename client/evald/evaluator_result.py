"""What one evaluator said about one turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from .errorcodes import CODES, Category
from .records import NO_TOKENS, present, read_cost_usd, read_kind, read_usage, read_verdict, usage_dict
from .result import Check, Kind, TokenUsage, Verdict, measurement
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import result_pb2

_CATEGORIES: Final = {int(category): category for category in Category}


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
    """What one evaluator said about one turn. True when it passed, else false.

    index: position in the call, from 0; automatic evaluators follow the requested ones.
    name: name of this use; type: type of the evaluator; label: its name for people.
    verdict: PASSED, FAILED, ERROR (no verdict: see `error`) or SKIPPED (see `reason`).
    score: assertions only, 0 to 1, higher is better; None means no score.
    value: what was measured, in the evaluator's own unit; None is not 0. A metric that could not
        measure has 0 here, its reason, and `available` false in its metadata; see `measurement`.
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
    token_usage: TokenUsage = NO_TOKENS
    cost_usd: float | None = None
    instance_id: str = ""
    cached: bool = False
    raw_request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True for PASSED alone."""
        return self.verdict is Verdict.PASSED

    def __bool__(self) -> bool:
        """Same as `passed`, so that `assert` fails for what did not pass."""
        return self.passed

    @property
    def measurement(self) -> float | None:
        """What a metric measured; None when it could not measure, and for assertions."""
        if self.kind is not Kind.METRIC or self.verdict is not Verdict.PASSED:
            return None
        return measurement(self.value, self.metadata)

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
                "tokenUsage": present(usage_dict(self.token_usage)),
                "costUsd": self.cost_usd,
                "instanceId": self.instance_id,
                "cached": self.cached or None,
                "rawRequest": dict(self.raw_request),
            }
        )


def _time(pb: Any) -> datetime:
    return datetime.fromtimestamp(pb.seconds + pb.nanos / 1e9, UTC)
