"""Every method over HTTP says what it says over gRPC, and is counted as it is there."""

import asyncio
import importlib
import json
import pkgutil
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

import evald.v1
from evald.v1 import catalog_service_pb2, evaluation_service_pb2, run_service_pb2, scenario_service_pb2
from evald_server.evaluators import BUILT_INS

from ..rpc.live import CONTAINS, Live, request, serving, spec, until
from .exchange import JSON, Exchange, post, send

PROTO = {"content-type": "application/proto"}


def _methods() -> Iterator[Any]:
    for module in pkgutil.iter_modules(evald.v1.__path__):
        if module.name.endswith("_service_pb2"):
            file = importlib.import_module(f"evald.v1.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                yield from service.methods


METHODS = {f"{found.containing_service.full_name}/{found.name}": found for found in _methods()}
OVER_HTTP = sorted(name for name, found in METHODS.items() if not found.client_streaming)
GRPC_ONLY = sorted(name for name, found in METHODS.items() if found.client_streaming)


@pytest.fixture(name="live", scope="module")
async def _live() -> AsyncIterator[Live]:
    async with serving(web="127.0.0.1:0") as live:
        yield live


def web(live: Live) -> str:
    """The address of the web port."""
    assert live.app.web_address is not None
    return live.app.web_address


async def over_grpc(live: Live, method: str, data: bytes) -> Any:
    """What a call says, as JSON: its messages, and google.rpc.Status if it failed. Of a watch the first message."""
    found = METHODS[method]
    call: Any = live.channel.unary_stream(f"/{method}")(data)
    answers = []
    try:
        async for answer in call:
            answers.append(_shown(found, answer))
            if _is_watch(found):
                call.cancel()
                break
    except grpc.aio.AioRpcError as error:
        status = status_pb2.Status()
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status.ParseFromString(value)
        status.code, status.message = error.code().value[0], error.details()
        answers.append({"error": {"code": status.code, **json_format.MessageToDict(status)}})
    return answers


def _is_watch(method: Any) -> bool:
    return bool(method.server_streaming and method.name.startswith("Watch"))


def _shown(method: Any, data: bytes) -> Any:
    return json_format.MessageToDict(GetMessageClass(method.output_type).FromString(data))


async def over_http(live: Live, method: str, data: bytes, *, in_json: bool) -> Any:
    """The same over HTTP: of unary methods with JSON or protobuf, of streams with NDJSON or Connect's protobuf."""
    found = METHODS[method]
    body, headers = data, PROTO
    if in_json:
        message = GetMessageClass(found.input_type).FromString(data)
        body, headers = json_format.MessageToJson(message).encode(), JSON
    elif found.server_streaming:
        body, headers = envelope(data), {"content-type": "application/connect+proto"}
    if _is_watch(found):
        headers = headers | {"connect-timeout-ms": "300"}
    answer = await send(web(live), "POST", f"/{method}", headers, body)
    if found.server_streaming and not in_json:
        return _opened(found, answer)
    if answer.status != 200:
        return [{"error": answer.json}]
    if found.server_streaming:
        lines = answer.lines
        return lines[:1] if _is_watch(found) else lines
    return [answer.json if in_json else _shown(found, answer.body)]


def envelope(data: bytes) -> bytes:
    """A message of a Connect stream."""
    return struct.pack(">BI", 0, len(data)) + data


def envelopes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Flags and contents of the messages of a Connect stream."""
    while data:
        flags, length = struct.unpack_from(">BI", data)
        yield flags, data[5 : 5 + length]
        data = data[5 + length :]


def _opened(method: Any, answer: Exchange) -> list[Any]:
    assert answer.status == 200
    *messages, (flags, last) = envelopes(answer.body)
    assert flags == 2, "a stream ends with its status"
    found: list[Any] = [_shown(method, message) for _, message in messages]
    if _is_watch(method) and found:
        return found[:1]
    if error := json.loads(last).get("error"):
        code = grpc.StatusCode[error["code"].upper().replace("CANCELED", "CANCELLED")].value[0]
        details = [
            {"@type": f"type.googleapis.com/{one['type']}", **one["debug"]}
            for one in error.get("details", ())
        ]
        found.append({"error": {"code": code, "message": error["message"]}})
        if details:
            found[-1]["error"]["details"] = details
    return found


def comparable(value: Any) -> Any:
    """Without what differs between two calls: ids and times."""
    if isinstance(value, dict):
        return {
            key: comparable(found)
            for key, found in value.items()
            if key not in ("duration", "evaluationId", "startTime", "incident")
        }
    return [comparable(found) for found in value] if isinstance(value, list) else value


def handled(live: Live) -> dict[tuple[str, str], float]:
    """`grpc_server_handled_total` by method and code."""
    body, _ = live.app.telemetry.exposition("")
    found = {}
    for line in body.decode().splitlines():
        if line.startswith("grpc_server_handled_total{"):
            name, code = (
                line.partition(f'{key}="')[2].partition('"')[0] for key in ("grpc_method", "grpc_code")
            )
            found[name, code] = float(line.rpartition(" ")[2])
    return found


def test_the_contract_has_methods_of_all_kinds() -> None:
    assert {"EvaluateUnary", "Evaluate", "WatchRun"} <= {name.partition("/")[2] for name in OVER_HTTP}
    assert "evald.v1.EvaluationService/EvaluateSession" in GRPC_ONLY


@pytest.mark.parametrize("in_json", [True, False], ids=["json", "proto"])
@pytest.mark.parametrize("method", OVER_HTTP)
async def test_every_method_answers_at_its_path(live: Live, method: str, in_json: bool) -> None:
    expected = await over_grpc(live, method, b"")
    assert comparable(await over_http(live, method, b"", in_json=in_json)) == comparable(expected)


@pytest.mark.parametrize("method", GRPC_ONLY)
async def test_a_method_that_takes_a_stream_says_that_it_needs_grpc(live: Live, method: str) -> None:
    answer = await send(web(live), "POST", f"/{method}", JSON, b"{}")
    assert (answer.status, answer.json["code"]) == (501, 12)
    assert "gRPC only" in answer.json["message"]


@pytest.mark.parametrize("method", ["EvaluationService/Nothing", "NothingService/Nothing"])
async def test_a_method_that_does_not_exist_is_refused_as_grpc_refuses_it(live: Live, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await live.raw(f"/evald.v1.{method}", b"")
    answer = await post(web(live), method, {})
    assert (answer.status, answer.json["code"], answer.json["message"]) == (404, 12, failed.value.details())


def _turns() -> Iterator[evaluation_service_pb2.EvaluateRequest]:
    """Requests of which about half are refused: each built-in type with no config, a wrong one, and a wrong use."""
    for name in sorted(BUILT_INS):
        yield request(spec(name))
        yield request(spec(name, {"noSuchKey": 1}))
        yield request(CONTAINS, spec(name, name="x" * 300))
    yield request()
    yield evaluation_service_pb2.EvaluateRequest(evaluators=[CONTAINS])
    yield request(CONTAINS, spec("no-such-type"))
    yield request(spec("contains", {"text": "hello"}), spec("contains", {"text": "nowhere"}))
    yield request(spec("regex", {"pattern": "["}))
    yield request(CONTAINS, answer="\u202e\U0001f600 " * 100)


def _cases() -> Iterator[tuple[str, Message]]:
    for turn in _turns():
        yield (
            "evald.v1.EvaluationService/EvaluateUnary",
            evaluation_service_pb2.EvaluateUnaryRequest(request=turn),
        )
        yield "evald.v1.EvaluationService/Evaluate", turn
        checked = evaluation_service_pb2.ValidateSpecsRequest(evaluators=turn.evaluators)
        yield "evald.v1.EvaluationService/ValidateSpecs", checked
    for name in (*BUILT_INS, "no-such-type", ""):
        asked = catalog_service_pb2.GetEvaluatorTypeRequest(type=name)
        yield "evald.v1.CatalogService/GetEvaluatorType", asked
    for size in (0, 3, -1, 1 << 30):
        listed = catalog_service_pb2.ListEvaluatorTypesRequest(page_size=size)
        yield "evald.v1.CatalogService/ListEvaluatorTypes", listed
    yield "evald.v1.RunService/GetRun", run_service_pb2.GetRunRequest(run_id="none")
    yield "evald.v1.RunService/WatchRun", run_service_pb2.WatchRunRequest(run_id="none")
    yield "evald.v1.ScenarioService/GetScenario", scenario_service_pb2.GetScenarioRequest(scenario_id="none")


CASES = list(_cases())


async def test_200_valid_and_refused_requests_say_over_http_what_they_say_over_grpc_and_count_once(
    live: Live,
) -> None:
    assert len(CASES) >= 200
    start = handled(live)
    said = [await over_grpc(live, method, message.SerializeToString()) for method, message in CASES]
    between = handled(live)
    for number, (method, message) in enumerate(CASES):
        got = await over_http(live, method, message.SerializeToString(), in_json=number % 2 == 0)
        assert comparable(got) == comparable(said[number]), f"{method} {message}"
    end = handled(live)
    by_grpc = {key: between[key] - start.get(key, 0) for key in end}
    assert {key: end[key] - between[key] for key in end} == by_grpc
    assert sum(by_grpc.values()) == len(CASES)
    assert 50 <= sum("error" in answers[-1] for answers in said) <= len(CASES) - 50


async def test_a_body_that_is_no_json_is_refused_by_name_and_counted(live: Live) -> None:
    before = handled(live).get(("EvaluateUnary", "InvalidArgument"), 0)
    for body, said in [
        (b"{", "Failed to load JSON"),
        (b'{"reqest": {}}', "no field named"),
        (b"\xff", "utf-8"),
        (b'{"request": {"evaluators": [{"config": "hunter2 at home"}]}}', "Struct must be in a dict at"),
        # A pattern that looks for a quoted value at each " which is" takes minutes.
        (b'{"%b": 1, "%b": 1}' % ((b" which is" * 60_000,) * 2), "duplicate key"),
    ]:
        answer = await send(web(live), "POST", "/evald.v1.EvaluationService/EvaluateUnary", JSON, body)
        assert answer.status == 400
        assert said in answer.json["message"]
        assert "hunter2" not in answer.json["message"]
        assert answer.json["details"][0]["reason"] == "UNREADABLE_MESSAGE"
    assert handled(live)["EvaluateUnary", "InvalidArgument"] == before + 5


async def test_json_that_is_nested_too_deep_is_refused(live: Live) -> None:
    body = b'{"request": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = await send(web(live), "POST", "/evald.v1.EvaluationService/EvaluateUnary", JSON, body)
    assert answer.status == 400


async def test_a_large_message_is_converted_beside_the_event_loop(live: Live) -> None:
    turn = request(CONTAINS, answer="hello " * 100_000)
    message = evaluation_service_pb2.EvaluateUnaryRequest(request=turn)
    answer = await over_http(
        live, "evald.v1.EvaluationService/EvaluateUnary", message.SerializeToString(), in_json=True
    )
    assert answer[0]["summary"]["success"]


async def test_an_idempotency_key_makes_a_retry_safe(live: Live) -> None:
    key = {"idempotency-key": "2b9c4c4e-8b0f-4e3a-9d1b-0d6f8b7f5a11"}
    turn = json_format.MessageToDict(request(CONTAINS))
    first, second = [
        (await post(web(live), "EvaluationService/EvaluateUnary", {"request": turn}, key)).json
        for _ in range(2)
    ]
    assert first == second
    assert first["evaluationId"] == key["idempotency-key"]
    streamed = await post(web(live), "EvaluationService/Evaluate", turn, key | {"x": ""})
    assert streamed.lines[0]["started"]["evaluationId"] == key["idempotency-key"]


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "12345678901"])
async def test_a_timeout_that_is_none_is_refused(live: Live, text: str) -> None:
    answer = await post(
        web(live), "CatalogService/GetEvaluatorType", {"type": "regex"}, {"connect-timeout-ms": text}
    )
    assert answer.status == 400
    assert answer.json["details"][1]["fieldViolations"][0]["field"] == "Connect-Timeout-Ms"


async def test_a_stream_ends_at_its_deadline(live: Live) -> None:
    answer = await post(web(live), "CatalogService/WatchEvaluatorTypes", {}, {"connect-timeout-ms": "100"})
    assert answer.status == 200
    assert answer.lines[-1] == {"error": {"code": 4, "message": "Deadline Exceeded"}}


async def test_server_sent_events_carry_the_messages_of_a_stream(live: Live) -> None:
    turn = json_format.MessageToDict(request(CONTAINS))
    answer = await post(web(live), "EvaluationService/Evaluate", turn, {"accept": "text/event-stream"})
    assert answer.headers["content-type"] == "text/event-stream"
    events = answer.body.decode().removesuffix("\n\n").split("\n\n")
    assert json.loads(events[-1].removeprefix("data: "))["summary"]["success"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("EvaluateUnary", "text/plain"),
        ("EvaluateUnary", ""),
        ("EvaluateUnary", "application/connect+json"),
        ("EvaluateUnary", "application/x-www-form-urlencoded"),
        ("Evaluate", "application/proto"),
        ("Evaluate", "multipart/form-data; boundary=x"),
    ],
)
async def test_another_media_type_is_refused_with_those_that_are_taken(
    live: Live, method: str, kind: str
) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = await send(web(live), "POST", f"/evald.v1.EvaluationService/{method}", headers, b"{}")
    assert answer.status == 415
    assert "application/json" in answer.headers["accept-post"]


async def test_a_compressed_body_is_refused(live: Live) -> None:
    answer = await post(web(live), "EvaluationService/ValidateSpecs", {}, {"content-encoding": "gzip"})
    assert (answer.status, answer.json["code"]) == (501, 12)


TURN = request(CONTAINS).SerializeToString()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "unimplemented"),
        (TURN[:4], "unimplemented"),
        (struct.pack(">BI", 0, len(TURN) + 1) + TURN, "unimplemented"),
        (struct.pack(">BI", 0, len(TURN) - 1) + TURN, "unimplemented"),
        (struct.pack(">BI", 2, len(TURN)) + TURN, "unimplemented"),
        (struct.pack(">BI", 1, len(TURN)) + TURN, "internal"),
        (envelope(TURN) * 2, "unimplemented"),
    ],
    ids=["nothing", "too short", "cut off", "more than its length", "flags", "compressed", "two"],
)
async def test_a_connect_stream_takes_one_whole_message(live: Live, body: bytes, code: str) -> None:
    headers = {"content-type": "application/connect+proto"}
    answer = await send(web(live), "POST", "/evald.v1.EvaluationService/Evaluate", headers, body)
    ((flags, last),) = envelopes(answer.body)
    assert flags == 2
    assert json.loads(last)["error"]["code"] == code


async def test_a_draining_server_says_when_to_come_back_and_ends_its_streams_with_a_last_event() -> None:
    async with serving(web="127.0.0.1:0") as live:
        address = web(live)
        watching = asyncio.create_task(post(address, "CatalogService/WatchEvaluatorTypes", {}))
        await until(lambda: live.app._rpc.open_streams)
        live.app._rpc.draining = True
        refused = await post(address, "CatalogService/GetEvaluatorType", {"type": "regex"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        await live.app.stop(0)
        answer = await watching
        assert answer.status == 200
        assert answer.lines[-1]["error"]["details"][0]["reason"] == "DRAINING"
