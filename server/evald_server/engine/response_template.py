"""The response of a plan in which every evaluator passed.

Most of a response is the same for every call of a plan, so a call copies it and sets the differences: 29 us per call,
against 40 us from scratch.
"""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from evald.result import Verdict
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2
from evald_server import wire_pb2

from .aggregate import ALL_PASSED, Aggregate, aggregate
from .planned_evaluator import PlannedEvaluator


class ResponseTemplate:
    """The messages of a plan in which every evaluator passed, assertions with score 1.

    Times hold placeholders, because setting a field that a copy already has is cheaper.
    specs: of the plan, as announced. warnings: about the plan. results: by the evaluator's index. aggregated: summary with results. event: the
    whole response as one message of a stream. turn: the same without the plan. passed: the aggregate of these
    results.
    """

    def __init__(
        self, evaluators: Sequence[PlannedEvaluator], specs: Sequence[bytes], warnings: Sequence[str] = ()
    ) -> None:
        self.specs = specs
        self.warnings = warnings
        self.results = [_passed_result(evaluator) for evaluator in evaluators]
        counts = any(evaluator.counts for evaluator in evaluators)
        self.passed = aggregate(
            evaluators, [(Verdict.PASSED, None if evaluator.is_metric else 1.0) for evaluator in evaluators]
        )
        summary = result_pb2.AggregatedEvaluation()
        fill_aggregate(summary, self.passed)
        summary.warnings.extend(warnings)
        summary.reason = ALL_PASSED if counts else nothing_counted(evaluators)
        summary.duration.nanos = summary.start_time.seconds = 1
        self.aggregated = result_pb2.AggregatedEvaluation(results=self.results)
        self.aggregated.MergeFrom(summary)
        self.unary = evaluation_service_pb2.EvaluateUnaryResponse(summary=self.aggregated)
        self.turn = wire_pb2.EvaluateResponse(results=self.results, summary=summary)
        self.event = wire_pb2.EvaluateResponse(results=self.results, summary=summary)
        self.event.started.plan.extend(specs)


def fill_aggregate(pb: result_pb2.AggregatedEvaluation, total: Aggregate) -> None:
    """Write the verdict, the scores and the counts of a call."""
    pb.verdict = int(total.verdict)  # type: ignore[assignment]
    pb.success = total.verdict is Verdict.PASSED
    if total.score is not None:
        pb.score = total.score
    if total.min_score is not None:
        pb.min_score = total.min_score
    if total.mean_score is not None:
        pb.mean_score = total.mean_score
    pb.passed_count = total.passed
    pb.failed_count = total.failed
    pb.error_count = total.errors
    pb.skipped_count = total.skipped


def nothing_counted(evaluators: Sequence[PlannedEvaluator]) -> str:
    """Return the reason of a call that passes because it has no enforced assertion."""
    metrics = sum(evaluator.is_metric for evaluator in evaluators)
    shadows = len(evaluators) - metrics
    parts = []
    if metrics:
        parts.append("1 metric" if metrics == 1 else f"{metrics} metrics")
    if shadows:
        parts.append("1 shadow assertion" if shadows == 1 else f"{shadows} shadow assertions")
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
        score=None if evaluator.is_metric else 1.0,
        duration=Duration(nanos=1),
        provenance=result_pb2.Provenance(**evaluator.provenance._asdict()),
    )
