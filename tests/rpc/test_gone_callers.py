"""A caller that goes away while the server sends to it: CANCELLED, and nothing that anybody must look into."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from evald.v1 import evaluation_service_pb2
from evald_server.rpc.server import refuse, server_stops
from tests.thorough import first_of

from ..loop import run
from .live import EVALUATION, Live, request, serving, spec, until


async def batch(live: Live) -> None:
    opened = evaluation_service_pb2.EvaluateBatchRequest()
    opened.open.evaluators.append(spec("contains", {"text": "hello"}))
    message = evaluation_service_pb2.EvaluateBatchRequest()
    for _ in range(2000):
        message.items.add(item_id="i" * 1000).context.CopyFrom(request().context)
    messages = [one.SerializeToString() for one in (opened, *[message] * 4)]
    call = live.channel.stream_stream(EVALUATION + "EvaluateBatch")(iter(messages))
    await call.initial_metadata()
    await asyncio.sleep(0.3)  # until the server waits for room
    call.cancel()


async def session(live: Live) -> None:
    call = live.channel.stream_stream(EVALUATION + "EvaluateSession")()
    frame = evaluation_service_pb2.EvaluateSessionRequest()
    frame.open.evaluators.extend(spec("contains", {"text": "hello"}, name="n" * 100) for _ in range(50))
    await call.write(frame.SerializeToString())
    for number in range(1, 100):
        frame = evaluation_service_pb2.EvaluateSessionRequest()
        frame.turn.turn_id = number
        frame.turn.new_messages.add(role="assistant", text="hello")
        await call.write(frame.SerializeToString())
    await call.initial_metadata()
    await asyncio.sleep(0.3)
    call.cancel()


def handled(live: Live, method: str) -> dict[str, float]:
    """How the calls of a method ended, by status code."""
    body, _ = live.app.telemetry.exposition("")
    found = {}
    for line in body.decode().splitlines():
        if line.startswith("grpc_server_handled_total") and f'grpc_method="{method}"' in line:
            code = line.partition('grpc_code="')[2].partition('"')[0]
            if value := float(line.rpartition(" ")[2]):
                found[code] = value
    return found


@pytest.mark.parametrize(("method", "go_away"), [("EvaluateBatch", batch), ("EvaluateSession", session)])
@pytest.mark.parametrize("processes", first_of([0, 1], 1))
def test_a_caller_that_goes_while_it_is_sent_to_has_cancelled(
    method: str,
    go_away: Callable[[Live], Awaitable[None]],
    processes: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving(batch_processes=processes) as live:
            for _ in range(3):
                await go_away(live)
            await until(lambda: sum(handled(live, method).values()) == 3)
            assert handled(live, method) == {"Canceled": 3}

    with caplog.at_level(logging.WARNING):
        run(main())
    assert not caplog.records, caplog.text


def test_a_caller_that_goes_before_it_is_refused_has_cancelled() -> None:
    class Gone:
        async def abort(self, *_: object) -> None:
            raise grpc.aio.InternalError("nobody takes the status")

    context: Any = Gone()
    with pytest.raises(asyncio.CancelledError):
        run(refuse(context, server_stops()))
