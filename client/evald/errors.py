"""The errors of a call, by who must act.

EvaldError
├── InvalidRequest          the request is wrong: change it, do not retry
│   ├── InvalidInput        data that the SDK cannot send; also a ValueError
│   ├── UnknownEvaluator    the server has no evaluator of that type or version
│   └── RevisionGone        a watch asked for changes that the server no longer has
├── Unauthenticated         credentials are missing or wrong
├── PermissionDenied        the credentials do not allow the call
├── Overloaded              the server is at its limits: try again later
├── Unavailable             the server does not respond or is stopping: try again
├── DeadlineExceeded        the timeout was too short; also a TimeoutError
├── Cancelled               the call was cancelled
├── Unsupported             the server does not have the method: it is older than this client
├── TurnRefused             a session's turn could not be evaluated; the session continues
└── ServerError             a fault of the server: tell its operator

A failing evaluator raises none of these: its result has the verdict ERROR.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from .errorcodes import CODES, Category
from .records import present

if TYPE_CHECKING:
    from .v1 import result_pb2

_CATEGORIES: Final = {int(category): category for category in Category}

# What gRPC says of a connection that could not be made, and the likely cause.
_UNCONNECTED: Final = re.compile("all backends failing|failed to connect to all addresses")
_CAUSES: Final = {
    re.compile("Socket closed|Connection reset"): (
        "it may require TLS, or a client certificate that it trusts and that has not expired: tls=Tls(ca=, cert=, "
        "key=), or --ca, --cert and --key of a command; it may not be an evald server, or it may be stopping"
    ),
    re.compile("WRONG_VERSION_NUMBER"): "it does not use TLS: remove tls=, --tls, --ca and EVALD_TLS",
    re.compile("CERTIFICATE_VERIFY_FAILED|Hostname Verification|not in peer certificate"): (
        "its certificate has expired, does not contain this address, or is signed by a CA that is not trusted here; "
        "set the CA of the server with tls=Tls(ca=), or --ca of a command"
    ),
}


class FieldViolation(NamedTuple):
    """An invalid field of a request. field: a path such as `evaluators[2].config.maxMs`."""

    field: str
    message: str


class EvaldError(Exception):
    """Base class of all errors of a call.

    code: name of the gRPC status code, for example "INVALID_ARGUMENT"; "" if nothing was sent.
    reason: the server's name for the condition, for example "OVERLOADED"; "" if not sent.
    metadata: the dynamic parts of the message, for programs.
    violations: the invalid fields.
    retry_after_seconds: delay before a retry may succeed; None if not sent.
    hint: the next step for a user of this SDK; "" if the message says it. `str()` has it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[FieldViolation] = (),
        retry_after_seconds: float | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = list(violations)
        self.retry_after_seconds = retry_after_seconds
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        if len(self.violations) < 2:
            return text
        return "\n  ".join((text, *(f"{field}: {message}" for field, message in self.violations)))


class InvalidRequest(EvaldError):
    """The request is wrong; `violations` names the fields. The same request never works."""


class InvalidInput(InvalidRequest, ValueError):
    """The data cannot be sent. Raised before anything is sent.

    path: location of the invalid value, for example "messages[3].role".
    got: description of the value, for example "missing".
    wanted: description of valid values.
    """

    def __init__(self, path: str, got: str, wanted: str) -> None:
        self.path = path
        self.got = got
        self.wanted = wanted
        problem = f"{got}; wanted {wanted}"
        super().__init__(f"{path}: {problem}" if path else problem)
        self.violations = [FieldViolation(path, problem)]

    def below(self, parent: str) -> Self:
        """Return the same error with its path below a parent path."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return type(self)(f"{parent}{dot}{self.path}", self.got, self.wanted)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.got, self.wanted))


@contextmanager
def errors_below(parent: str) -> Iterator[None]:
    """Raise an InvalidInput of the `with` block with its path below a parent path."""
    try:
        yield
    except InvalidInput as problem:
        raise problem.below(parent) from None


class UnknownEvaluator(InvalidRequest):
    """The server has no evaluator of that type or version. The message suggests the nearest name."""


class RevisionGone(InvalidRequest):
    """The server no longer has the changes since that revision: watch again from 0."""


class Unauthenticated(EvaldError):
    """The call had no credentials, or wrong ones."""


class PermissionDenied(EvaldError):
    """The credentials do not allow this call."""


class Overloaded(EvaldError):
    """The server is at its limits and ran no evaluator: try again after `retry_after_seconds`."""


class Unavailable(EvaldError):
    """No server responds at the address, or the server is stopping: try again."""


class DeadlineExceeded(EvaldError, TimeoutError):
    """The call's deadline passed, or was too short to begin: allow more `timeout`."""


class Cancelled(EvaldError):
    """The call was cancelled."""


class Unsupported(EvaldError):
    """The server does not have the method: it is older than this client, or not an evald server."""


@dataclass(frozen=True, slots=True)
class EvaluatorError:
    """The error of an evaluator that gave no verdict: part of a result with the verdict ERROR.

    code: one of `evald.errorcodes.CODES`, or a newer server's code.
    category: who must act; None if this client does not know the category.
    message: for a developer.
    retryable: the same call may succeed later.
    metadata: the dynamic parts of the message.
    """

    code: str
    message: str
    category: Category | None = None
    retryable: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_pb(cls, pb: "result_pb2.EvaluationError") -> "EvaluatorError":
        """Create the record from the server's message."""
        return cls(pb.code, pb.message, _CATEGORIES.get(pb.category), pb.retryable, dict(pb.metadata))

    @classmethod
    def of_code(cls, code: str, message: str) -> "EvaluatorError":
        """Create an error that arose in this client, with the category of its code."""
        info = CODES[code]
        return cls(code, message, info.category, info.retryable)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON data in camelCase."""
        return present(
            {
                "code": self.code,
                "category": self.category.name if self.category else None,
                "message": self.message,
                "retryable": self.retryable,
                "metadata": dict(self.metadata),
            }
        )


class TurnRefused(EvaldError):
    """A session's turn could not be evaluated and counts as not passed; the session continues.

    error: code, category and message from the server.
    """

    def __init__(self, error: EvaluatorError) -> None:
        super().__init__(error.message, reason=error.code, metadata=error.metadata)
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return (TurnRefused, (self.error,))


class ServerError(EvaldError):
    """The server failed while handling the call."""

    @property
    def incident_id(self) -> str:
        """The id of the failure in the server's log; "" if the server sent none."""
        return self.metadata.get("incident", "")


_BY_CODE: dict[str, type[EvaldError]] = {
    "INVALID_ARGUMENT": InvalidRequest,
    "FAILED_PRECONDITION": InvalidRequest,
    "OUT_OF_RANGE": InvalidRequest,
    "ALREADY_EXISTS": InvalidRequest,
    "NOT_FOUND": InvalidRequest,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "RESOURCE_EXHAUSTED": Overloaded,
    "UNAVAILABLE": Unavailable,
    "ABORTED": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "CANCELLED": Cancelled,
    "UNIMPLEMENTED": Unsupported,
}
_BY_REASON: dict[str, type[EvaldError]] = {
    "UNKNOWN_TYPE": UnknownEvaluator,
    "REVISION_GONE": RevisionGone,
    "MESSAGE_TOO_LARGE": InvalidRequest,
    "RESOURCE_CHANGED": InvalidRequest,
}


def cause_of_no_connection(details: str) -> str:
    """Return the likely cause and the remedy if gRPC could connect to an address, but not talk to the server; else "".

    details: of the status.
    """
    if not _UNCONNECTED.search(details):
        return ""
    return next((text for pattern, text in _CAUSES.items() if pattern.search(details)), "")


def from_rpc_error(error: Any, server: str = "") -> EvaldError:
    """Convert a `grpc.RpcError` of a call to an error of this module.

    server: the address of the server, for the message.
    """
    code: str = error.code().name
    message: str = error.details() or ""
    details = _read_details(error.trailing_metadata() or ())
    reason = details.get("reason", "")
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code, ServerError)
    hint = ""
    if kind is Overloaded and not reason and "larger than max" in message:
        # gRPC itself rejects a large message, on either side; only the status text shows this.
        kind = InvalidRequest
        message = (
            f"a message is too large ({message} bytes); send shorter conversations or fewer in one call, or raise "
            f"max_message_bytes of Client and server"
        )
    if code == "UNAVAILABLE" and not reason and server:
        if cause := cause_of_no_connection(message):
            message = f"there is no connection to the server at {server} ({message}): {cause}"
        else:
            message = f"no evald server answers at {server} ({message})"
            hint = "start one with `evald serve`, or name another one with Client(server) or EVALD_SERVER"
    return kind(message or code, code=code, hint=hint, **details)


def _read_details(trailing_metadata: Iterable[Any]) -> dict[str, Any]:
    """Return arguments of EvaldError from ErrorInfo, BadRequest and RetryInfo in a call's trailing metadata."""
    data = next((value for key, value in trailing_metadata if key == "grpc-status-details-bin"), None)
    if data is None:
        return {}
    # Imported only here: they take as long as the rest of this module, and most calls succeed.
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    found: dict[str, Any] = {}
    try:
        details = status_pb2.Status.FromString(data).details
        for detail in details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                found |= {"reason": info.reason, "metadata": dict(info.metadata)}
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                request = error_details_pb2.BadRequest.FromString(detail.value)
                found["violations"] = [
                    FieldViolation(field.field, field.description) for field in request.field_violations
                ]
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                found["retry_after_seconds"] = delay.seconds + delay.nanos / 1e9
    except DecodeError:
        pass  # not from an evald server: the status code and its text are still valid
    return found
