"""Statuses of calls as statuses and bodies of HTTP."""

import base64
import json
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from starlette.requests import Request

from evald_server.call_errors import BadField, CallError, refusal
from evald_server.http.calls import CallFailed
from evald_server.http.errors import error_response, failed
from evald_server.rpc.errors import REASONS

STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def _request(path: str = "/evald.v1.S/M", **headers: str) -> Request:
    found = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": found})


def _body(response: Any) -> Any:
    return json.loads(response.body)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_code_has_its_http_status(code: grpc.StatusCode) -> None:
    response = error_response(_request(), CallFailed(code, "why", b""))
    assert response.status_code == STATUSES[code.name]
    assert _body(response) == {"code": code.value[0], "message": "why"}
    assert ("www-authenticate" in response.headers) == (code is grpc.StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_has_its_http_status_and_its_time_to_come_back(reason: str) -> None:
    response = error_response(_request(), failed(CallError(reason, "why")))
    special = {"MESSAGE_TOO_LARGE": 413, "STORAGE_FULL": 507, "RESOURCE_CHANGED": 412}
    assert response.status_code == special.get(reason, STATUSES[REASONS[reason].code.name])
    retry = REASONS[reason].retry
    assert response.headers.get("retry-after") == (None if retry is None else str(max(1, int(retry))))


def test_the_body_has_the_whole_message_and_the_details() -> None:
    long = "x" * 5000
    body = _body(error_response(_request(), failed(refusal([BadField("a.b", long)]))))
    assert body["message"] == f"a.b: {long}"
    assert [one["@type"].rpartition(".")[2] for one in body["details"]] == ["ErrorInfo", "BadRequest"]
    assert "error" not in body


def test_clients_below_api_find_the_message_where_evalstudio_has_it() -> None:
    problem = failed(CallError("RUN_STATUS", "the run has ended"))
    response = error_response(_request("/api/runs/1/cancel"), problem)
    assert _body(response)["error"] == "the run has ended"


def test_connects_clients_get_connects_error() -> None:
    problem = failed(CallError("RESOURCE_NOT_FOUND", "no such run", id="1"))
    response = error_response(_request(connect_protocol_version="1"), problem)
    body = _body(response)
    assert (response.status_code, body["code"], body["message"]) == (404, "not_found", "no such run")
    (detail,) = body["details"]
    value = detail["value"]
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(value + "=" * (-len(value) % 4)))
    assert (detail["type"], info.reason) == ("google.rpc.ErrorInfo", "RESOURCE_NOT_FOUND")
    assert detail["debug"] == {"reason": "RESOURCE_NOT_FOUND", "domain": "evald", "metadata": {"id": "1"}}
    assert _body(
        error_response(_request(connect_protocol_version="1"), CallFailed(grpc.StatusCode.CANCELLED, "", b""))
    ) == {"code": "canceled", "message": ""}


def test_connects_streams_get_their_error_in_an_envelope() -> None:
    response = error_response(
        _request(content_type="application/connect+json"), failed(CallError("INTERNAL", "broken"))
    )
    body = bytes(response.body)
    assert (response.status_code, body[0], int.from_bytes(body[1:5], "big")) == (200, 2, len(body) - 5)
    assert json.loads(body[5:])["error"]["code"] == "internal"
