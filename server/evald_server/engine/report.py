"""Results and summaries as they are sent: serialised once, around what the plan has prepared."""

from collections.abc import Sequence
from typing import Final

from evald.contract import cut
from evald.errorcodes import CODES
from evald.result import ErrorInfo, Result, TokenUsage, Verdict, measurement
from evald.structs import dict_to_struct
from evald.v1 import message_pb2, result_pb2
from evald_server.encoding import double, duration, sized

from .aggregate import ALL_PASSED, Aggregate, aggregate
from .outcome import FAIL_FAST
from .plan import DURATION, REASON, SHORT_REASON, VALUE, Plan, Use, nothing_counted

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

# Fields of evald.v1.EvaluationResult, as they begin on the wire.
_SCORE, _INSTANCE = b"\xa1\x01", b"\x82\x01"
_CACHED: Final = b"\x88\x01\x01"
_OUTCOMES: Final = {
    (verdict, success): result_pb2.EvaluationResult(
        verdict=int(verdict),  # type: ignore[arg-type]
        success=success,
    ).SerializeToString()
    for verdict in Verdict
    for success in (True, False)
}


def result_bytes(use: Use, outcome: Result, nanos: int, *, is_final: bool, began: bytes = b"") -> bytes:
    """A result as evald.v1.EvaluationResult, behind its length.

    nanos: how long it took. began: its start_time as a serialised field, where it waited.
    """
    verdict, reason = outcome.verdict, outcome.reason
    if len(reason) > SHORT_REASON:
        reason = cut(reason)
    parts = [
        use.head,
        _OUTCOMES[verdict, use.is_metric or verdict is _PASSED or verdict is _SKIPPED],
        REASON,
        sized(reason.encode("utf-8", "replace")),
    ]
    if outcome.score is not None:
        parts += (_SCORE, double(outcome.score))
    if outcome.value is not None:
        parts += (VALUE, double(outcome.value))
    if outcome.instance_id:
        parts += (_INSTANCE, sized(outcome.instance_id.encode()))
    if outcome.cached:
        parts.append(_CACHED)
    pending = outcome.pending and not is_final and verdict is _FAILED
    if pending or outcome.metadata or outcome.checks or outcome.error is not None or _has_spent(outcome):
        parts.append(_more(outcome, pending=pending))
    parts += (began, DURATION, duration(nanos))
    return sized(b"".join(parts))


def _has_spent(outcome: Result) -> bool:
    """Whether it took a model or a script to find the result."""
    return outcome.token_usage is not None or outcome.cost_usd is not None or outcome.raw_request is not None


def _more(outcome: Result, *, pending: bool) -> bytes:
    """What most results do not have."""
    pb = result_pb2.EvaluationResult(pending=pending)
    if outcome.error is not None:
        fill_error(pb.error, outcome.error)
    if outcome.metadata:
        dict_to_struct(outcome.metadata, pb.metadata)
    for check in outcome.checks:
        pb.checks.add(text=check.text, met=check.met, evidence=check.evidence)
    if outcome.raw_request:
        dict_to_struct(outcome.raw_request, pb.raw_request)
    if outcome.token_usage is not None:
        _add_usage(pb.token_usage, outcome.token_usage)
    if outcome.cost_usd is not None:
        _add_cost(pb.cost, outcome.cost_usd)
    return pb.SerializeToString()


def summary_bytes(plan: Plan, outcomes: Sequence[Result], *, perfect: bool) -> tuple[Verdict, bytes]:
    """The verdict of a call, and its evald.v1.AggregatedEvaluation without results and times.

    perfect: every assertion that counts has passed with score 1, and nothing broke or was skipped.
    """
    summary = result_pb2.AggregatedEvaluation()
    for use, outcome in zip(plan.uses, outcomes, strict=True):
        if use.is_metric and outcome.verdict is _PASSED:
            value = measurement(outcome.value, outcome.metadata)
            if value is not None:
                summary.metrics[use.name] = value
        if outcome.token_usage is not None:
            _add_usage(summary.token_usage, outcome.token_usage)
        if outcome.cost_usd is not None:
            _add_cost(summary.cost, outcome.cost_usd)
    if perfect:
        return _PASSED, plan.perfect + summary.SerializeToString()
    settled = [(outcome.verdict, outcome.score) for outcome in outcomes]
    not_run = [index for index, outcome in enumerate(outcomes) if outcome is FAIL_FAST]
    total = aggregate(plan.uses, settled, plan.policy, plan.threshold, not_run)
    summary.verdict = int(total.verdict)  # type: ignore[assignment]
    summary.success = total.verdict is _PASSED
    for name, score in (
        ("score", total.score),
        ("min_score", total.min_score),
        ("mean_score", total.mean_score),
    ):
        if score is not None:
            setattr(summary, name, score)
    summary.passed_count = total.passed
    summary.failed_count = total.failed
    summary.error_count = total.errors
    summary.skipped_count = total.skipped
    summary.reason = cut(_reason(plan, outcomes, total))
    if total.errors:
        summary.warnings.extend(_warnings(plan, outcomes, total))
    return total.verdict, summary.SerializeToString()


def _reason(plan: Plan, outcomes: Sequence[Result], total: Aggregate) -> str:
    """What decided, or what counted."""
    if total.deciding is not None:
        return outcomes[total.deciding].reason
    if total.verdict is _FAILED:
        return f"Weighted mean {total.mean_score:.4g} is below the threshold {plan.threshold:.4g}"
    ignored = len(total.ignored_errors)
    if total.verdict is _SKIPPED:
        if ignored:
            return f"No assertion gave a verdict: {ignored} broke and {_was(ignored)} ignored (fail open)"
        return "All assertions were skipped"
    if total.failed:
        return f"Weighted mean {total.mean_score:.4g} reaches the threshold {plan.threshold:.4g}"
    if not total.passed:
        return nothing_counted(plan.uses)
    if ignored:
        of = total.passed + ignored
        return f"{total.passed} of {of} assertions passed, {ignored} broke and {_was(ignored)} ignored (fail open)"
    return ALL_PASSED


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _warnings(plan: Plan, outcomes: Sequence[Result], total: Aggregate) -> list[str]:
    warnings = [
        f'"{plan.uses[index].name}" gave no verdict ({_code(outcomes[index])}) and was ignored (fail open)'
        for index in total.ignored_errors
    ]
    for use, outcome in zip(plan.uses, outcomes, strict=True):
        if outcome.verdict is _ERROR and not use.counts:
            what = "measured nothing" if use.is_metric else "gave no verdict in shadow"
            warnings.append(f'"{use.name}" {what} ({_code(outcome)})')
    return warnings


def _code(outcome: Result) -> str:
    return outcome.error.code if outcome.error is not None else ""


def fill_error(pb: result_pb2.EvaluationError, error: ErrorInfo) -> None:
    """Write an error with what its code says of category and retry."""
    info = CODES[error.code]
    pb.code, pb.retryable = error.code, info.retryable
    pb.category = int(info.category)  # type: ignore[assignment]
    pb.message = cut(error.message)
    for key, value in error.details.items():
        pb.metadata[key] = value


def _add_usage(pb: message_pb2.TokenUsage, usage: TokenUsage) -> None:
    for name, count in (
        ("input_tokens", usage.input_tokens),
        ("output_tokens", usage.output_tokens),
        ("total_tokens", usage.total),
    ):
        if count is not None:
            setattr(pb, name, getattr(pb, name) + count)


def _add_cost(pb: message_pb2.Cost, usd: float) -> None:
    pb.currency_code = "USD"
    pb.amount += usd
