"""Evaluations: of one conversation, of many, and checks of specs."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final, TypeAlias

import grpc
from starlette.requests import Request
from starlette.responses import Response

from evald.convert.json_shapes import TEXT_MAP, spec_to_json
from evald.convert.requests import batch_item, batch_open, evaluate_request, validate_request
from evald.convert.runs import evaluation_schema, evaluation_to_json, result_to_json
from evald.errors import InvalidInput
from evald.fields import first_of, flag, read_keys, shown
from evald.v1 import context_pb2, evaluation_service_pb2, result_pb2
from evald_server.http.calls import CallFailed
from evald_server.http.site import Site
from evald_server.http.streams import NDJSON
from evald_server.loop import in_thread_if_large
from evald_server.suites.recorded_turns import last_turn

from .answers import StreamLine, accepted, converted, lines, lines_of, parsed, read, written
from .methods import AnswerPart, Body, unary
from .openapi import ApiRoute
from .shapes import CONVERSATION, EVALUATORS, FLAG, OPTIONS, TEXT, VIOLATIONS, derived, line_of, record

_pb = evaluation_service_pb2

_SERVICE: Final = "evald.v1.EvaluationService"

# Most items in a message of a batch.
_ITEMS: Final = 16

# Invalid lines of a batch: the id of each item, and the error. One thread adds to it, another one removes.
_Refused: TypeAlias = deque[tuple[str, InvalidInput]]

# Keys of a request that do not belong to its conversation.
_CALL: Final = ("evaluators", "options", "labels", "request_id", "requestId")
_OPEN: Final = {name: name for name in ("evaluators", "options", "labels", "brief")}


async def _evaluate(site: Site, request: Request) -> Response:
    """Evaluate the last turn of a conversation."""
    asked = await read(request, lambda data: _request(data, request.headers.get("idempotency-key", "")))
    media = accepted(request)
    if media:
        return lines(_stream(site, request, "Evaluate", asked.SerializeToString()), media, _results())
    with _about_the_body():
        found = await site.ask(request, _pb.EvaluateUnaryRequest(request=asked))
    return await written(found, lambda done: evaluation_to_json(done.summary, done.evaluation_id))


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
    """Convert the conversation of a request to its last turn. beside: other keys. Raises InvalidInput."""
    said = {key: value for key, value in data.items() if key not in beside}
    return last_turn(said, recorded=False).to_proto()


@contextmanager
def _about_the_body() -> Iterator[None]:
    """Turn NOT_FOUND into INVALID_ARGUMENT: 404 is for resources in the URL, not for those in a body."""
    try:
        yield
    except CallFailed as problem:
        if problem.code is not grpc.StatusCode.NOT_FOUND:
            raise
        raise CallFailed(grpc.StatusCode.INVALID_ARGUMENT, problem.message, problem.details) from None


async def _stream(
    site: Site, request: Request, method: str, asked: bytes | AsyncGenerator[bytes]
) -> AsyncGenerator[bytes | None]:
    caller = site.access.caller(request)
    with _about_the_body():
        async with aclosing(site.calls.stream(f"{_SERVICE}/{method}", asked, caller)) as messages:
            async for message in messages:
                yield message


def _results() -> Callable[[bytes], Iterator[StreamLine]]:
    """Return a converter from messages to lines: `started`, `progress`, `result`, and a `summary` with all results."""
    results: list[result_pb2.EvaluationResult] = []
    evaluation_id = ""

    def write(message: bytes) -> Iterator[StreamLine]:
        nonlocal evaluation_id
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

    return write


async def _evaluate_batch(site: Site, request: Request) -> Response:
    """Evaluate the last turns of many conversations."""
    body = await request.body()
    numbered = enumerate(lines_of(body), start=1)
    opened = await converted(len(body), lambda: _opened(next(numbered, (1, b""))[1]))
    refused: _Refused = deque()
    asked = _stepwise(len(body), _requests(opened, numbered, refused))
    messages = _stream(site, request, "EvaluateBatch", asked)
    return lines(messages, accepted(request) or NDJSON, _answers(refused))


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


async def _stepwise(size: int, requests: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield messages, and make them in a thread for large data. size: of the data, in bytes."""
    while (message := await in_thread_if_large(size, lambda: next(requests, None))) is not None:
        yield message


def _requests(
    opened: _pb.BatchOpen, numbered: Iterable[tuple[int, bytes]], refused: _Refused
) -> Iterator[bytes]:
    """Yield the messages of a batch. refused: receives the invalid lines."""
    message = _pb.EvaluateBatchRequest(open=opened)
    for number, line in numbered:
        _add(message, number, line, refused)
        if len(message.items) == _ITEMS:
            yield message.SerializeToString()
            message = _pb.EvaluateBatchRequest()
    if message.items or message.HasField("open"):
        yield message.SerializeToString()


def _add(message: _pb.EvaluateBatchRequest, number: int, line: bytes, refused: _Refused) -> None:
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
        refused.append((item_id, problem))


def _answers(refused: _Refused) -> Callable[[bytes], Iterator[StreamLine]]:
    """Return a converter from messages to lines: an `answer` for each conversation, and the `summary` last."""
    count = 0

    def write(message: bytes) -> Iterator[StreamLine]:
        nonlocal count
        found = _pb.EvaluateBatchResponse.FromString(message)
        for one in found.answers:
            yield StreamLine("answer", _answer(one))
        while refused:
            item_id, problem = refused.popleft()
            count += 1
            yield StreamLine("answer", _failed(item_id, "INVALID_ITEM", str(problem)))
        if found.HasField("summary"):
            found.summary.item_count += count
            found.summary.error_count += count
            yield StreamLine("summary", {"summary": derived(_pb.BatchSummary).write(found.summary)})

    return write


def _answer(pb: _pb.BatchAnswer) -> dict[str, Any]:
    if pb.HasField("error"):
        return _failed(pb.item_id, pb.error.code, pb.error.message)
    return {"id": pb.item_id, "evaluation": evaluation_to_json(pb.summary)}


def _failed(item_id: str, code: str, message: str) -> dict[str, Any]:
    return {"id": item_id, "error": {"code": code, "message": message}}


_EVALUATION: Final = evaluation_schema()
_OPENING: Final = record(
    "BatchOpening", {"evaluators": EVALUATORS, "options": OPTIONS, "labels": TEXT_MAP.schema, "brief": FLAG}
)


def _specs(data: Any) -> dict[str, Any]:
    found = read_keys(data, {"evaluators": "evaluators"}, "")
    return {"evaluators": validate_request(found.get("evaluators") or ()).evaluators}


_VIOLATIONS: Final = AnswerPart(
    "violations",
    VIOLATIONS,
    lambda found: {"violations": [derived(_pb.SpecViolation).write(one) for one in found]},
)

ROUTES: Final = (
    ApiRoute(
        "POST",
        "/evaluate",
        _evaluate,
        f"{_SERVICE}/EvaluateUnary",
        _EVALUATION,
        CONVERSATION,
        lines=line_of("EvaluationEvent", {"event": TEXT, "evaluationId": TEXT, "summary": _EVALUATION}),
    ),
    ApiRoute(
        "POST",
        "/evaluate-batch",
        _evaluate_batch,
        f"{_SERVICE}/EvaluateBatch",
        request_schema={"anyOf": [_OPENING, CONVERSATION]},
        request_lines=True,
        lines=line_of("BatchEvent", {"event": TEXT, "id": TEXT, "evaluation": _EVALUATION}),
    ),
    unary(
        "POST",
        "/validate",
        f"{_SERVICE}/ValidateSpecs",
        "Validate evaluator specs without running them",
        _VIOLATIONS,
        body=Body(record("ValidateRequest", {"evaluators": EVALUATORS}, "evaluators"), _specs),
    ),
)
