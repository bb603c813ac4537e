"""Scripted plugins, listening ones and workers, written with gRPC alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald.plugin.v1 import task_pb2
from evald.v1 import evaluator_pb2, result_pb2

from ..ports import free_address
from ..rpc.live import Live, request, spec, until

Behave = Callable[[task_pb2.EvaluationTask], Awaitable[task_pb2.EvaluationOutput]]

REGISTRY = "/evald.plugin.v1.RegistryService/"
SERVICE = "evald.plugin.v1.EvaluatorPluginService"

PASSED = task_pb2.EvaluationOutput(verdict=result_pb2.VERDICT_PASSED, score=1, reason="fine")

SCHEMA = {"type": "object", "properties": {"word": {"type": "string"}}, "additionalProperties": False}


def evaluator_type(name: str, **fields: Any) -> evaluator_pb2.EvaluatorType:
    """Return a type whose config is one word."""
    schema = fields.pop("schema", SCHEMA)
    fields.setdefault("kind", evaluator_pb2.EVALUATOR_KIND_ASSERTION)
    fields.setdefault("version", "1.0.0")
    return evaluator_pb2.EvaluatorType(type=name, config_schema_json=json.dumps(schema), **fields)


def plugin_info(*types: str | evaluator_pb2.EvaluatorType, **fields: Any) -> task_pb2.PluginInfo:
    """Return the description of a plugin with these types."""
    fields.setdefault("name", "acme.tests")
    fields.setdefault("contract_versions", ["evald.plugin.v1"])
    fields.setdefault("max_concurrency", 16)
    fields.setdefault("capabilities", [task_pb2.CAPABILITY_PROGRESS, task_pb2.CAPABILITY_CANCEL])
    offered = [evaluator_type(one) if isinstance(one, str) else one for one in types]
    return task_pb2.PluginInfo(evaluator_types=offered, **fields)


async def passes(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
    """Pass."""
    return PASSED


async def hangs(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


def answers(**fields: Any) -> Behave:
    """Return a behaviour that always gives the same output."""

    async def behave(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        return task_pb2.EvaluationOutput(**fields)

    return behave


class Listening:
    """A plugin that listens. tasks: all received tasks, oldest first. health: its status; None: no service.

    raw: what Evaluate answers instead of a response, as bytes.
    """

    def __init__(
        self,
        *types: str | evaluator_pb2.EvaluatorType,
        behave: Behave = passes,
        health: int | None = health_pb2.HealthCheckResponse.SERVING,
        **info: Any,
    ) -> None:
        self.info = plugin_info(*types, **info)
        self.behave = behave
        self.health = health
        self.tasks: list[task_pb2.EvaluationTask] = []
        self.metadata: list[dict[str, Any]] = []
        self.deadlines: list[float | None] = []
        self.cancelled = 0
        self.describes = 0
        self.raw: bytes | None = None
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str | None = None, credentials: Any = None) -> str:
        """Listen, and return the address."""
        address = address or free_address()
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Evaluate": grpc.unary_unary_rpc_method_handler(self._evaluate),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        if self.health is not None:
            check = {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler("grpc.health.v1.Health", check)]
            )
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
        await server.start()
        self._server = server
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        return self.address

    async def stop(self) -> None:
        """Stop without deregistering, like a killed process."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _describe(self, _request: bytes, _context: Any) -> bytes:
        self.describes += 1
        return plugin_pb2.DescribeResponse(plugin=self.info).SerializeToString()

    async def _check(self, _request: bytes, _context: Any) -> bytes:
        return health_pb2.HealthCheckResponse(status=self.health).SerializeToString()

    async def _evaluate(self, request: bytes, context: Any) -> bytes:
        task = plugin_pb2.EvaluateRequest.FromString(request).task
        self.tasks.append(task)
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())
        try:
            output = await self.behave(task)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        except Refused as problem:
            await context.abort(problem.code, problem.text)
        if self.raw is not None:
            return self.raw
        return plugin_pb2.EvaluateResponse(output=output).SerializeToString()


class Refused(Exception):
    """Raised by a behaviour to end the call with a status."""

    def __init__(self, code: grpc.StatusCode, text: str = "scripted") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@asynccontextmanager
async def listening(*types: Any, **fields: Any) -> AsyncIterator[Listening]:
    """Run a plugin that listens on its own port."""
    plugin = Listening(*types, **fields)
    await plugin.start(fields.get("address"))
    try:
        yield plugin
    finally:
        await plugin.stop()


class Worker:
    """A plugin that dials the server. Answers tasks with `behave`, and pings unless told not to.

    tasks, cancels: what it got. open: tasks that it works on. most_open: the most at a time. reads: cleared, it reads
    nothing more.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *types: str | evaluator_pb2.EvaluatorType,
        behave: Behave = passes,
        instance_id: str = "worker-1",
        credit: int = 4,
        pongs: bool = True,
        metadata: tuple[tuple[str, str], ...] = (),
        **info: Any,
    ) -> None:
        self.info = plugin_info(*types, **info)
        self.behave = behave
        self.instance_id = instance_id
        self.credit = credit
        self.pongs = pongs
        self.tasks: list[task_pb2.EvaluationTask] = []
        self.cancels: list[str] = []
        self.pings = 0
        self.draining: registry_pb2.ServerDraining | None = None
        self.welcome = registry_pb2.ServerWelcome()
        self.running: dict[str, asyncio.Task[None]] = {}
        self.most_open = 0
        self.reads = asyncio.Event()
        self.reads.set()
        self._call: Any = channel.stream_stream(f"{REGISTRY}Attach")(metadata=metadata)
        self._reading: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()

    async def start(self) -> "Worker":
        """Send hello and wait for the welcome. Raises AioRpcError if refused."""
        hello = registry_pb2.WorkerHello(
            plugin=self.info,
            instance_id=self.instance_id,
            initial_credit=self.credit,
        )
        await self.send(hello=hello)
        data = await self._call.read()
        if data is grpc.aio.EOF:
            raise AssertionError(f"the stream ended: {await self._call.code()}")
        self.welcome = registry_pb2.AttachResponse.FromString(data).welcome
        assert self.welcome.session_id
        self._reading = asyncio.create_task(self._read())
        return self

    async def send(self, **frame: Any) -> None:
        """Send a frame."""
        async with self._sending:
            await self._call.write(registry_pb2.AttachRequest(**frame).SerializeToString())

    async def send_raw(self, data: bytes) -> None:
        """Send raw bytes."""
        async with self._sending:
            await self._call.write(data)

    async def complete(self, task_id: str, output: task_pb2.EvaluationOutput = PASSED) -> None:
        """Answer a task."""
        await self.send(completed=registry_pb2.TaskCompleted(task_id=task_id, output=output))

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the end of the stream, and return its status."""
        if self._reading is not None:
            await self._reading
        return await self._call.code(), await self._call.details()

    async def finish(self) -> None:
        """Half-close, like a worker that stops cleanly."""
        await self._call.done_writing()

    def kill(self) -> None:
        """Break the stream."""
        self._call.cancel()

    async def stop(self) -> None:
        """Break the stream and remove the worker."""
        self.kill()
        for task in list(self.running.values()):
            task.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await self.reads.wait()
            try:
                data = await self._call.read()
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                return
            if data is grpc.aio.EOF:
                return
            frame = registry_pb2.AttachResponse.FromString(data)
            kind = frame.WhichOneof("frame")
            if kind == "task":
                self.tasks.append(frame.task)
                task_id = frame.task.task_id
                self.running[task_id] = asyncio.create_task(self._work(frame.task))
                self.most_open = max(self.most_open, len(self.running))
            elif kind == "cancel_task_id":
                self.cancels.append(frame.cancel_task_id)
                running = self.running.get(frame.cancel_task_id)
                if running is not None:
                    running.cancel()
            elif kind == "ping":
                self.pings += 1
                if self.pongs:
                    await self.send(
                        pong=registry_pb2.Pong(nonce=frame.ping.nonce, active_tasks=len(self.running))
                    )
            elif kind == "draining":
                self.draining = frame.draining

    async def _work(self, task: task_pb2.EvaluationTask) -> None:
        try:
            output = await self.behave(task)
            self.running.pop(task.task_id, None)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.complete(task.task_id, output)
        finally:
            self.running.pop(task.task_id, None)


@asynccontextmanager
async def worker(live: Live, *types: Any, **fields: Any) -> AsyncIterator[Worker]:
    """Run a worker that the server has welcomed."""
    found = Worker(live.channel, *types, **fields)
    await found.start()
    try:
        yield found
    finally:
        await found.stop()


async def register(
    live: Live, plugin: Listening, instance_id: str = "listening-1", ttl: float | None = None, **fields: Any
) -> registry_pb2.RegisterResponse:
    """Register a listening plugin."""
    request = registry_pb2.RegisterRequest(
        plugin=fields.pop("plugin_info", plugin.info),
        instance_id=instance_id,
        target=fields.pop("target", plugin.address),
        **fields,
    )
    if ttl is not None:
        request.ttl.CopyFrom(duration(ttl))
    data = await live.raw(f"{REGISTRY}Register", request.SerializeToString())
    return registry_pb2.RegisterResponse.FromString(data)


async def renew(live: Live, lease_id: str, active_tasks: int = 0) -> registry_pb2.RenewLeaseResponse:
    """Renew a lease."""
    request = registry_pb2.RenewLeaseRequest(lease_id=lease_id, active_tasks=active_tasks)
    data = await live.raw(f"{REGISTRY}RenewLease", request.SerializeToString())
    return registry_pb2.RenewLeaseResponse.FromString(data)


async def deregister(live: Live, lease_id: str, *, drain: bool = False) -> None:
    """End a lease."""
    request = registry_pb2.DeregisterRequest(lease_id=lease_id, drain=drain)
    await live.raw(f"{REGISTRY}Deregister", request.SerializeToString())


async def registrations(live: Live, **fields: Any) -> registry_pb2.ListRegistrationsResponse:
    """Return a page of instances."""
    request = registry_pb2.ListRegistrationsRequest(**fields)
    data = await live.raw(f"{REGISTRY}ListRegistrations", request.SerializeToString())
    return registry_pb2.ListRegistrationsResponse.FromString(data)


async def states(live: Live) -> dict[str, str]:
    """Return the state of each instance by id."""
    found = (await registrations(live, page_size=1000)).registrations
    return {
        one.instance_id: registry_pb2.Registration.State.Name(one.state).removeprefix("STATE_").lower()
        for one in found
    }


def duration(seconds: float) -> Duration:
    """Return a protobuf duration."""
    found = Duration()
    found.FromNanoseconds(round(seconds * 1e9))
    return found


async def code_of(live: Live, answer: str = "hello", **fields: Any) -> str:
    """Return the error code of a call of acme.word; "" if it passed."""
    wanted = request(spec("acme.word", **fields), answer=answer)
    (result,) = (await live.unary(wanted)).summary.results
    return result.error.code or ("" if result.verdict == result_pb2.VERDICT_PASSED else "FAILED")


async def active(live: Live, *instance_ids: str, seconds: float = 5.0) -> None:
    """Wait until these instances are active."""

    async def are() -> bool:
        known = await states(live)
        return all(known.get(one) == "active" for one in instance_ids)

    await until(are, seconds)


WORD = spec("acme.word", {"word": "x"})
