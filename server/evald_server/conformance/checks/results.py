"""Rules for all outputs that the earlier checks recorded."""

import math
from collections.abc import Awaitable, Callable, Iterator

from evald.contract import MAX_REASON_BYTES, ContractViolation, plain_data
from evald.errorcodes import CODES
from evald.plugin.v1 import task_pb2
from evald.structs import struct_to_dict
from evald.v1 import evaluator_pb2, result_pb2

from ..link import MAX_OUTPUT_BYTES, RecordedOutput
from ..trial import NotTestable, RuleBroken, Trial

_PASSED, _FAILED, _ERROR, _SKIPPED = (
    result_pb2.VERDICT_PASSED,
    result_pb2.VERDICT_FAILED,
    result_pb2.VERDICT_ERROR,
    result_pb2.VERDICT_SKIPPED,
)
_Output = task_pb2.EvaluationOutput


def _outputs(trial: Trial) -> Iterator[tuple[RecordedOutput, _Output]]:
    if not trial.link.outputs:
        raise NotTestable("there was no output to look at")
    for said in trial.link.outputs:
        if said.output is not None:
            yield said, said.output


def _each(problem: Callable[[_Output], str | None]) -> Callable[[Trial], Awaitable[None]]:
    """Make a rule for all outputs. problem: says what is wrong with one, None if nothing is."""

    async def check(trial: Trial) -> None:
        for said, output in _outputs(trial):
            found = problem(output)
            if found:
                raise RuleBroken(f'"{said.task.type}": {found}')

    return check


@_each
def verdicts_are_known(output: _Output) -> str | None:
    """Check that every verdict is one of the four."""
    if output.verdict in (_PASSED, _FAILED, _ERROR, _SKIPPED):
        return None
    return f"verdict is {output.verdict}, wanted PASSED, FAILED, ERROR or SKIPPED"


@_each
def scores_are_in_range(output: _Output) -> str | None:
    """Check that scores are from 0 to 1, and that errors have none."""
    if not output.HasField("score"):
        return None
    if output.verdict == _ERROR:
        return "score is set, but the verdict is ERROR"
    # NaN is no number, which is a rule of its own.
    return None if math.isnan(output.score) or 0 <= output.score <= 1 else f"score is {output.score:g}"


@_each
def numbers_are_finite(output: _Output) -> str | None:
    """Check that score, value and cost are neither NaN nor infinite."""
    for name, number in (
        ("score", output.score if not math.isinf(output.score) else 0.0),
        ("value", output.value),
        ("cost.amount", output.cost.amount),
    ):
        if not math.isfinite(number):
            return f"{name} is {number}"
    return None


async def metrics_never_fail(trial: Trial) -> None:
    """Check that metrics have a value, no score, and never fail."""
    metrics = {
        found.type
        for found in trial.link.info.evaluator_types
        if found.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
    }
    for said, output in _outputs(trial):
        if said.task.type in metrics:
            if output.verdict == _FAILED:
                raise RuleBroken(f'"{said.task.type}" is a metric, but its verdict is FAILED')
            if output.HasField("score") and output.verdict != _ERROR:
                raise RuleBroken(f'"{said.task.type}" is a metric, but has a score')
            if output.verdict == _PASSED and not output.HasField("value"):
                raise RuleBroken(f'"{said.task.type}" is a metric, but has no value')


@_each
def errors_are_explained(output: _Output) -> str | None:
    """Check that `error` is set exactly when the verdict is ERROR."""
    if output.verdict == _ERROR and not output.HasField("error"):
        return "the verdict is ERROR, but error is not set"
    if output.verdict != _ERROR and output.HasField("error"):
        return "error is set, but the verdict is not ERROR"
    return None


@_each
def codes_are_known(output: _Output) -> str | None:
    """Check that error codes are those of the contract."""
    if output.HasField("error") and output.error.code not in CODES:
        return f"error.code is {output.error.code[:80]!r}, wanted one of {', '.join(CODES)}"
    return None


@_each
def reasons_are_short(output: _Output) -> str | None:
    """Check that reasons are within the limit; servers cut longer ones."""
    size = len(output.reason.encode())
    return f"reason has {size} bytes, wanted at most {MAX_REASON_BYTES}" if size > MAX_REASON_BYTES else None


async def outputs_are_small(trial: Trial) -> None:
    """Check that outputs are within the limits of size and depth."""
    for said in trial.link.outputs:
        if said.output is None:
            raise RuleBroken(f'"{said.task.type}": the output cannot be read')
    await _is_small(trial)


@_each
def _is_small(output: _Output) -> str | None:
    size = output.ByteSize()
    if size > MAX_OUTPUT_BYTES:
        return f"the output has {size} bytes, wanted at most {MAX_OUTPUT_BYTES}"
    try:
        plain_data("metadata", struct_to_dict(output.metadata))
    except ContractViolation as found:
        # NaN is no number, which is a rule of its own.
        return None if "finite" in str(found) else str(found)
    return None


@_each
def pending_means_failed(output: _Output) -> str | None:
    """Check that `pending` is set on failed results only."""
    if output.pending and output.verdict != _FAILED:
        return "pending is set, but the verdict is not FAILED"
    return None
