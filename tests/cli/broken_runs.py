"""A server whose watch of a run breaks before the run ends."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from evald.v1 import message_pb2, result_pb2, run_service_pb2, run_service_pb2_grpc

pb = run_service_pb2


def events(text: str = "Friday at ten.") -> list[pb.WatchRunResponse]:
    """Return the events of a run with one turn, which fails."""
    says = message_pb2.ChatMessage
    calls = [message_pb2.ToolCall(id="1", function={"name": "find_slots", "arguments": '{"day": "friday"}'})]
    result = result_pb2.EvaluationResult(
        name="reference",
        type="regex",
        label="Regex",
        kind="EVALUATOR_KIND_ASSERTION",
        verdict="VERDICT_FAILED",
        reason="does not match",
        score=0.0,
    )
    turn = pb.RunTurn(turn=1, first_message=0, message_count=3, is_final=True)
    turn.latency.FromMilliseconds(812)
    parts: list[dict[str, Any]] = [
        {"status": pb.RunStatusChange(status="RUN_STATUS_QUEUED", attempt=1)},
        {"message": pb.RunMessage(index=0, message=says(role="user", text="I need a slot."))},
        {"message": pb.RunMessage(index=1, message=says(role="assistant", tool_calls=calls))},
        {"message": pb.RunMessage(index=2, message=says(role="assistant", text=text))},
        {"result": pb.RunTurnResult(turn=1, result=result)},
        {"turn": turn},
        {"end": ended()},
    ]
    return [pb.WatchRunResponse(sequence=number, **part) for number, part in enumerate(parts, start=1)]


def ended() -> pb.Run:
    """Return the ended run of `events`."""
    run = pb.Run(
        id="r1",
        scenario_id="s1",
        status="RUN_STATUS_COMPLETED",
        verdict="VERDICT_FAILED",
        turn_count=1,
        attempt=1,
        last_sequence=7,
    )
    run.result.reason = "regex: does not match"
    run.output.evaluator_results.add(
        name="reference",
        type="regex",
        label="Regex",
        kind="EVALUATOR_KIND_ASSERTION",
        verdict="VERDICT_FAILED",
        reason="does not match",
    )
    return run


class FakeRuns(run_service_pb2_grpc.RunServiceServicer):
    """A run service that ends the first watch after `broken_after` events, with an error or without."""

    def __init__(self, broken_after: int, code: grpc.StatusCode | None) -> None:
        self.asked: list[int] = []
        self.broken_after, self._code = broken_after, code
        self.text = "Friday at ten."

    def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        self.asked.append(request.after_sequence)
        for event in events(self.text):
            if event.sequence > self.broken_after and len(self.asked) == 1:
                if self._code:
                    context.abort(self._code, "gone")
                return
            if event.sequence > request.after_sequence:
                yield event

    def GetRun(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        run = ended()
        if len(self.asked) == 1 and self.broken_after < len(events()):
            run.status = pb.RUN_STATUS_RUNNING
        return pb.GetRunResponse(run=run)


@contextmanager
def serve_runs(runs: FakeRuns) -> Iterator[str]:
    """Serve, and yield the address."""
    server = grpc.server(ThreadPoolExecutor(4))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(runs, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
