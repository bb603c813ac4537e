"""The statuses and details of errors that end a call.

A test compares the table of reasons with the one in protos/README.md.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from evald.v1 import evaluation_service_pb2
from evald_server.call_errors import BadField, CallError, invalid, refusal
from evald_server.engine.plan import InvalidPlan, Violation

DOMAIN: Final = "evald"

# Trailers count against the peer's header limit: 8 KiB by default in gRPC clients and in many proxies. A client that
# gets more sees RESOURCE_EXHAUSTED instead of the status. Base64 makes the details a third larger.
_MAX_DETAILS_BYTES: Final = 4000
_MAX_TEXT_BYTES: Final = 1000
_MAX_METADATA_BYTES: Final = 200
_MAX_MESSAGE_BYTES: Final = 2000

# More problems than fit into the details.
_MAX_PROBLEMS: Final = 100

# The largest Duration.
_MAX_DURATION_SECONDS: Final = 315_576_000_000

_SCORES: Final = ("score", "min_score", "mean_score", "confidence")


class Reason(NamedTuple):
    """A row of the table of reasons. retry: seconds before a retry; None: a retry does not help."""

    code: grpc.StatusCode
    retry: float | None = None


_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED

REASONS: Final[dict[str, Reason]] = {
    "UNREADABLE_MESSAGE": Reason(_INVALID),
    "INVALID_FIELD": Reason(_INVALID),
    "REQUEST_ID_REUSED": Reason(_INVALID),
    "UNKNOWN_TYPE": Reason(grpc.StatusCode.NOT_FOUND),
    "MESSAGE_TOO_LARGE": Reason(_EXHAUSTED),
    "OVERLOADED": Reason(_EXHAUSTED, 0.25),
    "TOO_MANY_STREAMS": Reason(_EXHAUSTED, 1.0),
    "CREDENTIALS_MISSING": Reason(_UNAUTHENTICATED),
    "CREDENTIALS_INVALID": Reason(_UNAUTHENTICATED),
    "CREDENTIALS_EXPIRED": Reason(_UNAUTHENTICATED),
    "ROLE_MISSING": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "NOT_OWNER": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "RATE_LIMITED": Reason(_EXHAUSTED, 1.0),
    "DRAINING": Reason(grpc.StatusCode.UNAVAILABLE, 1.0),
    "DEADLINE_TOO_SHORT": Reason(grpc.StatusCode.DEADLINE_EXCEEDED),
    "REVISION_GONE": Reason(grpc.StatusCode.OUT_OF_RANGE),
    "CONTRACT_VERSION_UNSUPPORTED": Reason(grpc.StatusCode.FAILED_PRECONDITION),
    "TYPE_TAKEN": Reason(grpc.StatusCode.ALREADY_EXISTS),
    "SCHEMA_DIFFERS": Reason(grpc.StatusCode.ALREADY_EXISTS),
    "INSTANCE_ID_TAKEN": Reason(grpc.StatusCode.ALREADY_EXISTS),
    "TYPE_NOT_ALLOWED": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "TARGET_NOT_ALLOWED": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "PLUGIN_BLOCKED": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "CONNECT_NOT_ALLOWED": Reason(grpc.StatusCode.PERMISSION_DENIED),
    "PLUGIN_DIFFERS": Reason(grpc.StatusCode.FAILED_PRECONDITION),
    "TOO_MANY_REMOTES": Reason(_EXHAUSTED, 10.0),
    "SESSION_REPLACED": Reason(grpc.StatusCode.ABORTED),
    "WORKER_SILENT": Reason(grpc.StatusCode.ABORTED, 1.0),
    "STORAGE_FULL": Reason(_EXHAUSTED, 10.0),
    "STORAGE_UNAVAILABLE": Reason(grpc.StatusCode.UNAVAILABLE, 1.0),
    "RESOURCE_NOT_FOUND": Reason(grpc.StatusCode.NOT_FOUND),
    "RESOURCE_EXISTS": Reason(grpc.StatusCode.ALREADY_EXISTS),
    "RESOURCE_CHANGED": Reason(grpc.StatusCode.ABORTED),
    "TYPE_OFFERED": Reason(grpc.StatusCode.FAILED_PRECONDITION),
    "RUN_STATUS": Reason(grpc.StatusCode.FAILED_PRECONDITION),
    "UNKNOWN_METHOD": Reason(grpc.StatusCode.UNIMPLEMENTED),
    "INTERNAL": Reason(grpc.StatusCode.INTERNAL),
}


def code_of(problem: CallError) -> grpc.StatusCode:
    """Return the status code of an error."""
    return REASONS[problem.reason].code


def details_of(problem: CallError) -> bytes:
    """Return the serialised google.rpc.Status of an error, of at most 4 KB."""
    code, retry_seconds = REASONS[problem.reason]
    if problem.retry_seconds is not None:
        retry_seconds = problem.retry_seconds
    status = status_pb2.Status(code=code.value[0], message=_cut(problem.message, _MAX_TEXT_BYTES))
    info = error_details_pb2.ErrorInfo(reason=problem.reason, domain=DOMAIN)
    for key, value in problem.metadata.items():
        info.metadata[key] = _cut(value, _MAX_METADATA_BYTES)
    _pack(status, info)
    if retry_seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(round(retry_seconds * 1000))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if problem.violations:
        request = error_details_pb2.BadRequest()
        room = _MAX_DETAILS_BYTES - status.ByteSize() - 100
        for violation in problem.violations:
            found = error_details_pb2.BadRequest.FieldViolation(
                field=violation.field[:200], description=violation.message[:500]
            )
            room -= found.ByteSize() + 8
            if room < 0:
                break
            request.field_violations.append(found)
        _pack(status, request)
    data: bytes = status.SerializeToString()
    return data


def check_enum(request: Message, field: str, largest: int) -> None:
    """Raise CallError for an unknown enum value."""
    got = getattr(request, field)
    if not 0 <= got <= largest:
        raise invalid(field, f"got {got}, wanted a value this server knows")


def impossible_values(message: Message, path: str) -> list[BadField]:
    """Return the first invalid values in a message of resources and runs. path: the message's.

    Invalid are NaN and infinity, which JSON cannot encode, scores outside 0 to 1, negative counts, costs and durations,
    and unknown enum values.
    """
    return [
        BadField(f"{path}{inner}", problem)
        for inner, problem in islice(_impossible_values(message), _MAX_PROBLEMS)
    ]


def _impossible_values(message: Message) -> Iterator[tuple[str, str]]:
    if isinstance(message, Duration):
        if not (0 <= message.seconds <= _MAX_DURATION_SECONDS and 0 <= message.nanos < 1_000_000_000):
            got = f"{message.seconds + message.nanos * 1e-9:.15g}s"
            yield "", f"got {got}, wanted a duration of 0 to {_MAX_DURATION_SECONDS}s"
        return
    # In a Struct, paths contain only its keys.
    is_plain = message.DESCRIPTOR.file.package == "google.protobuf"
    for field, value in message.ListFields():
        name = "" if is_plain else f".{field.name}"
        values: Iterator[tuple[str, Any]]
        if isinstance(value, Mapping):
            values = ((f'{name}["{str(key)[:100]}"]', value[key]) for key in value)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            values = ((f"{name}[{index}]", one) for index, one in enumerate(value))
        else:
            values = iter(((name, value),))
        for path, one in values:
            if isinstance(one, Message):
                for inner, problem in _impossible_values(one):
                    yield path + inner, problem
            elif isinstance(one, float):
                if not math.isfinite(one):
                    yield path, f"got {one}, wanted a finite number"
                elif field.name in _SCORES and not 0 <= one <= 1:
                    yield path, f"got {one}, wanted 0 to 1"
                elif field.full_name == "evald.v1.Cost.amount" and one < 0:
                    yield path, f"got {one}, wanted 0 or more"
            elif field.enum_type is not None:
                if one not in field.enum_type.values_by_number:
                    yield path, f"got {one}, wanted a value this server knows"
            elif isinstance(one, int) and one < 0 and not is_plain:  # a negative Timestamp is before 1970
                yield path, f"got {one}, wanted 0 or more"


def microseconds(message: Message, name: str, path: str) -> int:
    """Return a field's time in Unix microseconds; 0 if it is not set. path: the field's. Raises CallError."""
    if not message.HasField(name):
        return 0
    try:
        microseconds: int = getattr(message, name).ToMicroseconds()
    except ValueError:
        raise invalid(path, "wanted a time between the years 1 and 9999") from None
    return microseconds


def as_call_error(problem: InvalidPlan) -> CallError:
    """Convert the error of invalid specs."""
    found = [BadField(v.field, v.message, v.reason) for v in problem.violations]
    reason = "UNKNOWN_TYPE" if problem.unknown_type else "INVALID_FIELD"
    return refusal(found, reason, violation=found[0].reason)


def violations_response(violations: Sequence[Violation]) -> evaluation_service_pb2.ValidateSpecsResponse:
    """Return the response of ValidateSpecs."""
    response = evaluation_service_pb2.ValidateSpecsResponse()
    for found in violations:
        response.violations.add(
            index=found.index or 0,
            path=found.path,
            reason=found.reason,
            message=f"{found.field}: {found.message}",
        )
    return response


def trailer_text(message: str) -> str:
    """Return a message for a trailer, in which gRPC writes every byte but printable ASCII as three. Cut at 2000 bytes."""
    room = _MAX_MESSAGE_BYTES
    for position, character in enumerate(message):
        is_plain = " " <= character <= "~" and character != "%"
        room -= 1 if is_plain else 3 * len(character.encode(errors="replace"))
        if room < 0:
            return f"{message[:position]}…"
    return message


def _cut(text: str, most: int) -> str:
    """Return the beginning of a text. most: bytes in UTF-8."""
    return text.encode()[:most].decode(errors="ignore")


def _pack(status: status_pb2.Status, message: Message) -> None:
    packed = AnyMessage()
    packed.Pack(message)
    status.details.append(packed)
