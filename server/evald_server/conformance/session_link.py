"""Link to a plugin that dials out: the kit serves RegistryService.Attach."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from evald.credentials import Tls, server_credentials
from evald.plugin.v1 import registry_service_pb2 as pb
from evald.plugin.v1 import registry_service_pb2_grpc, task_pb2
from evald.worker.offer import CONTRACT
from evald_server.remote.instance import MAX_OUTPUT_BYTES

from .link import NO_ANSWER, PATIENCE_SECONDS, Link, PendingReply, PluginGone, PluginReply

_GOODBYE_SECONDS: Final = 0.5
# Longer than any check runs: only rules send pings.
_PING_SECONDS: Final = 3600


class AttachStream:
    """One Attach stream.

    hello: None if the first frame was another one. frames: all frames after it. problems: violations of the
        protocol. ended: the stream has ended. closed_by_plugin: the plugin half-closed it.
    """

    def __init__(self, hello: pb.WorkerHello | None, session_id: str, context: Any) -> None:
        self.hello = hello
        self.session_id = session_id
        self.credit = hello.initial_credit if hello else 0
        self.most_credit = self.credit
        self.frames: list[pb.AttachRequest] = []
        self.problems: list[str] = []
        self.open: dict[str, asyncio.Future[pb.TaskCompleted]] = {}
        self.ended = asyncio.Event()
        self.closed_by_plugin = False
        self._given: set[str] = set()
        self._ending = asyncio.Event()
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._context = context

    async def serve(self) -> None:
        """Read frames until one side ends the stream."""
        reading = asyncio.create_task(self._read())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await self._context.abort(grpc.StatusCode.UNAVAILABLE, "the conformance kit ends the stream")
        finally:
            reading.cancel()
            ending.cancel()
            self.ended.set()
            for waiting in self.open.values():
                waiting.cancel()
            async with self._changed:
                self._changed.notify_all()

    def end(self) -> None:
        """Abort the stream."""
        self._ending.set()

    async def send(self, **frame: Any) -> None:
        """Send a frame. Raises PluginGone."""
        await self.send_bytes(pb.AttachResponse(**frame).SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        """Send raw bytes as a frame. Raises PluginGone."""
        if self.ended.is_set():
            raise PluginGone("the plugin has ended the session")
        try:
            async with self._writing:
                await self._context.write(data)
        except (grpc.aio.BaseError, asyncio.InvalidStateError, grpc.aio.UsageError):
            self.end()
            await self.ended.wait()
            raise PluginGone("the plugin has ended the session") from None

    async def give(self, task: task_pb2.EvaluationTask) -> "asyncio.Future[pb.TaskCompleted]":
        """Send a task as soon as there is credit for it. Raises PluginGone."""
        async with self._changed:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._changed.wait_for(lambda: self.credit > 0 or self.ended.is_set())
            except TimeoutError:
                raise PluginGone(f"no credit within {PATIENCE_SECONDS:g}s") from None
            self.credit -= 1
            completed: asyncio.Future[pb.TaskCompleted] = asyncio.get_running_loop().create_future()
            self.open[task.task_id] = completed
            self._given.add(task.task_id)
        await self.send(task=task)
        return completed

    async def until(self, holds: Any, seconds: float) -> bool:
        """Return whether a condition on the frames becomes true within `seconds`."""
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait_for(lambda: holds() or self.ended.is_set())
            except TimeoutError:
                return False
        return bool(holds())

    async def _read(self) -> None:
        while (data := await self._context.read()) is not grpc.aio.EOF:
            try:
                frame = pb.AttachRequest.FromString(data)
            except DecodeError:
                self.problems.append(f"cannot parse a frame from the {len(data)} bytes received")
                continue
            async with self._changed:
                self.frames.append(frame)
                self._take(frame)
                self._changed.notify_all()
        self.closed_by_plugin = True

    def _take(self, frame: pb.AttachRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "completed":
            task_id = frame.completed.task_id
            waiting = self.open.pop(task_id, None)
            if waiting is None:
                why = "is not open any more" if task_id in self._given else "was never sent"
                self.problems.append(f"completed {task_id[:60]!r}, which {why}")
                return
            self.credit += 1
            if not waiting.done():
                waiting.set_result(frame.completed)
        elif kind == "credit":
            self.credit += frame.credit.delta
        elif kind == "progress":
            self._check_progress(frame.progress)
        elif kind == "hello":
            self.problems.append("sent a second hello")
        self.most_credit = max(self.most_credit, self.credit + len(self.open))

    def _check_progress(self, progress: pb.TaskProgress) -> None:
        if progress.task_id not in self.open:
            self.problems.append(f"progress of {progress.task_id[:60]!r}, which is not open")
        if progress.HasField("fraction") and not 0 <= progress.fraction <= 1:
            self.problems.append(f"progress: fraction is {progress.fraction:g}, not between 0 and 1")


class SessionLink(Link, registry_service_pb2_grpc.RegistryServiceServicer):
    """A plugin that dials the kit. Call `open`, then `arrived`.

    tls: the kit's certificate, and optionally the CA of the certificates required of plugins; None for plaintext.
    token: the token required of plugins; "" for none.
    """

    mode = "connect"

    def __init__(self, listen: str, tls: Tls | None = None, token: str = "") -> None:
        super().__init__()
        self.tls = tls
        self._token = token
        self._refused = 0
        self.info = task_pb2.PluginInfo()  # until its hello
        self.address = listen
        self.streams: list[AttachStream] = []
        self._arrived = asyncio.Condition()
        self._server: Any = None

    async def open(self) -> None:
        """Listen. Raises OSError if the address cannot be bound, InvalidInput for a file that cannot be read."""
        credentials = None if self.tls is None else server_credentials(self.tls)
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", 4 * MAX_OUTPUT_BYTES),
            ]
        )
        handler: Any = grpc.stream_stream_rpc_method_handler(self._connect)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("evald.plugin.v1.RegistryService", {"Attach": handler})]
        )
        try:
            port = (
                server.add_insecure_port(self.address)
                if credentials is None
                else server.add_secure_port(self.address, credentials)
            )
        except RuntimeError:
            raise OSError(f"cannot listen at {self.address}; another program may be using it") from None
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        self._server = server

    async def arrived(self, seconds: float, *, after: int = 0) -> AttachStream:
        """Wait until there are more than `after` streams; return the newest. Raises PluginGone."""
        async with self._arrived:
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait_for(lambda: len(self.streams) > after)
            except TimeoutError:
                without = f"; {self._refused} connections came without the token" if self._refused else ""
                if self.tls is not None and self.tls.ca is not None:
                    without += (
                        "; what dialled and showed no certificate of --ca was refused in the TLS handshake: give the "
                        "plugin one (EVALD_CERT_FILE, EVALD_KEY_FILE), or leave out --ca"
                    )
                raise PluginGone(
                    f"no plugin has dialled {self.address} within {seconds:g}s{without}"
                ) from None
        stream = self.streams[-1]
        if stream.hello is not None:
            self.info = stream.hello.plugin
        return stream

    @property
    def stream(self) -> AttachStream:
        """The newest stream."""
        return self.streams[-1]

    async def start(self, task: task_pb2.EvaluationTask) -> PendingReply:
        """See Link."""
        stream = self.stream
        if stream.ended.is_set():
            stream = await self.arrived(PATIENCE_SECONDS, after=len(self.streams))
        return _SessionTask(self, stream, task, await stream.give(task))

    async def respond(self, seconds: float) -> bool:
        """See Link."""
        return await self.ping(seconds) is not None

    async def ping(self, seconds: float) -> pb.Pong | None:
        """Send a ping and return the pong, or None after `seconds`. Raises PluginGone."""
        stream = self.stream
        nonce = len(stream.frames) + 1000
        await stream.send(ping=pb.Ping(nonce=nonce))

        def pong() -> pb.Pong | None:
            return next(
                (
                    frame.pong
                    for frame in stream.frames
                    if frame.WhichOneof("frame") == "pong" and frame.pong.nonce == nonce
                ),
                None,
            )

        await stream.until(pong, seconds)
        return pong()

    async def recover(self, seconds: float) -> None:
        """See Link."""
        if self.stream.ended.is_set():
            await self.arrived(seconds, after=len(self.streams))

    async def go_away(self) -> None:
        """Close the port and all streams, like a server that is killed."""
        await self._server.stop(None)

    async def close(self) -> None:
        """See Link."""
        if self._server is not None:
            # Ended first, because the server's stop would log every handler that it cancels.
            for stream in self.streams:
                stream.end()
            await self._server.stop(_GOODBYE_SECONDS)

    async def _connect(self, _frames: Any, context: Any) -> None:
        brought = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        if self._token and brought != [f"Bearer {self._token}"]:
            self._refused += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wanted the token of --token-file")
        data = await context.read()
        first = pb.AttachRequest()
        # Bytes that cannot be parsed are no hello, which has a rule of its own.
        with suppress(DecodeError):
            first = pb.AttachRequest.FromString(b"" if data is grpc.aio.EOF else data)
        hello = first.hello if first.WhichOneof("frame") == "hello" else None
        stream = AttachStream(hello, f"session-{len(self.streams) + 1}", context)
        welcome = pb.ServerWelcome(
            session_id=stream.session_id,
            contract_version=CONTRACT,
            server_id="conformance",
            server_count=1,
            max_task_bytes=16 << 20,
        )
        welcome.ping_interval.seconds = _PING_SECONDS
        welcome.ping_timeout.seconds = _PING_SECONDS
        await context.write(pb.AttachResponse(welcome=welcome).SerializeToString())
        async with self._arrived:
            self.streams.append(stream)
            self._arrived.notify_all()
        await stream.serve()


@dataclass(frozen=True, slots=True)
class _SessionTask(PendingReply):
    """A task sent over a session."""

    link: SessionLink
    stream: AttachStream
    task: task_pb2.EvaluationTask
    completed: "asyncio.Future[pb.TaskCompleted]"

    async def reply(self, seconds: float = PATIENCE_SECONDS) -> PluginReply:
        """See PendingReply."""
        await asyncio.wait((self.completed,), timeout=seconds)
        if not self.completed.done():
            return NO_ANSWER
        if self.completed.cancelled():
            return PluginReply(detail="the session ended before there was an answer")
        return self.link.record(self.task, self.completed.result().output)

    async def cancel(self) -> None:
        """See PendingReply."""
        await self.stream.send(cancel_task_id=self.task.task_id)
