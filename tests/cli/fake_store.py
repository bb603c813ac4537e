"""A server that stores in memory and plays one run, to break in the middle of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import grpc

from evald.v1 import message_pb2, result_pb2, run_service_pb2, run_service_pb2_grpc
from evald_server.cli.store_client import KINDS

pb = run_service_pb2


def _service(word: str) -> type:
    """The standard methods of a kind."""
    kind = KINDS[word]
    one, plural = word.capitalize(), kind.plural.capitalize()
    stored: dict[str, Any] = {}

    def answer(verb: str, resource: Any) -> Any:
        return getattr(kind.requests, f"{verb}{one}Response")(**{word: resource})

    def create(_self: Any, request: Any, context: Any) -> Any:
        resource = getattr(request, word)
        resource.id = resource.id or str(uuid4())
        if any(resource.name == other.name for other in stored.values()):
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f'{one} with name "{resource.name}" already exists')
        stored[resource.id] = resource
        return answer("Create", resource)

    def get(_self: Any, request: Any, context: Any) -> Any:
        found = stored.get(getattr(request, f"{word}_id"))
        if found is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{word}_id: none")
        return answer("Get", found)

    def list_page(_self: Any, request: Any, context: Any) -> Any:
        found = [one for one in stored.values() if request.name in ("", one.name)]
        return getattr(kind.requests, f"List{plural}Response")(**{kind.plural: found})

    def update(_self: Any, request: Any, context: Any) -> Any:
        given = getattr(request, word)
        if not request.update_mask.paths:
            stored[given.id] = given
        for path in request.update_mask.paths:
            stored[given.id].ClearField(path)
            part = type(given)()
            part.CopyFrom(given)
            for field, _ in given.ListFields():
                if field.name != path:
                    part.ClearField(field.name)
            stored[given.id].MergeFrom(part)
        return answer("Update", stored[given.id])

    def delete(_self: Any, request: Any, context: Any) -> Any:
        del stored[getattr(request, f"{word}_id")]
        return getattr(kind.requests, f"Delete{one}Response")()

    methods = {f"Create{one}": create, f"Get{one}": get, f"List{plural}": list_page}
    return type(f"Fake{one}", (), methods | {f"Update{one}": update, f"Delete{one}": delete})


def events() -> list[pb.WatchRunResponse]:
    """A run of one turn, that fails."""
    says = message_pb2.ChatMessage
    calls = [message_pb2.ToolCall(id="1", function={"name": "find_slots", "arguments": '{"day": "friday"}'})]
    result = result_pb2.EvaluationResult(
        name="reference", type="regex", label="Regex", kind=1, verdict=2, reason="does not match", score=0.0
    )
    turn = pb.RunTurn(turn=1, first_message=0, message_count=3, is_final=True)
    turn.latency.FromMilliseconds(812)
    parts: list[dict[str, Any]] = [
        {"status": pb.RunStatusChange(status=1, attempt=1)},
        {"message": pb.RunMessage(index=0, message=says(role="user", text="I need a slot."))},
        {"message": pb.RunMessage(index=1, message=says(role="assistant", tool_calls=calls))},
        {"message": pb.RunMessage(index=2, message=says(role="assistant", text="Friday at ten."))},
        {"result": pb.RunTurnResult(turn=1, result=result)},
        {"turn": turn},
        {"end": ended()},
    ]
    return [pb.WatchRunResponse(sequence=number, **part) for number, part in enumerate(parts, start=1)]


def ended() -> pb.Run:
    """The run of `events`."""
    run = pb.Run(id="r1", scenario_id="s1", status=3, verdict=2, turn_count=1, attempt=1, last_sequence=7)
    run.result.reason = "regex: does not match"
    run.output.evaluator_results.add(
        name="reference", type="regex", label="Regex", kind=1, verdict=2, reason="does not match"
    )
    return run


class FakeRuns(run_service_pb2_grpc.RunServiceServicer):
    """Ends a watch after `broken_after` events, once, with an error or without a word."""

    def __init__(self, broken_after: int, code: grpc.StatusCode | None) -> None:
        self.asked: list[int] = []
        self._broken_after, self._code = broken_after, code

    def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:
        self.asked.append(request.after_sequence)
        for event in events():
            if event.sequence > self._broken_after and len(self.asked) == 1:
                if self._code:
                    context.abort(self._code, "gone")
                return
            if event.sequence > request.after_sequence:
                yield event

    def GetRun(self, request: Any, context: Any) -> Any:
        run = ended()
        if len(self.asked) == 1:
            run.status = pb.RUN_STATUS_RUNNING
        return pb.GetRunResponse(run=run)


@contextmanager
def fake_store(runs: FakeRuns) -> Iterator[str]:
    """Serves, and yields the address."""
    server = grpc.server(ThreadPoolExecutor(4))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(runs, server)
    for word in KINDS:
        from importlib import import_module

        module = import_module(f"evald.v1.{word}_service_pb2_grpc")
        one = word.capitalize()
        base = getattr(module, f"{one}ServiceServicer")
        service = type(f"Fake{one}Service", (_service(word), base), {})()
        getattr(module, f"add_{one}ServiceServicer_to_server")(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
