"""Minimal plugins: raw bytes in, the same output for every task. A type's name says its behaviour:
`bench.fast`, `bench.wait-20` (milliseconds), `bench.hang`, `bench.crash`, `bench.flap`, `bench.lie`.
Run by the benchmarks.

    python -m benchmarks.remote_plugin listen TYPE...           prints its address
    python -m benchmarks.remote_plugin connect SERVER TYPE...   prints a line when it is registered
    python -m benchmarks.remote_plugin crowd SERVER             registers 500 instances of 200 types; prints the median
                                                                milliseconds of the third and of the last hundred
"""

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.plugin.v1 import task_pb2
from evald.v1 import evaluator_pb2, result_pb2
from evald_server.loop import event_loop

SERVICE: Final = "evald.plugin.v1.EvaluatorPluginService"
_CONNECT: Final = "/evald.plugin.v1.RegistryService/Attach"

OUTPUT: Final = task_pb2.EvaluationOutput(verdict=result_pb2.VERDICT_PASSED, score=1, reason="fine")
RESPONSE: Final = plugin_pb2.EvaluateResponse(output=OUTPUT).SerializeToString()
_LIE: Final = plugin_pb2.EvaluateResponse(
    output=task_pb2.EvaluationOutput(verdict=result_pb2.VERDICT_PASSED, score=7)
).SerializeToString()

INSTANCES: Final = 500
TYPES: Final = 200
# Streams per channel: below the server's limit of 100 streams per connection.
_A_CHANNEL: Final = 80


def info(types: Sequence[str]) -> task_pb2.PluginInfo:
    schema = json.dumps({"type": "object", "properties": {"word": {"type": "string"}}})
    return task_pb2.PluginInfo(
        name="bench",
        contract_versions=["evald.plugin.v1"],
        max_concurrency=64,
        capabilities=[task_pb2.CAPABILITY_CANCEL],
        evaluator_types=[
            evaluator_pb2.EvaluatorType(
                type=name,
                version="1.0.0",
                kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
                config_schema_json=schema,
            )
            for name in types
        ],
    )


class _Listening:
    def __init__(self, types: Sequence[str]) -> None:
        # All types of a process have the same behaviour, so no task needs a lookup.
        self._does = types[0].removeprefix("bench.").partition("-")[0]
        self._described = plugin_pb2.DescribeResponse(plugin=info(types)).SerializeToString()
        self._calls = itertools.count()
        self.server = grpc.aio.server()
        self.crashed = asyncio.Event()

    async def evaluate(self, request: bytes, context: Any) -> bytes:
        does = self._does
        if does == "wait":
            name = plugin_pb2.EvaluateRequest.FromString(request).task.type
            await asyncio.sleep(int(name.rpartition("-")[2]) / 1000)
        elif does == "hang":
            await asyncio.Event().wait()
        elif does == "lie":
            return _LIE
        elif does == "flap" and next(self._calls) % 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "flapping")
        elif does == "crash":
            self.crashed.set()
            await asyncio.Event().wait()
        return RESPONSE

    async def describe(self, _request: bytes, _context: Any) -> bytes:
        return self._described


async def listen(types: Sequence[str]) -> None:
    port = 0
    while True:
        plugin = _Listening(types)
        handlers: dict[str, Any] = {
            "Describe": grpc.unary_unary_rpc_method_handler(plugin.describe),
            "Evaluate": grpc.unary_unary_rpc_method_handler(plugin.evaluate),
        }
        plugin.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        bound = plugin.server.add_insecure_port(f"127.0.0.1:{port}")
        await plugin.server.start()
        if not port:
            print(f"127.0.0.1:{bound}", flush=True)
        port = bound
        await plugin.crashed.wait()
        # Stop in the middle of the call, and start again at once on the same port.
        await plugin.server.stop(None)


async def connect(server: str, types: Sequence[str]) -> None:
    async with grpc.aio.insecure_channel(server) as channel:
        call = await _hello(channel, "bench", types)
        print("ready", flush=True)
        await _work(call)


async def _hello(channel: grpc.aio.Channel, instance_id: str, types: Sequence[str]) -> Any:
    call: Any = channel.stream_stream(_CONNECT)()
    hello = registry_pb2.WorkerHello(plugin=info(types), instance_id=instance_id, initial_credit=64)
    await call.write(registry_pb2.AttachRequest(hello=hello).SerializeToString())
    if await call.read() is grpc.aio.EOF:
        raise RuntimeError(f"not welcome: {await call.details()}")
    return call


async def _work(call: Any) -> None:
    while (data := await call.read()) is not grpc.aio.EOF:
        frame = registry_pb2.AttachResponse.FromString(data)
        if frame.HasField("task"):
            answer = registry_pb2.AttachRequest(completed={"task_id": frame.task.task_id, "output": OUTPUT})
        elif frame.HasField("ping"):
            answer = registry_pb2.AttachRequest(pong={"nonce": frame.ping.nonce})
        else:
            continue
        await call.write(answer.SerializeToString())


async def crowd(server: str) -> None:
    channels = [
        grpc.aio.insecure_channel(server, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-INSTANCES // _A_CHANNEL))
    ]
    took, working = [], []
    for number in range(INSTANCES):
        began = time.perf_counter()
        call = await _hello(
            channels[number // _A_CHANNEL], f"crowd-{number}", [f"bench.crowd-{number % TYPES}"]
        )
        took.append((time.perf_counter() - began) * 1000)
        working.append(asyncio.create_task(_work(call)))
    # The first 200 instances register new types, which is more work. So compare the third and the fifth hundred: both
    # have only known types.
    print(json.dumps([statistics.median(took[200:300]), statistics.median(took[400:])]), flush=True)
    await asyncio.gather(*working)


if __name__ == "__main__":
    way, *words = sys.argv[1:]
    with event_loop() as runner:
        if way == "listen":
            runner.run(listen(words))
        elif way == "connect":
            runner.run(connect(words[0], words[1:]))
        else:
            runner.run(crowd(words[0]))
