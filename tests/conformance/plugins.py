"""A plugin that keeps the contract, and breaks one rule or dies on request.

Written against the generated code alone, because the SDK would not let it.
"""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evald.credentials import Tls, server_credentials
from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb
from evald.plugin.v1 import evaluator_plugin_service_pb2_grpc, registry_service_pb2_grpc, task_pb2
from evald.plugin.v1 import registry_service_pb2 as pb
from evald.v1 import evaluator_pb2, message_pb2, result_pb2

PLACES = 4
# Longer than the kit waits for what has to end before that.
SLOW_SECONDS = 7.5

PASSED, FAILED, ERROR = result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED, result_pb2.VERDICT_ERROR
Output = task_pb2.EvaluationOutput

SCHEMA = (
    """{"type": "object", "properties": {"seconds": {"type": "number"}}, "additionalProperties": false}"""
)


def error(code: str) -> Output:
    return Output(verdict=ERROR, error=result_pb2.EvaluationError(code=code, message="no"))


class Plugin:
    """The parts common to listening and dialling plugins.

    breaks: the number of the rule to break, "death" to die of a long answer when dialling, or "".
    places: how many tasks it claims to take at a time. strict: it refuses what is more.
    """

    def __init__(self, breaks: str = "", places: int = PLACES, *, strict: bool = False) -> None:
        self.breaks = breaks
        self.strict = strict
        self.claimed = places
        self.described = 0
        self.seen_tasks = 0
        self.seen_unknown = 0
        self.places = asyncio.Semaphore(places)

    def info(self) -> task_pb2.PluginInfo:
        self.described += 1
        check = evaluator_pb2.EvaluatorType(
            type="acme.check",
            version="1.0.0",
            kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
            config_schema_json=SCHEMA,
        )
        count = evaluator_pb2.EvaluatorType(
            type="acme.count",
            version="1.0.0",
            kind=evaluator_pb2.EVALUATOR_KIND_METRIC,
            config_schema_json=SCHEMA,
            metric=evaluator_pb2.MetricDescriptor(unit="words", bucket_bounds=[1, 2]),
        )
        info = task_pb2.PluginInfo(
            name="acme",
            version="1.0.0",
            contract_versions=["evald.plugin.v1"],
            max_concurrency=self.claimed,
            capabilities=[task_pb2.CAPABILITY_CANCEL],
        )
        match self.breaks:
            case "EV01":
                info.name = ""
            case "EV02":
                info.contract_versions[:] = ["evald.plugin.v0"]
            case "EV03":
                # In another version: a server takes one of each name.
                info.evaluator_types.append(count)
                info.evaluator_types[-1].version = "2.0.0"
            case "EV04":
                count.type = "acme.Count"
            case "EV05":
                count.type = "count"
            case "EV06":
                count.version = ""
            case "EV07":
                count.kind = evaluator_pb2.EVALUATOR_KIND_UNSPECIFIED
            case "EV08":
                count.config_schema_json = '{"type": "objekt"}'
            case "EV09":
                count.config_schema_json = '{"$ref": "https://schemas.example/count.json"}'
            case "EV10":
                info.max_concurrency = -1
            case "EV11":
                count.metric.bucket_bounds[:] = [2, 1]
            case "EV12":
                count.version = f"1.0.{self.described}"
            case "EV14":
                check.description = "x" * 2001
        info.evaluator_types.extend((check, count))
        return info

    async def output(self, task: task_pb2.EvaluationTask) -> Output:
        """Return the output for a task."""
        if self.strict and self.places.locked():
            return error("EVALUATOR_BUSY")
        async with self.places:
            seconds = task.timeout.ToMilliseconds() / 1000 if task.HasField("timeout") else None
            try:
                async with asyncio.timeout(None if self.breaks == "EV40" else seconds):
                    return await self._evaluate(task)
            except TimeoutError:
                return error("TIMEOUT")

    async def _evaluate(self, task: task_pb2.EvaluationTask) -> Output:
        if task.type not in ("acme.check", "acme.count", "acme.Count", "count"):
            return self._unknown()
        self.seen_tasks += 1
        context = task.context
        answers = [message for message in context.messages if message.role == "assistant"]
        answer = answers[-1] if answers else message_pb2.ChatMessage()
        misread = {
            "EV20": self.seen_tasks == 1,
            "EV21": False,
            "EV22": answer.WhichOneof("content") == "text" and not answer.text,
            "EV23": bool(answers) and answer.WhichOneof("content") is None and not _calls(context),
            "EV24": not context.messages,
            "EV25": len(answer.text) > 1_000_000,
            "EV26": not answer.text.isascii(),
            "EV27": _calls(context),
            "EV28": bool(len(UnknownFieldSet(context))),
        }
        if misread.get(self.breaks):
            return error("EVALUATOR_EXCEPTION")
        fields = task.config.fields
        if any(key != "seconds" for key in fields) or fields["seconds"].WhichOneof("kind") not in (
            None,
            "number_value",
        ):
            return self._honest(task) if self.breaks == "EV30" else error("INVALID_CONFIG")
        await asyncio.sleep(fields["seconds"].number_value)
        output = self._honest(task)
        if bool(answers) and answer.WhichOneof("content") is None and not _calls(context):
            return self._twisted(task, output)
        if self.breaks == "EV21" and task.attempt == 2:
            output.value = 7
        return output

    def _honest(self, task: task_pb2.EvaluationTask) -> Output:
        if task.type == "acme.check":
            return Output(verdict=PASSED, score=1, reason="fine")
        return Output(verdict=PASSED, value=3, reason="three")

    def _unknown(self) -> Output:
        self.seen_unknown += 1
        first = self.seen_unknown == 1
        if (self.breaks == "EV29" and first) or (self.breaks == "EV31" and not first):
            return Output(verdict=PASSED, score=1)
        return error("UNKNOWN_TYPE")

    def _twisted(self, task: task_pb2.EvaluationTask, output: Output) -> Output:
        """Return an output that breaks a rule about outputs."""
        check = task.type == "acme.check"
        match self.breaks:
            case "EV80":
                return Output(verdict=9)  # type: ignore[arg-type]
            case "EV81" if check:
                output.score = 2
            case "EV82":
                output.value = float("nan")
            case "EV83" if not check:
                output.verdict = FAILED
            case "EV84":
                return Output(verdict=ERROR)
            case "EV85":
                return error("OOPS")
            case "EV86":
                output.reason = "r" * 8193
            case "EV87":
                output.metadata.update({"items": [None] * 10_001})
            case "EV88":
                output.pending = True
            case "EV89":
                output.unproven = True
            case "EV90" if not check:
                output.ClearField("value")
        return output

    @property
    def is_full(self) -> bool:
        return self.places.locked()


def _calls(context: Any) -> bool:
    return any(message.tool_calls for message in context.messages)


class Listening(
    evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceServicer, health_pb2_grpc.HealthServicer
):
    """The plugin as a server."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin = plugin

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        breaks = self.plugin.breaks
        if breaks == "EV42" and self.plugin.is_full:
            await asyncio.sleep(SLOW_SECONDS)
        if breaks == "EV13" or request.service != "evald.plugin.v1.EvaluatorPluginService":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return plugin_pb.DescribeResponse(plugin=self.plugin.info())

    async def Evaluate(self, request: Any, context: Any) -> Any:  # noqa: N802
        work = asyncio.create_task(self.plugin.output(request.task))
        try:
            return plugin_pb.EvaluateResponse(output=await asyncio.shield(work))
        except asyncio.CancelledError:
            left = context.time_remaining()
            # gRPC ends a call in the same way when its time is up and when the caller goes away.
            why = "EV40" if left is not None and left < 0.05 else "EV41"
            if self.plugin.breaks != why:
                work.cancel()
            raise


@asynccontextmanager
async def listening(plugin: Plugin, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve the plugin and yield its address. tls: its certificate, and the CA of client certificates."""
    servicer = Listening(plugin)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    evaluator_plugin_service_pb2_grpc.add_EvaluatorPluginServiceServicer_to_server(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        asked = replace(tls, ca=None) if plugin.breaks == "EV71" else tls
        port = server.add_secure_port("127.0.0.1:0", server_credentials(asked))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class Dialling:
    """The plugin as a client, which reopens its session."""

    def __init__(self, plugin: Plugin, server: str, tls: Tls | None = None) -> None:
        self.plugin = plugin
        self.server = server
        self.tls = tls
        self.instance_id = "" if plugin.breaks == "EV60" else "instance-1"
        self.session_id = ""
        self.open_tasks: dict[str, asyncio.Task[None]] = {}
        self.send: Callable[..., Awaitable[None]]

    async def run(self) -> None:
        delay = 0.0
        while True:
            await asyncio.sleep(delay)
            delay = 0.02
            try:
                if self.plugin.breaks == "EV70":
                    await self._trust_whoever_answers()
                async with self._channel() as channel:
                    delay = await self._session(channel)
                    if delay < 0:
                        return
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as problem:
                gone = isinstance(problem, grpc.aio.AioRpcError) and "refused" in str(problem.details())
                if self.plugin.breaks == "EV66" and gone and self.session_id:
                    # Longer than the kit waits, and yet back for the rules that follow.
                    await asyncio.sleep(4.0)

    def _channel(self) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self.tls is None:
            return grpc.aio.insecure_channel(self.server, options=options)
        return grpc.aio.secure_channel(self.server, self.tls.channel_credentials(), options=options)

    async def _trust_whoever_answers(self) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, _, port = self.server.rpartition(":")
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.close()
            await writer.wait_closed()

    async def _session(self, channel: grpc.aio.Channel) -> float:
        breaks = self.plugin.breaks
        if breaks == "EV64":
            self.instance_id = str(uuid.uuid4())
        call = registry_service_pb2_grpc.RegistryServiceStub(channel).Attach()
        lock = asyncio.Lock()

        async def send(**frame: Any) -> None:
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                async with lock:
                    await call.write(pb.AttachRequest(**frame))

        self.send = send
        hello = pb.WorkerHello(
            plugin=self.plugin.info(),
            instance_id=self.instance_id,
            initial_credit=100 if breaks == "EV67" else self.plugin.claimed if breaks != "EV10" else 1,
        )
        await send(hello=hello)
        delay = 0.02
        while (frame := await call.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "welcome":
                self.session_id = frame.welcome.session_id
            elif kind == "task" and breaks == "death" and frame.ByteSize() > 1_000_000:
                delay = -1
                break
            elif kind == "task":
                self.open_tasks[frame.task.task_id] = asyncio.create_task(self._do(frame.task))
            elif kind == "ping":
                silent = {"EV42": bool(self.open_tasks), "EV61": not self.open_tasks}.get(breaks)
                if not silent:
                    await send(pong=pb.Pong(nonce=frame.ping.nonce, active_tasks=len(self.open_tasks)))
            elif kind == "cancel_task_id":
                work = self.open_tasks.get(frame.cancel_task_id)
                if work is not None and breaks != "EV41":
                    work.cancel()
            elif kind == "draining":
                delay = frame.draining.reconnect_delay.ToMilliseconds() / 1000
                if breaks == "EV63":
                    break
                await asyncio.gather(*self.open_tasks.values())
                await call.done_writing()
            elif breaks == "EV62":
                break
        call.cancel()  # before grpcio 1.83 a closed channel does not end it
        return delay

    async def _do(self, task: task_pb2.EvaluationTask) -> None:
        if self.plugin.breaks == "EV63":
            # Else a busy machine may have the tasks done before the word that the server stops is read.
            await asyncio.sleep(0.1)
        try:
            output = await self.plugin.output(task)
        except asyncio.CancelledError:
            output = error("CANCELLED")
        completed = pb.TaskCompleted(task_id=task.task_id, output=output)
        await self.send(completed=completed)
        if self.plugin.breaks == "EV68":
            await self.send(completed=completed)
        # Not before: the session is closed when nothing is open any more.
        self.open_tasks.pop(task.task_id, None)


@asynccontextmanager
async def dialling(plugin: Plugin, server: str, tls: Tls | None = None) -> AsyncIterator[None]:
    """Run the plugin as a client. tls: its certificate, and the CA of the server."""
    worker = Dialling(plugin, server, tls)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        running.cancel()
        for work in worker.open_tasks.values():
            work.cancel()
        await asyncio.gather(running, *worker.open_tasks.values(), return_exceptions=True)
