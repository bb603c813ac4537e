"""Evaluations: of one conversation, of many, and checks of specs."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import grpc
from starlette.requests import Request
from starlette.responses import Response

from evald.convert.json_shapes import spec_to_json
from evald.convert.requests import batch_item, batch_open, evaluate_request, validate_request
from evald.convert.runs import evaluation_to_json, result_to_json
from evald.errors import InvalidInput
from evald.fields import flag, read_keys, shown
from evald.turn import Turn
from evald.v1 import context_pb2, evaluation_service_pb2, result_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.http.streams import SSE
from evald_server.suites.recorded_turns import context_data, first_of, last_turn

from .answers import LineStream, StreamLine, accepted, answer, converted, parsed, read
from .shapes import derived

_pb = evaluation_service_pb2

SERVICE: Final = "evald.v1.EvaluationService"

# Items in a message of a batch: between two of them the event loop may do something else.
_ITEMS: Final = 16

# Keys of a request beside those of a conversation.
_CALL: Final = ("evaluators", "options", "labels", "request_id", "requestId")
_OPEN: Final = {name: name for name in ("evaluators", "options", "labels", "brief")}


async def evaluate(site: Site, request: Request) -> Response:
    """Evaluate the last turn of a conversation."""
    asked = await read(request, lambda data: _request(data, request.headers.get("idempotency-key", "")))
    media = accepted(request)
    if media:
        return LineStream(_lines(site, request, asked), events=media == SSE)
    try:
        found = await site.calls.ask(
            f"{SERVICE}/EvaluateUnary",
            _pb.EvaluateUnaryRequest(request=asked),
            _pb.EvaluateUnaryResponse,
            site.access.caller(request),
        )
    except CallFailed as problem:
        raise _of_body(problem) from None
    data = await converted(found.ByteSize(), lambda: evaluation_to_json(found.summary, found.evaluation_id))
    return answer(data)


def _request(data: Any, request_id: str) -> _pb.EvaluateRequest:
    """Convert a request. Raises InvalidInput."""
    if not isinstance(data, Mapping):
        raise InvalidInput("", shown(data), 'an object with "messages" and "evaluators"')
    return evaluate_request(
        _context(data, _CALL),
        data.get("evaluators") or (),
        data.get("options"),
        data.get("labels"),
        request_id or first_of(data, ("request_id", "requestId")) or "",
    )


def _context(data: Mapping[str, Any], beside: tuple[str, ...]) -> context_pb2.EvaluatorContext:
    """Convert what a request says of a conversation, as `evald evaluate` reads it. Raises InvalidInput."""
    said = {key: value for key, value in data.items() if key not in beside}
    inner = first_of(said, ("lastInvocation", "last_invocation"))
    messages = said.get("messages") or (inner.get("messages") if isinstance(inner, Mapping) else None)
    if isinstance(messages, list) and all(isinstance(one, Mapping) for one in messages):
        return last_turn(said, messages, ignore_unknown=False).to_proto()
    return Turn.from_dict(context_data(said)).to_proto()


def _of_body(problem: CallFailed) -> CallFailed:
    """Return a failure with another status for what is missing in a body: 404 is for what the URL names."""
    if problem.code is not grpc.StatusCode.NOT_FOUND:
        return problem
    return CallFailed(grpc.StatusCode.INVALID_ARGUMENT, problem.message, problem.details)


async def _lines(site: Site, request: Request, asked: _pb.EvaluateRequest) -> AsyncGenerator[StreamLine]:
    """Yield what happens: `started`, `progress`, `result`, and the `summary` with all results last."""
    results: list[result_pb2.EvaluationResult] = []
    evaluation_id = ""
    caller = site.access.caller(request)
    try:
        async with site.calls.stream(f"{SERVICE}/Evaluate", asked.SerializeToString(), caller) as messages:
            async for message in messages:
                found = _pb.EvaluateResponse.FromString(message)
                if found.HasField("started"):
                    evaluation_id = found.started.evaluation_id
                    plan = [spec_to_json(spec) for spec in found.started.plan]
                    yield StreamLine("started", {"evaluationId": evaluation_id, "plan": plan})
                for progress in found.progress:
                    yield StreamLine("progress", derived(_pb.EvaluationProgress).write(progress))
                for result in found.results:
                    yield StreamLine("result", {"index": result.index, "result": result_to_json(result)})
                results.extend(found.results)
                if found.HasField("summary"):
                    results.sort(key=lambda result: result.index)
                    found.summary.results.extend(results)
                    yield StreamLine("summary", {"summary": evaluation_to_json(found.summary, evaluation_id)})
    except CallFailed as problem:
        raise _of_body(problem) from None


async def validate(site: Site, request: Request) -> Response:
    """Check specs, and run nothing."""

    def specs(data: Any) -> _pb.ValidateSpecsRequest:
        return validate_request(read_keys(data, {"evaluators": "evaluators"}, "").get("evaluators") or ())

    found = await site.calls.ask(
        f"{SERVICE}/ValidateSpecs",
        await read(request, specs),
        _pb.ValidateSpecsResponse,
        site.access.caller(request),
    )
    return answer({"violations": [derived(_pb.SpecViolation).write(one) for one in found.violations]})


async def evaluate_batch(site: Site, request: Request) -> Response:
    """Evaluate the last turns of many conversations."""
    lines = [line for line in (await request.body()).split(b"\n") if line.strip()]
    opened = await converted(0, lambda: _opened(lines[0] if lines else b""))
    return LineStream(_answers(site, request, _Items(opened, lines)), events=accepted(request) == SSE)


def _opened(line: bytes) -> _pb.BatchOpen:
    data = parsed(line, "line 1")
    try:
        found = read_keys(data, _OPEN, "")
        brief = flag(found.get("brief", False), "brief")
        return batch_open(
            found.get("evaluators") or (), found.get("options"), found.get("labels"), brief=brief
        )
    except InvalidInput as problem:
        raise problem.below("line 1") from None


class _Items:
    """The messages of a batch. refused: why lines were left out, by the id of their item."""

    def __init__(self, opened: _pb.BatchOpen, lines: list[bytes]) -> None:
        self._opened = opened
        self._lines = lines
        self.refused: list[tuple[str, InvalidInput]] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message = _pb.EvaluateBatchRequest(open=self._opened)
        for number, line in enumerate(self._lines[1:], start=2):
            self._add(message, number, line)
            if len(message.items) == _ITEMS:
                yield message.SerializeToString()
                message = _pb.EvaluateBatchRequest()
        if message.items or message.HasField("open"):
            yield message.SerializeToString()

    def _add(self, message: _pb.EvaluateBatchRequest, number: int, line: bytes) -> None:
        item_id = str(number)
        try:
            data = parsed(line, f"line {number}")
            if not isinstance(data, Mapping):
                raise InvalidInput(f"line {number}", shown(data), 'an object with "messages"')
            own = first_of(data, ("id", "conversationId", "conversation_id"))
            item_id = item_id if own is None else str(own)
            evaluators = data.get("evaluators") or ()
            message.items.append(batch_item(item_id, _context(data, ("evaluators",)), evaluators))
        except InvalidInput as problem:
            self.refused.append((item_id, problem))


async def _answers(site: Site, request: Request, items: _Items) -> AsyncGenerator[StreamLine]:
    """Yield an `answer` for each conversation, and the `summary` last."""
    caller = site.access.caller(request)
    refused = 0
    try:
        async with site.calls.stream(f"{SERVICE}/EvaluateBatch", aiter(items), caller) as messages:
            async for message in messages:
                found = _pb.EvaluateBatchResponse.FromString(message)
                for one in found.answers:
                    yield StreamLine("answer", _answer(one))
                for item_id, problem in items.refused:
                    yield StreamLine(
                        "answer", {"id": item_id, "error": {"code": "INVALID_ITEM", "message": str(problem)}}
                    )
                refused += len(items.refused)
                items.refused.clear()
                if found.HasField("summary"):
                    found.summary.item_count += refused
                    found.summary.error_count += refused
                    yield StreamLine("summary", {"summary": derived(_pb.BatchSummary).write(found.summary)})
    except CallFailed as problem:
        raise _of_body(problem) from None


def _answer(pb: _pb.BatchAnswer) -> dict[str, Any]:
    if pb.HasField("error"):
        return {"id": pb.item_id, "error": {"code": pb.error.code, "message": pb.error.message}}
    return {"id": pb.item_id, "evaluation": evaluation_to_json(pb.summary)}
