"""A scripted registry on a real port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from evald.plugin.v1 import registry_service_pb2 as pb
from evald.plugin.v1 import registry_service_pb2_grpc, task_pb2
from evald.v1 import context_pb2

from ..ports import free_address

PATIENCE = 20.0


class Link:
    """An Attach stream on the server's side. frames: frames from the worker that no test has taken."""

    def __init__(self, hello: pb.WorkerHello, session_id: str, context: Any) -> None:
        self.hello = hello
        self.session_id = session_id
        self.frames: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self.credit = hello.initial_credit
        self.ended = asyncio.Event()
        self._context = context

    async def send(self, **frame: Any) -> None:
        await self._context.write(pb.AttachResponse(**frame))

    async def give(self, task: task_pb2.EvaluationTask) -> None:
        self.credit -= 1
        await self.send(task=task)

    async def take(self, kind: str) -> Any:
        """Return the next frame, which must be of this kind."""
        async with asyncio.timeout(PATIENCE):
            frame = await self.frames.get()
        assert frame.WhichOneof("frame") == kind, frame
        return getattr(frame, kind)

    async def output(self, task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        """Return the worker's output for a task."""
        await self.give(task)
        completed = await self.take("completed")
        assert completed.task_id == task.task_id
        return completed.output  # type: ignore[no-any-return]

    async def ping(self) -> None:
        """Send a ping and wait for the pong, which must be the next frame."""
        await self.send(ping=pb.Ping(nonce=7))
        assert (await self.take("pong")).nonce == 7

    async def break_off(self) -> None:
        """Break the stream, like a network failure."""
        self.ended.set()


class Registry(registry_service_pb2_grpc.RegistryServiceServicer):
    """The scripted server.

    links: streams by order of their welcome. registered, renewed, deregistered: the requests.
    lease_state: what renewals say. refuse: status code for Attach and Register, None to accept.
    """

    def __init__(self, server_id: str = "server-1", **welcome: Any) -> None:
        self.server_id = server_id
        self.welcome = welcome
        self.address = ""
        self.links: list[Link] = []
        self.hellos: list[pb.WorkerHello] = []
        self.new_link: asyncio.Queue[Link] = asyncio.Queue()
        self.refuse: grpc.StatusCode | None = None
        self.registered: asyncio.Queue[pb.RegisterRequest] = asyncio.Queue()
        self.renewed: asyncio.Queue[pb.KeepAliveRequest] = asyncio.Queue()
        self.deregistered: asyncio.Queue[pb.DeregisterRequest] = asyncio.Queue()
        self.lease_state = pb.LEASE_STATE_ACTIVE
        self.renew_ms = 100
        self._server: Any = None

    async def link(self) -> Link:
        """Wait for the next worker that connects."""
        async with asyncio.timeout(PATIENCE):
            return await self.new_link.get()

    async def Attach(self, _frames: Any, context: Any) -> None:  # noqa: N802
        first = await context.read()
        hello = first.hello
        self.hellos.append(hello)
        if self.refuse is not None:
            await context.abort(self.refuse, "no")
        link = Link(hello, f"session-{len(self.links) + 1}", context)
        self.links.append(link)
        welcome = pb.ServerWelcome(
            session_id=link.session_id,
            contract_version="evald.plugin.v1",
            server_id=self.server_id,
            **self.welcome,
        )
        await link.send(welcome=welcome)
        await self.new_link.put(link)
        reading = asyncio.create_task(self._read(link, context))
        broken = asyncio.create_task(link.ended.wait())
        try:
            await asyncio.wait((reading, broken), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
        finally:
            link.ended.set()
            reading.cancel()
            broken.cancel()

    async def _read(self, link: Link, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if frame.WhichOneof("frame") == "completed":
                link.credit += 1
            elif frame.WhichOneof("frame") == "credit":
                link.credit += frame.credit.delta
            await link.frames.put(frame)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:  # noqa: N802
        if self.refuse is not None:
            await context.abort(self.refuse, "no")
        await self.registered.put(request)
        response = pb.RegisterResponse(lease_id=f"lease-{request.instance_id}", server_id=self.server_id)
        response.ttl.FromMilliseconds(3 * self.renew_ms)
        response.renew_interval.FromMilliseconds(self.renew_ms)
        return response

    async def KeepAlive(self, _requests: Any, context: Any) -> None:  # noqa: N802
        while (request := await context.read()) is not grpc.aio.EOF:
            await self.renewed.put(request)
            await context.write(pb.KeepAliveResponse(lease_id=request.lease_id, state=self.lease_state))

    async def Deregister(self, request: pb.DeregisterRequest, context: Any) -> pb.DeregisterResponse:  # noqa: N802
        await self.deregistered.put(request)
        return pb.DeregisterResponse()

    async def start(self, listen: str | None = None) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        registry_service_pb2_grpc.add_RegistryServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(listen or free_address())}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


@asynccontextmanager
async def registry(**options: Any) -> AsyncIterator[Registry]:
    """Run a registry that listens."""
    server = Registry(**options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def take(queue: "asyncio.Queue[Any]") -> Any:
    """Return the next item of a queue, within a time limit."""
    async with asyncio.timeout(PATIENCE):
        return await queue.get()


def task(
    task_id: str = "task-1",
    type: str = "acme.polite",  # noqa: A002
    answer: str | None = "Yes, please.",
    config: dict[str, Any] | None = None,
    timeout_ms: int = 0,
    **fields: Any,
) -> task_pb2.EvaluationTask:
    """Return a task about one short turn."""
    pb_task = task_pb2.EvaluationTask(task_id=task_id, type=type, attempt=1, **fields)
    context = context_pb2.EvaluatorContext(turn=1)
    context.messages.add(role="user", text="Tea?")
    if answer is not None:
        context.messages.add(role="assistant", text=answer)
    pb_task.context.CopyFrom(context)
    pb_task.config.update(config or {})
    if timeout_ms:
        pb_task.timeout.FromMilliseconds(timeout_ms)
    return pb_task
