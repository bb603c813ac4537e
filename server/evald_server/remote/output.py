"""What a plugin says about a task, as a Result that holds to the contract."""

import math
import struct
from typing import Final

from google.protobuf.message import DecodeError

from evald.contract import ContractViolation, checked
from evald.plugin.v1 import task_pb2
from evald.result import Check, ErrorInfo, Kind, Result, TokenUsage, Verdict
from evald.structs import struct_to_dict

from .task import Broken

_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}

# Looking a member up on the enum class costs as much as a whole check.
_ERROR, _ASSERTION = Verdict.ERROR, Kind.ASSERTION
_PLAIN_VERDICTS: Final = {number: verdict for number, verdict in _VERDICTS.items() if verdict is not _ERROR}

# Fields of evald.plugin.v1.EvaluationOutput, as they begin on the wire.
_VERDICT, _VALUE, _REASON, _SCORE = 0x08, 0x11, 0x1A, 0x41
_ONE_BYTE: Final = 127  # the largest length that takes one byte
_double: Final = struct.Struct("<d").unpack_from

_EMPTY: Final = b""


def read_output(data: bytes, kind: Kind, *, most_bytes: int) -> Result:
    """The result. Raises Broken that names the field."""
    if data == _EMPTY:
        raise Broken("output: missing, or empty; wanted a verdict")
    if len(data) > most_bytes:
        raise Broken(f"output: {len(data)} bytes; at most {most_bytes} are allowed")
    result = _read_plain(data)
    if result is None:
        result = _read_any(data)
    elif kind is _ASSERTION and result.value is None and (result.score is None or 0 <= result.score <= 1):
        return result
    try:
        return checked(kind, result)
    except ContractViolation as problem:
        raise Broken(str(problem)) from None


def _read_plain(data: bytes) -> Result | None:
    """An output that says no more than verdict, short reason, score and value, as most do; None for others.

    What `_read_any` reads in it, at a third of the price: after a wait, when nothing is in the processor's
    caches, making a message and asking it is a fifth of all that a remote evaluator adds to a call.
    """
    verdict, reason = 0, ""
    score = value = None
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            if tag == _VERDICT:
                verdict = data[at + 1]
                at += 2
            elif tag == _REASON:
                length = data[at + 1]
                if length > _ONE_BYTE:
                    return None
                reason = data[at + 2 : at + 2 + length].decode()
                at += 2 + length
            elif tag == _SCORE:
                (score,) = _double(data, at + 1)
                at += 9
            elif tag == _VALUE:
                (value,) = _double(data, at + 1)
                at += 9
            else:
                return None
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    known = _PLAIN_VERDICTS.get(verdict)
    return None if known is None or at != end else Result(known, reason, score, value)


def _read_any(data: bytes) -> Result:
    """Any output. Raises Broken."""
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
    result = Result(
        verdict,
        pb.reason,
        pb.score if pb.HasField("score") else None,
        pb.value if pb.HasField("value") else None,
    )
    if pb.HasField("metadata"):
        result.metadata = struct_to_dict(pb.metadata)
    if pb.checks:
        result.checks = [Check(found.text, found.met, found.evidence) for found in pb.checks]
    result.pending, result.unproven = pb.pending, pb.unproven
    if pb.HasField("error"):
        result.error = ErrorInfo(pb.error.code, pb.error.message, pb.error.metadata)
    if pb.HasField("token_usage"):
        usage = pb.token_usage
        result.token_usage = TokenUsage(
            *(getattr(usage, name) if usage.HasField(name) else None for name in TokenUsage._fields)
        )
    if pb.HasField("cost"):
        result.cost_usd = _read_cost(pb)
    return result


def _read_cost(pb: task_pb2.EvaluationOutput) -> float | None:
    amount = pb.cost.amount
    if not (math.isfinite(amount) and amount >= 0):
        raise Broken(f"cost.amount: got {amount}, wanted 0 or more")
    # Amounts of other currencies cannot be added up with these.
    return amount if pb.cost.currency_code in ("USD", "") else None
