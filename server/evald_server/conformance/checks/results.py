"""Rules for all outputs that the earlier checks recorded."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from evald.contract import MAX_REASON_BYTES, ContractViolation, plain_data
from evald.errorcodes import CODES
from evald.plugin.v1 import task_pb2
from evald.result import Kind
from evald.structs import struct_to_dict
from evald.v1 import evaluator_pb2, result_pb2
from evald_server.remote.errors import ContractError
from evald_server.remote.evaluator import read_output
from evald_server.remote.instance import MAX_OUTPUT_BYTES

from ..link import RecordedOutput
from ..rules import ContractRule, NotTestable, RuleBroken, Severity, Trial, need_unbroken, rule

_PASSED, _FAILED, _ERROR, _SKIPPED = (
    result_pb2.VERDICT_PASSED,
    result_pb2.VERDICT_FAILED,
    result_pb2.VERDICT_ERROR,
    result_pb2.VERDICT_SKIPPED,
)
_Output = task_pb2.EvaluationOutput


def _outputs(trial: Trial) -> Iterator[tuple[RecordedOutput, _Output]]:
    if not trial.link.outputs:
        raise NotTestable("no output was received")
    for said in trial.link.outputs:
        if said.output is not None:
            yield said, said.output


def _every_output(
    number: str, sentence: str, severity: Severity = Severity.MUST
) -> Callable[[Callable[[_Output], str | None]], ContractRule]:
    """Return a decorator: it makes a rule of a function that returns an output's problem, None for no problem."""

    def make(problem: Callable[[_Output], str | None]) -> ContractRule:
        async def check(trial: Trial) -> None:
            for said, output in _outputs(trial):
                found = problem(output)
                if found:
                    raise RuleBroken(f'"{said.task.type}": {found}')

        return rule(number, sentence, severity=severity, looks_back=True)(check)

    return make


@_every_output("EV80", "Verdicts are PASSED, FAILED, ERROR or SKIPPED.")
def _verdicts_are_known(output: _Output) -> str | None:
    if output.verdict in (_PASSED, _FAILED, _ERROR, _SKIPPED):
        return None
    return f"verdict is {output.verdict}, wanted PASSED, FAILED, ERROR or SKIPPED"


@_every_output("EV81", "Scores are from 0 to 1, and errors have no score.")
def _scores_are_in_range(output: _Output) -> str | None:
    if not output.HasField("score"):
        return None
    if output.verdict == _ERROR:
        return "score is set, but the verdict is ERROR"
    # NaN has a rule of its own.
    return None if math.isnan(output.score) or 0 <= output.score <= 1 else f"score is {output.score:g}"


@_every_output("EV82", "Numbers are finite.")
def _numbers_are_finite(output: _Output) -> str | None:
    for name, number in (
        ("score", output.score if not math.isinf(output.score) else 0.0),
        ("value", output.value),
        ("cost.amount", output.cost.amount),
    ):
        if not math.isfinite(number):
            return f"{name} is {number}"
    return None


@rule("EV83", "Metrics never fail, and have no score.", looks_back=True)
async def _metrics_never_fail(trial: Trial) -> None:
    metrics = _metrics(trial)
    for said, output in _outputs(trial):
        if said.task.type in metrics:
            if output.verdict == _FAILED:
                raise RuleBroken(f'"{said.task.type}" is a metric, but its verdict is FAILED')
            if output.HasField("score") and output.verdict != _ERROR:
                raise RuleBroken(f'"{said.task.type}" is a metric, but has a score')


def _metrics(trial: Trial) -> set[str]:
    """Return the types that are metrics."""
    return {
        found.type
        for found in trial.link.info.evaluator_types
        if found.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
    }


@_every_output("EV84", "`error` is set exactly when the verdict is ERROR.")
def _errors_are_explained(output: _Output) -> str | None:
    if output.verdict == _ERROR and not output.HasField("error"):
        return "the verdict is ERROR, but error is not set"
    if output.verdict != _ERROR and output.HasField("error"):
        return "error is set, but the verdict is not ERROR"
    return None


@_every_output("EV85", "Error codes are those of the contract.")
def _codes_are_known(output: _Output) -> str | None:
    if output.HasField("error") and output.error.code not in CODES:
        return f"error.code is {output.error.code[:80]!r}, wanted one of {', '.join(CODES)}"
    return None


@_every_output("EV86", "Reasons have at most 8 KiB.", severity=Severity.SHOULD)
def _reasons_are_short(output: _Output) -> str | None:
    size = len(output.reason.encode())
    return f"reason has {size} bytes, wanted at most {MAX_REASON_BYTES}" if size > MAX_REASON_BYTES else None


@rule("EV87", "Outputs are at most 1 MiB, their metadata 256 KiB, 32 levels, 10,000 items.", looks_back=True)
async def _outputs_are_small(trial: Trial) -> None:
    for said in trial.link.outputs:
        if said.output is None:
            raise RuleBroken(f'"{said.task.type}": the output cannot be parsed')
    for said, output in _outputs(trial):
        if problem := _size_problem(output):
            raise RuleBroken(f'"{said.task.type}": {problem}')


def _size_problem(output: _Output) -> str | None:
    size = output.ByteSize()
    if size > MAX_OUTPUT_BYTES:
        return f"the output has {size} bytes, wanted at most {MAX_OUTPUT_BYTES}"
    try:
        plain_data("metadata", struct_to_dict(output.metadata))
    except ContractViolation as found:
        # Numbers that are not finite have a rule of their own.
        return None if "finite" in str(found) else str(found)
    return None


@_every_output("EV88", "Only a failed verdict is pending.")
def _pending_means_failed(output: _Output) -> str | None:
    if output.pending and output.verdict != _FAILED:
        return "pending is set, but the verdict is not FAILED"
    return None


# Rules that explain why a server refuses an output.
_EXPLAINED: Final = (
    _verdicts_are_known,
    _scores_are_in_range,
    _numbers_are_finite,
    _metrics_never_fail,
    _errors_are_explained,
    _codes_are_known,
    _outputs_are_small,
    _pending_means_failed,
)


@rule("EV89", "A server accepts the outputs.", looks_back=True)
async def _are_accepted(trial: Trial) -> None:
    await need_unbroken(trial, _EXPLAINED)
    metrics = _metrics(trial)
    for said, output in _outputs(trial):
        try:
            read_output(output, Kind.METRIC if said.task.type in metrics else Kind.ASSERTION)
        except ContractError as problem:
            raise RuleBroken(f'"{said.task.type}": {problem}') from None


@rule("EV90", "Metrics measure.", severity=Severity.SHOULD, looks_back=True)
async def _metrics_measure(trial: Trial) -> None:
    metrics = _metrics(trial)
    for said, output in _outputs(trial):
        if said.task.type in metrics and output.verdict == _PASSED and not output.HasField("value"):
            raise RuleBroken(f'"{said.task.type}" is a metric, but has no value')
