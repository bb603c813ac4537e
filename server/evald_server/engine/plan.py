"""What a plan is: compiled evaluators, and what the specs of a call may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evald.evaluator import Evaluate, EvaluatorDefinition
from evald.result import Kind, Result, Verdict
from evald.v1 import result_pb2
from evald_server import wire_pb2

from .aggregate import Policy, Settled
from .contract import MAX_REASON_BYTES
from .observer import Tally
from .registry import Origin
from .wire import delimited


class Criteria(NamedTuple):
    """A scenario's criteria in plain language, which are an implicit judge."""

    success: str
    failure: str
    failure_mode: str


class Limits(NamedTuple):
    """What one call may ask for. config_bytes: of one spec."""

    evaluators: int = 100
    config_bytes: int = 256 << 10
    cache_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with the specs.

    index: of the spec; None when it is about the call. path: JSON Pointer into the spec.
    reason: stable code, for example UNKNOWN_TYPE.
    """

    index: int | None
    path: str
    reason: str
    message: str


class InvalidPlan(ValueError):
    """The specs cannot be run. `unknown_type`: nothing else is wrong than unknown types."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = list(violations)
        self.unknown_type = all(v.reason in ("UNKNOWN_TYPE", "UNKNOWN_VERSION") for v in violations)
        super().__init__("; ".join(v.message for v in violations))


SHORT_REASON: Final = MAX_REASON_BYTES // 4
"""Characters that are never more than the bytes that a reason may have."""


def is_plain(result: Result) -> bool:
    """Passed, score 1, and nothing said but a reason of ordinary length and perhaps a value."""
    return (
        result.verdict is Verdict.PASSED
        and result.score == 1.0
        and not result.metadata
        and not result.checks
        and len(result.reason) <= SHORT_REASON
    )


@dataclass(slots=True, eq=False)
class Use:
    """One compiled use of an evaluator type.

    timeout: seconds for this use alone, or None. counts: an enforced assertion.
    trusted: its results need no checking. adjusted: its own threshold or negation
    changes them. plain: what it says of a passed turn can be written down as it is.
    conditional: it may have to be skipped or to wait. usual: the very object that it answers for most turns, so that the blank holds it.
    """

    index: int
    name: str
    definition: EvaluatorDefinition
    origin: Origin
    evaluate: Evaluate
    is_async: bool
    tally: Tally
    enforced: bool = True
    fail_open: bool = False
    weight: float = 1.0
    required: bool = False
    threshold: float | None = None
    negate: bool = False
    final_only: bool = False
    timeout: float | None = None
    counts: bool = field(init=False)
    is_metric: bool = field(init=False)
    inline: bool = field(init=False)
    trusted: bool = field(init=False)
    adjusted: bool = field(init=False)
    plain: bool = field(init=False)
    conditional: bool = field(init=False)
    usual: Result | None = field(init=False)

    def __post_init__(self) -> None:
        self.is_metric = self.definition.kind is Kind.METRIC
        self.counts = self.enforced and not self.is_metric
        self.trusted = self.origin is Origin.BUILT_IN
        self.inline = self.definition.inline and not self.is_async
        self.adjusted = self.negate or self.threshold is not None
        self.plain = (
            self.trusted
            and self.inline
            and not self.adjusted
            and not self.is_metric
            and self.enforced
            and self.weight > 0
        )
        self.conditional = self.final_only or not self.inline
        usual = getattr(getattr(self.evaluate, "__self__", None), "usual", None)
        self.usual = usual if self.plain and usual is not None and is_plain(usual) else None


@dataclass(slots=True, eq=False)
class Plan:
    """The compiled specs and options of a call.

    started: the plan as the wire's EvaluationStarted, without an evaluation_id.
    blank: results and summary as they are when all pass, to be copied and then
    changed where a result differs. blank_event: the same as an event of a stream.
    settled: verdicts and scores as they are when all pass with a score of 1. plain: every use is.
    """

    uses: list[Use]
    policy: Policy
    threshold: float
    fail_fast: bool
    max_concurrency: int
    timeout: float | None
    include_progress: bool
    skip_cache: bool
    started: bytes
    blank: result_pb2.AggregatedEvaluation
    blank_event: wire_pb2.EvaluateResponse
    settled: list[Settled | None]
    plain: bool

    def started_with(self, evaluation_id: str) -> bytes:
        """The serialised EvaluationStarted of one evaluation. The id is field 1; fields of a message
        may come in any order."""
        return self.started + delimited(1, evaluation_id.encode())
