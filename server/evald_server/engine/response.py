"""Encodes the results of a run as protobuf messages: copies the template of its plan and sets the differences."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evald.contract import MAX_REASON_BYTES, cut
from evald.errorcodes import CODES
from evald.result import ErrorInfo, Result, Verdict, measurement
from evald.structs import RepeatedField, dict_to_struct
from evald.v1 import evaluation_service_pb2, result_pb2
from evald_server import wire_pb2

from .aggregate import ALL_PASSED, Aggregate
from .plan import Plan, fill_aggregate, nothing_counted
from .planned_evaluator import PlannedEvaluator
from .run import EvaluationRun

Results: TypeAlias = RepeatedField[result_pb2.EvaluationResult]

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

_SECOND_NANOS: Final = 1_000_000_000


def fill_aggregated(pb: result_pb2.AggregatedEvaluation, run: EvaluationRun) -> None:
    """Write the summary and all results of a finished run."""
    pb.CopyFrom(run.plan.template.aggregated)
    _fill_finished(pb.results, pb, run)


def unary_response(run: EvaluationRun, evaluation_id: str) -> evaluation_service_pb2.EvaluateUnaryResponse:
    """Return the response of a finished run."""
    response = evaluation_service_pb2.EvaluateUnaryResponse(evaluation_id=evaluation_id)
    summary = response.summary
    summary.CopyFrom(run.plan.template.aggregated)
    _fill_finished(summary.results, summary, run)
    return response


def event_response(run: EvaluationRun, evaluation_id: str) -> wire_pb2.EvaluateResponse:
    """Return a finished run as the only message of a stream."""
    event = wire_pb2.EvaluateResponse()
    fill_event(event, run, evaluation_id)
    return event


def fill_event(
    pb: wire_pb2.EvaluateResponse, run: EvaluationRun, evaluation_id: str, *, announce_plan: bool = True
) -> None:
    """Write a finished run as one message of a stream: plan, results and summary."""
    template = run.plan.template
    pb.CopyFrom(template.event if announce_plan else template.turn)
    pb.started.evaluation_id = evaluation_id
    _fill_finished(pb.results, pb.summary, run)


def event_of(
    response: evaluation_service_pb2.EvaluateUnaryResponse, specs: Sequence[bytes]
) -> wire_pb2.EvaluateResponse:
    """Return the response of a unary call as one message of a stream. specs: of its plan."""
    event = wire_pb2.EvaluateResponse(results=response.summary.results, summary=response.summary)
    event.started.evaluation_id = response.evaluation_id
    event.started.plan.extend(specs)
    event.summary.ClearField("results")
    return event


async def events_of(
    run: EvaluationRun,
    evaluation_id: str,
    steps: AsyncGenerator[list[int]],
    *,
    announce_plan: bool = True,
) -> AsyncGenerator[wire_pb2.EvaluateResponse]:
    """Yield the messages of a run with pending evaluators: plan, results, and with the last results the summary.

    steps: runs the pending evaluators and yields the indexes of finished ones.
    """
    try:
        event = wire_pb2.EvaluateResponse()
        event.started.evaluation_id = evaluation_id
        if announce_plan:
            event.started.plan.extend(run.plan.template.specs)
        _add_results(event, run, [index for index, outcome in enumerate(run.outcomes) if outcome])
        yield event
        async with aclosing(steps):
            async for indexes in steps:
                event = wire_pb2.EvaluateResponse()
                _add_results(event, run, indexes)
                for report in run.take_progress():
                    event.progress.add(index=report.index, message=report.message, fraction=report.fraction)
                if run.finished:
                    _fill_summary(event.summary, run)
                yield event
    finally:
        run.abandon()


def fill_error(pb: result_pb2.EvaluationError, error: ErrorInfo) -> None:
    """Write an error, with the category and the retry hint of its code."""
    info = CODES[error.code]
    pb.code, pb.retryable = error.code, info.retryable
    pb.category = int(info.category)  # type: ignore[assignment]
    pb.message = cut(error.message)
    for key, value in error.details.items():
        pb.metadata[key] = value


def _add_results(event: wire_pb2.EvaluateResponse, run: EvaluationRun, indexes: Sequence[int]) -> None:
    """Write the results at these indexes. The run may be unfinished."""
    event.results.extend([run.plan.template.results[index] for index in indexes])
    _fill_results(event.results, run, indexes)


def _fill_finished(results: Results, summary: result_pb2.AggregatedEvaluation, run: EvaluationRun) -> None:
    """Set the differences from the template. Both messages are copies of it."""
    unusual = _fill_results(results, run, range(len(run.outcomes)))
    plan, outcomes = run.plan, run.outcomes
    if unusual or run.aggregate is not plan.template.passed:
        _fill_summary(summary, run)
        return
    for evaluator in plan.metrics:
        result = outcomes[evaluator.index][0]  # type: ignore[index]
        value = measurement(result.value, result.metadata)
        if value is not None:
            summary.metrics[evaluator.name] = value
    _fill_times(summary, run)


def _fill_results(
    results: Iterable[result_pb2.EvaluationResult], run: EvaluationRun, indexes: Iterable[int]
) -> bool:
    """Write results into copies of their templates. Returns whether one of them changes the summary."""
    evaluators, outcomes, unusual = run.plan.evaluators, run.outcomes, False
    for pb, index in zip(results, indexes, strict=True):
        result, nanos, start_nanos = outcomes[index]  # type: ignore[misc]
        reason = result.reason
        # Most reasons are short, and `cut` would return them as they are.
        pb.reason = reason if len(reason) <= MAX_REASON_BYTES and reason.isascii() else cut(reason)
        if nanos < _SECOND_NANOS:
            pb.duration.nanos = nanos
        else:
            _set_nanos(pb.duration, nanos)
        if result.value is not None:
            pb.value = result.value
        if start_nanos:
            _set_nanos(pb.start_time, start_nanos)
        if result.metadata:
            dict_to_struct(result.metadata, pb.metadata)
        if (
            result.verdict is not _PASSED
            or result.score != evaluators[index].usual_score
            or result.checks
            or result.token_usage is not None
            or result.cost_usd is not None
            or result.raw_request is not None
            or result.instance_id
            or result.cached
            or result.cached_answers
            or result.warning
        ):
            unusual = True
            _fill_unusual(pb, evaluators[index], result, is_final=run.ctx.is_final)
    return unusual


def _fill_unusual(
    pb: result_pb2.EvaluationResult, evaluator: PlannedEvaluator, result: Result, *, is_final: bool
) -> None:
    """Write the fields in which a result differs from one that passed with score 1."""
    verdict = result.verdict
    pb.verdict = int(verdict)  # type: ignore[assignment]
    pb.success = evaluator.is_metric or verdict is _PASSED or verdict is _SKIPPED
    if result.score is None:
        pb.ClearField("score")
    else:
        pb.score = result.score
    pb.pending = result.pending and not is_final and verdict is _FAILED
    pb.instance_id = result.instance_id
    pb.cached, pb.cached_answer_count = result.cached, result.cached_answers
    if result.error is not None:
        fill_error(pb.error, result.error)
    for check in result.checks:
        pb.checks.add(text=cut(check.text), met=check.met, evidence=cut(check.evidence))
    if result.raw_request:
        dict_to_struct(result.raw_request, pb.raw_request)
    _add_spending(pb, result)


def _fill_summary(pb: result_pb2.AggregatedEvaluation, run: EvaluationRun) -> None:
    """Write the summary of a finished run, without its results."""
    plan, results, total = run.plan, run.results, run.aggregate
    for evaluator, result in zip(plan.evaluators, results, strict=True):
        if evaluator.is_metric and result.verdict is _PASSED:
            value = measurement(result.value, result.metadata)
            if value is not None:
                pb.metrics[evaluator.name] = value
        _add_spending(pb, result)
    fill_aggregate(pb, total)
    pb.reason = cut(_reason(plan, results, total))
    pb.warnings[:] = _warnings(run)
    _fill_times(pb, run)


def _fill_times(pb: result_pb2.AggregatedEvaluation, run: EvaluationRun) -> None:
    duration, start = pb.duration, pb.start_time
    duration.seconds, duration.nanos = divmod(run.nanos, _SECOND_NANOS)
    start.seconds, start.nanos = divmod(run.start_nanos, _SECOND_NANOS)


def _set_nanos(pb: Duration | Timestamp, nanos: int) -> None:
    pb.seconds, pb.nanos = divmod(nanos, _SECOND_NANOS)


def _add_spending(pb: result_pb2.EvaluationResult | result_pb2.AggregatedEvaluation, result: Result) -> None:
    """Add the tokens and the cost of a result."""
    usage = result.token_usage
    if usage is not None:
        for name, count in (
            ("input_tokens", usage.input_tokens),
            ("output_tokens", usage.output_tokens),
            ("total_tokens", usage.total),
        ):
            if count is not None:
                setattr(pb.token_usage, name, getattr(pb.token_usage, name) + count)
    if result.cost_usd is not None:
        pb.cost.currency_code = "USD"
        pb.cost.amount += result.cost_usd


def _reason(plan: Plan, results: Sequence[Result], total: Aggregate) -> str:
    """Return the reason of the deciding result, else a summary of the results that counted."""
    if total.deciding is not None:
        return results[total.deciding].reason
    if total.verdict is _FAILED:
        return f"Weighted mean {total.mean_score:.4g} is below the threshold {plan.threshold:.4g}"
    count = len(total.ignored_errors)
    ignored = f"{count} with an error {'was' if count == 1 else 'were'} ignored (fail open)"
    if total.verdict is _SKIPPED:
        return f"No assertion gave a verdict: {ignored}" if count else "All assertions were skipped"
    if total.failed:
        return f"Weighted mean {total.mean_score:.4g} reaches the threshold {plan.threshold:.4g}"
    if not total.passed:
        return nothing_counted(plan.evaluators)
    return f"{total.passed} of {total.passed + count} assertions passed, {ignored}" if count else ALL_PASSED


def _warnings(run: EvaluationRun) -> list[str]:
    plan, results = run.plan, run.results
    warnings = [*plan.template.warnings]
    warnings += [
        f'"{plan.evaluators[index].name}" gave no verdict ({_code(results[index])}) and was ignored (fail open)'
        for index in run.aggregate.ignored_errors
    ]
    for evaluator, result in zip(plan.evaluators, results, strict=True):
        if result.verdict is _ERROR and not evaluator.counts:
            what = "measured nothing" if evaluator.is_metric else "gave no verdict in shadow"
            warnings.append(f'"{evaluator.name}" {what} ({_code(result)})')
        if result.warning:
            warnings.append(f'"{evaluator.name}": {result.warning}')
    names = plan.final_only
    if names and not run.ctx.is_final and not run.ctx.turn:
        # The caller does not number the turns, so no final one may ever come.
        verb = "waits" if len(names) == 1 else "wait"
        shown = ", ".join(map(repr, names[:5]))
        warnings.append(f"{shown} {verb} for the final turn: set is_final on it, or turn on the others")
    return warnings


def _code(result: Result) -> str:
    return result.error.code if result.error is not None else ""
