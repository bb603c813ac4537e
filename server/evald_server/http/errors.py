"""HTTP responses for failed calls: google.rpc.Status in ProtoJSON, or Connect's error for Connect clients."""

import base64
import math
import struct
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2, status_pb2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from evald_server.call_errors import CallError
from evald_server.rpc.errors import code_of, details_of

from .calls import CallFailed
from .streams import json_bytes

_HTTP: Final = {
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}

_HTTP_OF_REASON: Final = {"MESSAGE_TOO_LARGE": 413, "STORAGE_FULL": 507, "RESOURCE_CHANGED": 412}

# HTTP statuses of requests that are refused before there is a call.
_CODES: Final = {
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    421: grpc.StatusCode.FAILED_PRECONDITION,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

# The flag of the envelope that ends a stream.
_CONNECT_END: Final = 0x02

# Connect spells it with one l.
_CONNECT_CODES: Final = {grpc.StatusCode.CANCELLED: "canceled"}


def failed(problem: CallError) -> CallFailed:
    """Convert a CallError to the CallFailed that calls raise."""
    return CallFailed(code_of(problem), problem.message, details_of(problem))


def status_of(problem: CallFailed) -> status_pb2.Status:
    """Return the google.rpc.Status of a failed call, with the full message."""
    status = status_pb2.Status.FromString(problem.details)
    status.code = problem.code.value[0]
    status.message = problem.message
    return status


def as_json(problem: CallFailed) -> dict[str, Any]:
    """Return the google.rpc.Status of a failed call in ProtoJSON."""
    status = status_of(problem)
    # ProtoJSON omits a code of 0; no failure has it, but the schema requires the key.
    return {"code": status.code, **MessageToDict(status)}


def error_info(problem: CallFailed) -> error_details_pb2.ErrorInfo:
    """Return the reason and metadata of a failed call; empty if gRPC itself ended the call."""
    info = error_details_pb2.ErrorInfo()
    for detail in status_of(problem).details:
        if detail.Unpack(info):
            break
    return info


def http_status(problem: CallFailed) -> int:
    """Return the HTTP status of a failed call."""
    return _HTTP_OF_REASON.get(error_info(problem).reason, _HTTP[problem.code])


def connect_error(problem: CallFailed) -> dict[str, Any]:
    """Return a failed call as Connect's error."""
    code = _CONNECT_CODES.get(problem.code, problem.code.name.lower())
    details = [
        {
            "type": detail.TypeName(),
            "value": base64.b64encode(detail.value).decode().rstrip("="),
            "debug": {key: value for key, value in MessageToDict(detail).items() if key != "@type"},
        }
        for detail in status_of(problem).details
    ]
    return {"code": code, "message": problem.message, **({"details": details} if details else {})}


def connect_end(problem: CallFailed | None = None) -> bytes:
    """Return the last envelope of a Connect stream. problem: the error of a failed call."""
    data = b"{}" if problem is None else json_bytes({"error": connect_error(problem)})
    return struct.pack(">BI", _CONNECT_END, len(data)) + data


def error_response(request: Request, problem: CallFailed) -> Response:
    """Return the response of a failed call, in the format of the request's protocol."""
    kind = request.headers.get("content-type", "")
    if kind.startswith("application/connect+"):
        return Response(connect_end(problem), media_type=kind)
    if "connect-protocol-version" in request.headers:
        body = connect_error(problem)
    else:
        body = as_json(problem)
        if request.url.path.startswith("/api/"):
            body["error"] = problem.message  # which EvalStudio's clients show
    return Response(json_bytes(body), http_status(problem), _headers(problem), "application/json")


def refusal(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return the response that refuses a request before any call. status: of HTTP."""
    problem = CallFailed(_CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT), message, b"")
    response = error_response(request, problem)
    response.status_code = status
    response.headers.update(headers or {})
    return response


async def on_call_failed(request: Request, problem: Exception) -> Response:
    """Return the response of a request whose call failed."""
    assert isinstance(problem, CallFailed)
    return error_response(request, problem)


async def on_http_exception(request: Request, problem: Exception) -> Response:
    """Return the response of a request that no route matches or that a route refuses."""
    assert isinstance(problem, HTTPException)
    message = problem.detail
    if problem.status_code == 404:
        message = f"{request.url.path[:200]} does not exist"
        if request.url.path.startswith("/api"):
            message += "; /api/openapi.json lists all paths"
    if problem.status_code == 405:
        allowed = (problem.headers or {}).get("Allow", "")
        message = f"{request.url.path[:200]}: got method {request.method[:20]}, wanted {allowed}"
    return refusal(request, problem.status_code, message, dict(problem.headers or {}))


def _headers(problem: CallFailed) -> dict[str, str]:
    headers = {}
    for detail in status_of(problem).details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            # The header takes whole seconds only.
            headers["Retry-After"] = str(max(1, math.ceil(info.retry_delay.ToTimedelta().total_seconds())))
    if problem.code is grpc.StatusCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    return headers
