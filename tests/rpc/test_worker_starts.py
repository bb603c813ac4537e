"""Processes that the server starts come to life under uvloop, whatever gRPC does at that moment, and end with it."""

import asyncio
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from evald.v1 import evaluation_service_pb2

from ..loop import run
from ..processes import ServerProcess, server_process
from .live import CONTAINS, EVALUATION, request, spec, until

# How many schema workers are started. A start by fork fails once in ten.
STARTS = int(os.environ.get("WORKER_STARTS", "30"))


def suspicious_schema() -> dict[str, Any]:
    """A schema with so many branches that it is checked in a process of its own. Every object matches it."""
    schema: dict[str, Any] = {"$defs": {"a9": {"type": "object"}}, "$ref": "#/$defs/a0"}
    for level in range(9):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        schema["$defs"][f"a{level}"] = {"anyOf": [below, below]}
    return schema


CHECKED_IN_A_WORKER = evaluation_service_pb2.EvaluateUnaryRequest(
    request=request(spec("json-schema", {"schema": suspicious_schema()}), answer="{}")
).SerializeToString()


def children(pid: int) -> list[int]:
    """Processes that a process has started and that are alive."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def verdicts(channel: grpc.aio.Channel, calls: int) -> "Counter[str]":
    """What so many calls at a time say of a value that is right."""
    method = channel.unary_unary(EVALUATION + "EvaluateUnary")
    answers = await asyncio.gather(*(method(CHECKED_IN_A_WORKER) for _ in range(calls)))
    seen: Counter[str] = Counter()
    for data in answers:
        (result,) = evaluation_service_pb2.EvaluateUnaryResponse.FromString(data).summary.results
        seen[result.error.code or f"success {result.success}"] += 1
    return seen


def test_every_worker_starts() -> None:
    async def some_starts(server: ServerProcess) -> list[int]:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            seen = await verdicts(channel, 6)
        assert set(seen) == {"success True"}, seen
        workers = children(server.pid)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        await until(lambda: not any(map(alive, workers)))
        return workers

    started = 0
    with server_process() as server:
        while started < STARTS:
            started += len(run(some_starts(server)))


def test_workers_end_with_a_server_that_is_killed() -> None:
    """At once, whatever they do just now: these are stopped, so that they cannot even read the end of their input."""
    message = evaluation_service_pb2.EvaluateBatchRequest()
    for _ in range(2000):
        message.items.add(item_id="one").context.CopyFrom(request().context)
    opened = evaluation_service_pb2.EvaluateBatchRequest()
    opened.open.evaluators.append(CONTAINS)

    async def main(server: ServerProcess) -> None:
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            await verdicts(channel, 1)
            (schema_worker,) = children(server.pid)
            messages = [opened.SerializeToString(), *[message.SerializeToString()] * 4]
            async for _ in channel.stream_stream(EVALUATION + "EvaluateBatch")(iter(messages)):
                pass
            log = server.process.stderr
            assert log
            while not (
                found := re.search(r"batch process (\d+) started", await asyncio.to_thread(log.readline))
            ):
                pass
            workers = [schema_worker, int(found[1])]
            for worker in workers:
                os.kill(worker, signal.SIGSTOP)
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait()
            await until(lambda: not any(map(alive, workers)))

    with server_process(EVALD_BATCH_PROCESSES="1") as server:
        run(main(server))
