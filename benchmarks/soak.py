"""Check that a server's memory stays within the bounds of its caches, under a mixed load of every kind.

    python -m benchmarks.soak                          10 minutes, every cache bounded to 1 MiB
    python -m benchmarks.soak --cache-bytes 67108864   with the default cache sizes
    python -m benchmarks.soak --kinds judge --seconds 60

No two calls are alike, so each adds to the caches of plans, answers and judges. Prints the memory every 10 s, and
at the end its growth per minute in the first and in the second half. The exit code is 1 if the second half grew by
more than --most MB a minute.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import grpc

from evald.v1 import evaluation_service_pb2, evaluator_pb2
from evald_server.loop import event_loop

from . import workload
from .processes import Server, completions, evald

_SERVICE: Final = "/evald.v1.EvaluationService/"
_EVERY_SECONDS: Final = 10.0
_CALLERS: Final = 4

_Unary = evaluation_service_pb2.EvaluateUnaryRequest
Call: TypeAlias = Callable[[grpc.aio.Channel, int], Awaitable[None]]


def _spec(kind: str, config: dict[str, Any]) -> evaluator_pb2.EvaluatorSpec:
    spec = evaluator_pb2.EvaluatorSpec(type=kind)
    spec.config.update(config)
    return spec


def _request(
    number: int, *specs: evaluator_pb2.EvaluatorSpec, messages: int = 5, **fields: Any
) -> evaluation_service_pb2.EvaluateRequest:
    context = workload.context(number % 1_000_000, messages=messages)
    return evaluation_service_pb2.EvaluateRequest(context=context, evaluators=specs, **fields)


async def _unary(channel: grpc.aio.Channel, request: evaluation_service_pb2.EvaluateRequest) -> None:
    call: Any = channel.unary_unary(_SERVICE + "EvaluateUnary")
    await call(_Unary(request=request).SerializeToString(), timeout=30)


async def _plans(channel: grpc.aio.Channel, number: int) -> None:
    """Send new specs."""
    specs = workload.specs()
    specs[1].config.update({"pattern": f"BK-[0-9]{{6}}|never{number}"})
    specs[0].config.update({"schema": {**workload.SCHEMA, "title": f"Answer {number}"}})
    await _unary(channel, _request(number, *specs))


async def _answers(channel: grpc.aio.Channel, number: int) -> None:
    """Send a new request_id."""
    await _unary(channel, _request(number, *workload.specs(), request_id=f"soak-{number}"))


async def _judge(channel: grpc.aio.Channel, number: int) -> None:
    """Send a new prompt to a judge."""
    await _unary(
        channel, _request(number, _spec("llm-judge", {"criteria": f"The agent did what {number} asked."}))
    )


async def _labels(channel: grpc.aio.Channel, number: int) -> None:
    """Send new labels."""
    await _unary(channel, _request(number, *workload.specs(), labels={"team": f"team-{number}"}))


async def _plugins(channel: grpc.aio.Channel, number: int) -> None:
    request = _request(number, _spec("bench.waiting", {}), _spec("bench.blocking", {}))
    call: Any = channel.unary_stream(_SERVICE + "Evaluate")
    stream = call(request.SerializeToString(), timeout=30)
    async for _ in stream:
        pass


async def _cancelled(channel: grpc.aio.Channel, number: int) -> None:
    """Cancel a call, or set too short a deadline."""
    with suppress(grpc.aio.AioRpcError):
        request = _request(number, _spec("bench.waiting", {}), _spec("bench.blocking", {}))
        call: Any = channel.unary_stream(_SERVICE + "Evaluate")
        stream = call(request.SerializeToString(), timeout=0.002 if number % 2 else 30)
        await stream.read()
        stream.cancel()


async def _schemas(channel: grpc.aio.Channel, number: int) -> None:
    """Send a schema that is checked in a worker process."""
    pair: dict[str, Any] = {"$defs": {"a9": {"type": "object"}}, "$ref": "#/$defs/a0", "title": str(number)}
    for level in range(9):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        pair["$defs"][f"a{level}"] = {"anyOf": [below, below]}
    await _unary(channel, _request(number, _spec("json-schema", {"schema": pair})))


async def _refused(channel: grpc.aio.Channel, number: int) -> None:
    """Send invalid requests of several kinds."""
    wrong = (
        b"\xff" * 64,
        _Unary(request=_request(number, _spec(f"no-such-type-{number}", {}))).SerializeToString(),
        _Unary(request=_request(number, _spec("regex", {"pattern": f"({number}"}))).SerializeToString(),
    )
    with suppress(grpc.aio.AioRpcError):
        call: Any = channel.unary_unary(_SERVICE + "EvaluateUnary")
        await call(wrong[number % len(wrong)], timeout=30)


async def _session(channel: grpc.aio.Channel, number: int) -> None:
    frames = workload.session(turns=random.randint(1, 10))
    call: Any = channel.stream_stream(_SERVICE + "EvaluateSession")()
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(frames[0].SerializeToString())
        for frame in frames[1:]:
            await call.write(frame.SerializeToString())
            await call.read()
        if number % 4 == 0:
            call.cancel()
            return
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass


async def _batch(channel: grpc.aio.Channel, number: int) -> None:
    async def messages() -> AsyncIterator[bytes]:
        for message in workload.batch(messages=6):
            yield message.SerializeToString()

    method: Any = channel.stream_stream(_SERVICE + "EvaluateBatch")
    call = method(messages())
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            if number % 4 == 0:
                call.cancel()
                return


async def _long(channel: grpc.aio.Channel, number: int) -> None:
    """Send a conversation of 1,000 messages."""
    await _unary(channel, _request(number, *workload.specs(), messages=1000))


# For each kind: its share of 100 calls, and the function that sends one.
KINDS: Final[dict[str, tuple[int, Call]]] = {
    "plans": (25, _plans),
    "answers": (18, _answers),
    "judge": (12, _judge),
    "labels": (5, _labels),
    "plugins": (14, _plugins),
    "cancelled": (8, _cancelled),
    "schemas": (3, _schemas),
    "refused": (6, _refused),
    "session": (5, _session),
    "batch": (1, _batch),
    "long": (3, _long),
}


def _resident_mb(server: Server) -> float:
    return server.resident_bytes / 1e6


def _mb_a_minute(readings: list[tuple[float, float]]) -> float:
    """Return the slope of a regression line in MB per minute. readings: (seconds, MB)."""
    seconds, sizes = zip(*readings, strict=True)
    return statistics.linear_regression(seconds, sizes).slope * 60


async def _caller(
    server: Server, kinds: list[str], numbers: "itertools.count[int]", done: Counter[str]
) -> None:
    weights = [KINDS[kind][0] for kind in kinds]
    while True:
        # Reconnect from time to time, as callers do.
        async with grpc.aio.insecure_channel(
            server.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            for kind in random.choices(kinds, weights, k=500):
                await KINDS[kind][1](channel, next(numbers))
                done[kind] += 1


async def _soak(server: Server, http: str, kinds: list[str], seconds: float) -> list[tuple[float, float]]:
    numbers, done = itertools.count(random.randrange(1 << 40)), Counter[str]()
    callers = [asyncio.create_task(_caller(server, kinds, numbers, done)) for _ in range(_CALLERS)]
    readings: list[tuple[float, float]] = []
    began = time.monotonic()
    try:
        while (elapsed := time.monotonic() - began) < seconds:
            readings.append((elapsed, _resident_mb(server)))
            print(f"{elapsed:6.0f} s  {readings[-1][1]:7.1f} MB  {sum(done.values()):8d} calls", flush=True)
            finished, _ = await asyncio.wait(
                callers, timeout=_EVERY_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for caller in finished:
                caller.result()
            await asyncio.to_thread(
                lambda: urllib.request.urlopen(f"http://{http}/metrics", timeout=30).read()
            )
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    print(f"calls: {dict(done)}")
    return readings


def main() -> int:
    """Return the exit code: 0 if memory stays within the bound, 1 if it grows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long [%(default)g]")
    parser.add_argument("--cache-bytes", type=int, default=1 << 20, help="bound of each cache [%(default)d]")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is called [everything]"
    )
    parser.add_argument(
        "--most", type=float, default=0.5, help="MB a minute that the second half may grow [%(default)g]"
    )
    args = parser.parse_args()
    settings = {f"{name}_cache_bytes": args.cache_bytes for name in ("plan", "answer", "judge")}
    with (
        completions() as endpoint,
        evald(
            plugins=str(workload.PLUGINS),
            labels="team",
            judge_base_url=f"http://{endpoint.first_line}/v1",
            judge_api_key="none",
            judge_model="bench",
            **settings,
        ) as server,
        event_loop() as runner,
    ):
        http = server.first_line.rpartition(" ")[2]
        readings = runner.run(_soak(server, http, args.kinds, args.seconds))
    half = len(readings) // 2
    first, second = _mb_a_minute(readings[: half + 1]), _mb_a_minute(readings[half:])
    print(f"grew by {first:.2f} MB a minute in the first half, {second:.2f} in the second")
    return int(second > args.most)


if __name__ == "__main__":
    sys.exit(main())
