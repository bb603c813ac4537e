"""What a plugin says about a task, as a Result that holds to the contract."""

import math
from typing import Any, Final

from google.protobuf.message import DecodeError

from evald.contract import violation
from evald.errorcodes import CODES
from evald.plugin.v1 import task_pb2
from evald.result import Check, ErrorInfo, Kind, Result, TokenUsage, Verdict
from evald.structs import struct_to_dict

from .task import Broken

_USAGE_FIELDS: Final = ("input_tokens", "output_tokens", "total_tokens")
_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}

_MOST_DETAILS: Final = 32
_MOST_DETAIL_TEXT: Final = 500

_EMPTY: Final = b""


def read_output(data: bytes, kind: Kind, *, most_bytes: int) -> Result:
    """The result. Raises Broken that names the field."""
    if data == _EMPTY:
        raise Broken("output: missing, or empty; wanted a verdict")
    if len(data) > most_bytes:
        raise Broken(f"output: {len(data)} bytes; at most {most_bytes} are allowed")
    try:
        pb = task_pb2.EvaluationOutput.FromString(data)
    except DecodeError:
        raise Broken(
            "output: not a readable EvaluationOutput: garbage, text that is not UTF-8, or metadata nested "
            "deeper than 32 levels"
        ) from None
    verdict = _VERDICTS.get(pb.verdict)
    if verdict is None:
        raise Broken(f"verdict: got {pb.verdict}, wanted PASSED, FAILED, ERROR or SKIPPED")
    reason = pb.reason
    score = pb.score if pb.HasField("score") else None
    value = pb.value if pb.HasField("value") else None
    result = Result(verdict, reason, score, value)
    # Most outputs have nothing else, which one question tells as well as eight do.
    if len(pb.ListFields()) > 1 + (reason != "") + (score is not None) + (value is not None):
        _read_more(pb, verdict, result)
    if verdict is Verdict.ERROR and result.score is not None:
        raise Broken("score: set, but the verdict is ERROR")
    problem = violation(kind, result)
    if problem is not None:
        raise Broken(problem)
    return result


def _read_more(pb: task_pb2.EvaluationOutput, verdict: Verdict, result: Result) -> None:
    """What an output may say besides verdict, reason, score and value."""
    if pb.HasField("metadata"):
        result.metadata = struct_to_dict(pb.metadata)
    if pb.checks:
        result.checks = [Check(found.text, found.met, found.evidence) for found in pb.checks]
    for name in ("pending", "unproven"):
        if getattr(pb, name):
            if verdict is not Verdict.FAILED:
                raise Broken(f"{name}: set, but the verdict is {verdict.name}")
            setattr(result, name, True)
    if pb.HasField("error"):
        result.error = _read_error(pb)
    if pb.HasField("token_usage"):
        result.token_usage = _read_usage(pb.token_usage)
    if pb.HasField("cost"):
        result.cost_usd = _read_cost(pb)


def _read_error(pb: task_pb2.EvaluationOutput) -> ErrorInfo:
    error = pb.error
    if error.code not in CODES:
        raise Broken(f"error.code: got {error.code[:80]!r}, wanted one of {', '.join(CODES)}")
    if len(error.metadata) > _MOST_DETAILS:
        raise Broken(f"error.metadata: {len(error.metadata)} entries; at most {_MOST_DETAILS} are allowed")
    details = {key[:_MOST_DETAIL_TEXT]: value[:_MOST_DETAIL_TEXT] for key, value in error.metadata.items()}
    return ErrorInfo(error.code, error.message, details)


def _read_usage(pb: Any) -> TokenUsage:
    counts = {name: getattr(pb, name) for name in _USAGE_FIELDS if pb.HasField(name)}
    for name, count in counts.items():
        if not 0 <= count < 1 << 53:
            raise Broken(f"token_usage.{name}: got {count}, wanted 0 or more")
    return TokenUsage(**counts)


def _read_cost(pb: task_pb2.EvaluationOutput) -> float | None:
    amount = pb.cost.amount
    if not (math.isfinite(amount) and amount >= 0):
        raise Broken(f"cost.amount: got {amount}, wanted 0 or more")
    # Amounts of other currencies cannot be added up with these.
    return amount if pb.cost.currency_code in ("USD", "") else None
