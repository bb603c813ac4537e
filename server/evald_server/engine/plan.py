"""What a plan is: compiled evaluators, and what the specs of a call may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from evald.contract import MAX_REASON_BYTES
from evald.evaluator import Evaluate, EvaluatorDefinition
from evald.result import Kind, Result, Verdict
from evald.v1 import evaluator_pb2, result_pb2
from evald_server.encoding import DURATIONS, delimited, double, size, sized, varint

from .aggregate import Policy
from .observer import Tally
from .registry import Origin


class Criteria(NamedTuple):
    """A scenario's criteria in plain language, which are an implicit judge."""

    success: str
    failure: str
    failure_mode: str


class Limits(NamedTuple):
    """What one call may ask for. config_bytes: of one spec. cache_bytes: about what kept plans may take."""

    evaluators: int = 100
    config_bytes: int = 256 << 10
    cache_bytes: int = 64 << 20

    @property
    def specs_bytes(self) -> int:
        """Of all specs of a call: compiling a KiB takes up to 0.7 ms of the event loop, measured."""
        return 2 * self.config_bytes


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

# Looking a member up on the enum class costs as much as a whole check.
_PASSED: Final = Verdict.PASSED

_NEVER: Final = Result(Verdict.ERROR, "no evaluator answers this object")

# Fields of evald.v1.EvaluationResult, as they begin on the wire.
VALUE, REASON, DURATION = b"\x41", b"\x4a", b"\x6a"


def is_plain(result: Result) -> bool:
    """Passed, score 1, and nothing said but a reason of ordinary length and perhaps a value."""
    return (
        result.verdict is _PASSED
        and result.score == 1.0
        and not result.metadata
        and not result.checks
        and len(result.reason) <= SHORT_REASON
    )


@dataclass(slots=True, eq=False)
class Use:
    """One compiled use of an evaluator type.

    timeout: seconds for this use alone, or None. counts: an enforced assertion.
    adjusted: its own threshold or negation changes its results. plain: what it says of a passed turn can be written down as it is.
    conditional: it may have to be skipped or to wait. counted: its results of the usual kind are
    counted in `tally.usual`. head: what all its results have in common, serialised.
    usual: the very object that it answers for most turns, which is written as `short` or, where it took
    THREE_BYTES or longer, as `long`, followed by the duration.
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
    adjusted: bool = field(init=False)
    plain: bool = field(init=False)
    conditional: bool = field(init=False)
    counted: bool = field(init=False)
    head: bytes = field(init=False)
    passed_head: bytes = field(init=False)
    usual: Result = field(init=False)
    short: bytes = field(init=False)
    long: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.is_metric = self.definition.kind is Kind.METRIC
        self.counts = self.enforced and not self.is_metric
        self.inline = self.definition.inline and not self.is_async
        self.adjusted = self.negate or self.threshold is not None
        self.plain = (
            self.inline and not self.adjusted and not self.is_metric and self.enforced and self.weight > 0
        )
        self.conditional = self.final_only or not self.inline
        self.counted = not self.tally.measures
        self._write()

    def _write(self) -> None:
        definition = self.definition
        self.head = result_pb2.EvaluationResult(
            index=self.index,
            name=self.name,
            type=definition.type,
            version=definition.version,
            label=definition.label,
            kind=int(definition.kind),  # type: ignore[arg-type]
            enforcement=(
                evaluator_pb2.ENFORCEMENT_ENFORCED if self.enforced else evaluator_pb2.ENFORCEMENT_SHADOW
            ),
        ).SerializeToString()
        passed = result_pb2.EvaluationResult(verdict=result_pb2.VERDICT_PASSED, success=True, score=1)
        self.passed_head = self.head + passed.SerializeToString() + REASON
        self.usual, self.short, self.long = _NEVER, b"", b""
        usual = getattr(getattr(self.evaluate, "__self__", None), "usual", None)
        if self.plain and self.counted and usual is not None and is_plain(usual) and usual.value is None:
            self.usual = usual
            body = self.passed_head + sized(usual.reason.encode("utf-8", "replace")) + DURATION
            self.short, self.long = (varint(len(body) + more) + body for more in (4, 5))

    def passed(self, outcome: Result, nanos: int) -> bytes | None:
        """A plain outcome as evald.v1.EvaluationResult, behind its length; None when it is not plain.

        nanos: how long it took, below SHORT_NANOS.
        """
        # `is_plain` without its call, which is a fifth of all this.
        if outcome.verdict is not _PASSED or outcome.score != 1.0 or outcome.metadata or outcome.checks:
            return None
        reason = outcome.reason.encode("utf-8", "replace")
        if len(reason) > SHORT_REASON:
            return None
        value = outcome.value
        more = DURATION if value is None else VALUE + double(value) + DURATION
        body = b"".join((self.passed_head, size(reason), reason, more, DURATIONS[(nanos + 999) // 1000]))
        return size(body) + body


def nothing_counted(uses: Sequence[Use]) -> str:
    """The reason of a call that passes because nothing in it gates."""
    metrics = sum(use.is_metric for use in uses)
    shadows = len(uses) - metrics
    parts = []
    if metrics:
        parts.append("1 metric" if metrics == 1 else f"{metrics} metrics")
    if shadows:
        parts.append("1 shadow assertion" if shadows == 1 else f"{shadows} shadow assertions")
    return f"No assertion counted: {' and '.join(parts)} only"


class Step(NamedTuple):
    """What calling a use takes, side by side in memory: looked up on the use, it costs as much as a check.

    held_back: it may have to be skipped or to wait. plain: its results may be written by `Use.passed`.
    cells: of its tally. The rest is the use's own.
    """

    held_back: bool
    evaluate: Evaluate
    usual: Result
    short: bytes
    long: bytes
    cells: list[int]
    plain: bool
    use: Use


@dataclass(slots=True, eq=False, weakref_slot=True)
class Plan:
    """The compiled specs and options of a call.

    steps: the uses as they are called.
    started: the plan as the wire's EvaluationStarted, without an evaluation_id.
    perfect: the summary as it is when all pass, serialised, without times and metrics.
    measures: whether any use is a metric.
    waits: whether any use may have to wait: for a model, a script, a remote, a thread.
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
    perfect: bytes
    measures: bool
    steps: list[Step] = field(init=False)
    waits: bool = field(init=False)

    def __post_init__(self) -> None:
        self.waits = any(not use.inline for use in self.uses)
        self.steps = [
            Step(
                use.conditional or self.fail_fast,
                use.evaluate,
                use.usual,
                use.short,
                use.long,
                use.tally.usual,
                use.plain and use.counted,
                use,
            )
            for use in self.uses
        ]

    def started_with(self, evaluation_id: str) -> bytes:
        """The serialised EvaluationStarted of one evaluation. The id is field 1."""
        return self.started + delimited(1, evaluation_id.encode())
