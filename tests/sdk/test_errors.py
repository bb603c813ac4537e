"""Every way in which a call can fail has one exception, which says what to do."""

import pickle
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from evald import EvaldError, InvalidInput, errors
from evald.errors import from_rpc_error
from evald_server.call_errors import BadField, CallError
from evald_server.rpc.errors import REASONS, code_of, details_of


class Failed(grpc.RpcError):
    """What a stub raises."""

    def __init__(self, code: grpc.StatusCode, message: str = "", details: bytes | None = None) -> None:
        super().__init__()
        self._code, self._message, self._bytes = code, message, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> Any:
        return None if self._bytes is None else (("x", "y"), ("grpc-status-details-bin", self._bytes))


CODES = {
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.UNKNOWN: errors.ServerError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: errors.InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: errors.InvalidRequest,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.FAILED_PRECONDITION: errors.InvalidRequest,
    grpc.StatusCode.ABORTED: errors.Unavailable,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
    grpc.StatusCode.INTERNAL: errors.ServerError,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DATA_LOSS: errors.ServerError,
}


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code.value[0]], ids=lambda code: code.name
)
def test_every_status_code_has_its_exception(code: grpc.StatusCode) -> None:
    problem = from_rpc_error(Failed(code, "what went wrong"))
    assert type(problem) is CODES[code]
    assert isinstance(problem, EvaldError)
    assert problem.code == code.name
    assert "what went wrong" in str(problem)


REASONS_KINDS = {
    "UNREADABLE_MESSAGE": errors.InvalidRequest,
    "INVALID_FIELD": errors.InvalidRequest,
    "REQUEST_ID_REUSED": errors.InvalidRequest,
    "UNKNOWN_TYPE": errors.UnknownEvaluator,
    "MESSAGE_TOO_LARGE": errors.InvalidRequest,
    "OVERLOADED": errors.Overloaded,
    "TOO_MANY_STREAMS": errors.Overloaded,
    "CREDENTIALS_MISSING": errors.Unauthenticated,
    "CREDENTIALS_INVALID": errors.Unauthenticated,
    "CREDENTIALS_EXPIRED": errors.Unauthenticated,
    "ROLE_MISSING": errors.PermissionDenied,
    "NOT_OWNER": errors.PermissionDenied,
    "RATE_LIMITED": errors.Overloaded,
    "DRAINING": errors.Unavailable,
    "DEADLINE_TOO_SHORT": errors.DeadlineExceeded,
    "REVISION_GONE": errors.RevisionGone,
    "CONTRACT_VERSION_UNSUPPORTED": errors.InvalidRequest,
    "TYPE_TAKEN": errors.InvalidRequest,
    "SCHEMA_DIFFERS": errors.InvalidRequest,
    "INSTANCE_ID_TAKEN": errors.InvalidRequest,
    "TYPE_NOT_ALLOWED": errors.PermissionDenied,
    "TARGET_NOT_ALLOWED": errors.PermissionDenied,
    "PLUGIN_BLOCKED": errors.PermissionDenied,
    "CONNECT_NOT_ALLOWED": errors.PermissionDenied,
    "PLUGIN_DIFFERS": errors.InvalidRequest,
    "TOO_MANY_REMOTES": errors.Overloaded,
    "SESSION_REPLACED": errors.Unavailable,
    "WORKER_SILENT": errors.Unavailable,
    "STORAGE_FULL": errors.Overloaded,
    "STORAGE_UNAVAILABLE": errors.Unavailable,
    "RESOURCE_NOT_FOUND": errors.InvalidRequest,
    "RESOURCE_EXISTS": errors.InvalidRequest,
    "RESOURCE_CHANGED": errors.InvalidRequest,
    "TYPE_OFFERED": errors.InvalidRequest,
    "RUN_STATUS": errors.InvalidRequest,
    "UNKNOWN_METHOD": errors.Unsupported,
    "INTERNAL": errors.ServerError,
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_server_has_its_exception_with_all_details(reason: str) -> None:
    refusal = CallError(reason, "the message", [BadField("a.b", "is wrong")], incident="i1", field="a.b")
    problem = from_rpc_error(Failed(code_of(refusal), refusal.message, details_of(refusal)), "host:1")
    assert type(problem) is REASONS_KINDS[reason]
    assert problem.reason == reason
    assert problem.metadata == {"incident": "i1", "field": "a.b"}
    assert problem.violations == [("a.b", "is wrong")]
    assert problem.retry_after_seconds == REASONS[reason].retry
    assert str(problem) == "the message"
    if isinstance(problem, errors.ServerError):
        assert problem.incident_id == "i1"


def test_all_violations_are_shown_when_there_are_several() -> None:
    refusal = CallError("INVALID_FIELD", "a: one (and 1 more)", [BadField("a", "one"), BadField("b", "two")])
    problem = from_rpc_error(Failed(code_of(refusal), refusal.message, details_of(refusal)))
    assert str(problem) == "a: one (and 1 more)\n  a: one\n  b: two"


def test_a_server_that_nobody_reaches_is_named_with_what_to_do() -> None:
    problem = from_rpc_error(Failed(grpc.StatusCode.UNAVAILABLE, "connection refused"), "10.0.0.1:50051")
    assert problem.message == "no evald server answers at 10.0.0.1:50051 (connection refused)"
    assert problem.hint.startswith("start one with `evald serve`")
    assert str(problem) == f"{problem.message}; {problem.hint}"


@pytest.mark.parametrize("side", ["Received", "CLIENT: Sent"])
def test_a_message_that_grpc_itself_finds_too_large_is_no_overload(side: str) -> None:
    message = f"{side} message larger than max (20 vs. 10)"
    assert type(from_rpc_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, message))) is errors.InvalidRequest


@pytest.mark.parametrize(
    "details",
    [b"\xff\xff", b"", status_pb2.Status(code=3).SerializeToString()],
    ids=["garbage", "nothing", "no details"],
)
def test_details_that_say_nothing_leave_the_status(details: bytes) -> None:
    problem = from_rpc_error(Failed(grpc.StatusCode.INVALID_ARGUMENT, "bad", details))
    assert type(problem) is errors.InvalidRequest
    assert (problem.reason, problem.violations, problem.retry_after_seconds) == ("", [], None)


def test_details_of_other_types_are_skipped() -> None:
    status = status_pb2.Status(code=8)
    status.details.add().Pack(error_details_pb2.DebugInfo(detail="secret"))
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay={"nanos": 250_000_000}))
    problem = from_rpc_error(Failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", status.SerializeToString()))
    assert problem.retry_after_seconds == 0.25
    assert "secret" not in str(problem)


def test_builtin_exceptions_catch_what_they_should() -> None:
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.DeadlineExceeded, TimeoutError)
    with pytest.raises(TimeoutError, match="too slow"):
        raise from_rpc_error(Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow"))


def test_errors_survive_a_process_pool() -> None:
    refused = pickle.loads(pickle.dumps(InvalidInput("a.b", "missing", "text")))
    assert (refused.path, refused.got, refused.wanted, str(refused)) == (
        "a.b",
        "missing",
        "text",
        "a.b: missing; wanted text",
    )
    overloaded = pickle.loads(pickle.dumps(errors.Overloaded("busy", code="X", retry_after_seconds=0.5)))
    assert (str(overloaded), overloaded.code, overloaded.retry_after_seconds) == ("busy", "X", 0.5)


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    drawn = [line.split("──")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, EvaldError) and value is not EvaldError
    ]
    assert sorted(drawn) == sorted(classes)
