"""The plan of a call: its compiled evaluators, its options, and the response in which every evaluator passed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from evald.result import Verdict
from evald.v1 import evaluator_pb2, result_pb2
from evald_server import wire_pb2

from .aggregate import ALL_PASSED, Aggregate, Policy, aggregate
from .planned_evaluator import PlannedEvaluator


class PlanLimits(NamedTuple):
    """Limits of one call. config_bytes: of one spec's config. cache_bytes: approximate memory of the cached plans."""

    evaluators: int = 100
    config_bytes: int = 256 << 10
    cache_bytes: int = 64 << 20

    @property
    def specs_bytes(self) -> int:
        """The limit for all specs of a call together: compiling a KiB takes up to 0.7 ms."""
        return 2 * self.config_bytes


@dataclass(frozen=True, slots=True)
class Violation:
    """One problem of the specs.

    index: of the spec; None for a problem of the whole call. path: JSON Pointer into the spec.
    reason: stable code, for example UNKNOWN_TYPE.
    """

    index: int | None
    path: str
    reason: str
    message: str

    @property
    def field(self) -> str:
        """The field path: `evaluators[2].config.items[0].name`."""
        path, *parts = self.path.removeprefix("/").split("/")
        if self.index is not None:
            path, parts = f"evaluators[{self.index}]", [path, *parts]
        for part in filter(None, parts):
            path += f"[{part}]" if part.isdigit() else f".{part}"
        return path or "evaluators"


class InvalidPlan(ValueError):
    """The specs cannot be compiled. `unknown_type`: all violations are unknown types or versions."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = list(violations)
        self.unknown_type = all(v.reason in ("UNKNOWN_TYPE", "UNKNOWN_VERSION") for v in violations)
        # Messages about the whole call name the field themselves.
        super().__init__(
            "; ".join(v.message if v.index is None else f"{v.field}: {v.message}" for v in violations)
        )


@dataclass(slots=True, eq=False, weakref_slot=True)
class Plan:
    """The compiled specs and options of a call. Immutable; shared by all calls with the same specs.

    waits: whether some evaluator may wait for a model, script, remote or thread. final_only: names of the enforced
    assertions that give no verdict before the final turn. metrics: the evaluators that measure.
    """

    evaluators: Sequence[PlannedEvaluator]
    template: "ResponseTemplate"
    policy: Policy
    threshold: float
    fail_fast: bool
    max_concurrency: int
    timeout: float | None
    include_progress: bool
    skip_cache: bool
    waits: bool = field(init=False)
    final_only: tuple[str, ...] = field(init=False)
    metrics: Sequence[PlannedEvaluator] = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = [evaluator for evaluator in self.evaluators if evaluator.is_metric]
        self.waits = not all(evaluator.inline for evaluator in self.evaluators)
        self.final_only = tuple(one.name for one in self.evaluators if one.counts and one.awaits_final)


def check_kinds(began: Plan, plan: Plan) -> None:
    """Raise InvalidPlan if an assertion has become a metric, because a metric cannot fail.

    began, plan: plans of the same specs, at the start of a stream and now.
    """
    if plan is began:
        return
    kinds = {evaluator.name: evaluator.is_metric for evaluator in began.evaluators}
    for evaluator in plan.evaluators:
        if evaluator.is_metric and not kinds.get(evaluator.name, True):
            message = (
                f'"{evaluator.name}" was an assertion at the start of this stream, but its type is a metric now; '
                "start again if this is intended"
            )
            raise InvalidPlan([Violation(evaluator.index, "/type", "NOT_AN_ASSERTION", message)])


class ResponseTemplate:
    """The response of a plan in which every evaluator passed, assertions with score 1.

    Most of a response is the same for every call of a plan, so calls copy it and set the differences. Times hold
    placeholders, because setting a field that a copy already has is cheaper.

    specs: of the plan, as announced. warnings: about the plan. passed: the aggregate of these results.
    results: by the evaluator's index. aggregated: summary with results.
    event: the response as one message of a stream. turn: the same without the plan.
    """

    def __init__(
        self, evaluators: Sequence[PlannedEvaluator], specs: Sequence[bytes], warnings: Sequence[str] = ()
    ) -> None:
        self.specs = specs
        self.warnings = warnings
        self.results = [_passed_result(evaluator) for evaluator in evaluators]
        self.passed = aggregate(
            evaluators, [(Verdict.PASSED, evaluator.usual_score) for evaluator in evaluators]
        )
        summary = result_pb2.AggregatedEvaluation(warnings=warnings)
        fill_aggregate(summary, self.passed)
        counts = any(evaluator.counts for evaluator in evaluators)
        summary.reason = ALL_PASSED if counts else nothing_counted(evaluators)
        summary.duration.nanos = summary.start_time.seconds = 1
        self.turn = wire_pb2.EvaluateResponse(results=self.results, summary=summary)
        self.event = wire_pb2.EvaluateResponse(results=self.results, summary=summary)
        self.event.started.plan.extend(specs)
        summary.results.extend(self.results)
        self.aggregated = summary


def fill_aggregate(pb: result_pb2.AggregatedEvaluation, total: Aggregate) -> None:
    """Write the verdict, the scores and the counts of a call."""
    pb.verdict = int(total.verdict)  # type: ignore[assignment]
    pb.success = total.verdict is Verdict.PASSED
    for name in ("score", "min_score", "mean_score"):
        score = getattr(total, name)
        if score is None:
            pb.ClearField(name)
        else:
            setattr(pb, name, score)
    pb.passed_count = total.passed
    pb.failed_count = total.failed
    pb.error_count = total.errors
    pb.skipped_count = total.skipped


def nothing_counted(evaluators: Sequence[PlannedEvaluator]) -> str:
    """Return the reason of a call that passes because it has no enforced assertion."""
    metrics = sum(evaluator.is_metric for evaluator in evaluators)
    counts = {"metric": metrics, "shadow assertion": len(evaluators) - metrics}
    parts = [f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count]
    return f"No assertion counted: {' and '.join(parts)} only"


def _passed_result(evaluator: PlannedEvaluator) -> result_pb2.EvaluationResult:
    definition = evaluator.definition
    return result_pb2.EvaluationResult(
        index=evaluator.index,
        name=evaluator.name,
        type=definition.type,
        version=definition.version,
        label=definition.label,
        kind=int(definition.kind),  # type: ignore[arg-type]
        enforcement=(
            evaluator_pb2.ENFORCEMENT_ENFORCED if evaluator.enforced else evaluator_pb2.ENFORCEMENT_SHADOW
        ),
        verdict=result_pb2.VERDICT_PASSED,
        success=True,
        score=evaluator.usual_score,
        duration=Duration(nanos=1),
        provenance=result_pb2.Provenance(**evaluator.provenance._asdict()),
    )
