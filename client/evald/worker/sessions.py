"""One session with one server: tasks come down it, outputs go up."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc

from ..contract import progress_said
from ..plugin.v1 import registry_service_pb2 as pb
from ..plugin.v1 import task_pb2
from .outbox import Outbox
from .outputs import error_output
from .tasks import Tasks

_log = logging.getLogger("evald.worker")

# A server that says nothing for so long after hello is none.
WELCOME_SECONDS: Final = 10.0
# How long the server may take to close its side when we have closed ours.
_GOODBYE_SECONDS: Final = 1.0
# On top of the server's own ping interval and time-out before a silent server is given up.
_SLACK_SECONDS: Final = 2.0
# Open tasks get this long when a server says that it stops, but not how long they have.
_DEFAULT_GRACE_SECONDS: Final = 30.0


class SessionLost(Exception):
    """The stream broke, or the server fell silent."""


async def greet(call: Any, hello: pb.WorkerHello) -> pb.ServerWelcome:
    """Introduce the worker over a new stream. Raises AioRpcError, SessionLost, TimeoutError."""
    async with asyncio.timeout(WELCOME_SECONDS):
        with suppress(asyncio.InvalidStateError):  # over already; the reader knows why
            await call.write(pb.ConnectRequest(hello=hello))
        frame = await call.read()
    if frame is grpc.aio.EOF:
        raise SessionLost("the server ended the stream before its welcome")
    if frame is None or frame.WhichOneof("frame") != "welcome":
        raise SessionLost("the server's first frame is no welcome")
    welcome: pb.ServerWelcome = frame.welcome
    return welcome


class Session:
    """What a server has given to this worker. It may outlive the stream: `attach` takes the next one.

    id, server_id: as the server said in its welcome. target: where it was dialled.
    credit: how many tasks the server may have open.
    server_stops: the server has said that it stops; reconnect_seconds: how long to stay away then.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.id = ""
        self.server_id = ""
        self.target = ""
        self.credit = 0
        self.server_stops = asyncio.Event()
        self.reconnect_seconds = 0.0
        self._tasks = tasks
        self._open: dict[str, asyncio.Task[None]] = {}
        self._outbox = Outbox()
        self._idle = asyncio.Event()
        self._idle.set()
        self._flushed = asyncio.Event()
        self._call: Any = None
        self._patience: float | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._is_over = False

    @property
    def open_tasks(self) -> int:
        """Tasks that the server waits for."""
        return len(self._open)

    def attach(self, call: Any, welcome: pb.ServerWelcome, credit: int) -> None:
        """Go on over this stream. credit: as said in the hello, on top of the open tasks."""
        self._call = call
        self.id, self.server_id = welcome.session_id, welcome.server_id
        self.credit = credit + len(self._open)
        self.server_stops.clear()
        self.reconnect_seconds = 0.0
        self._finishing = None
        self._is_over = False
        interval, limit = _seconds(welcome.ping_interval), _seconds(welcome.ping_timeout)
        self._patience = interval + limit + _SLACK_SECONDS if interval else None

    async def serve(self) -> None:
        """Do what the server says until the stream ends. Raises SessionLost when it broke."""
        sending = asyncio.create_task(self._send())
        try:
            await self._receive()
        except grpc.aio.AioRpcError as problem:
            raise SessionLost(f"{problem.code().name} {problem.details()}") from None
        except TimeoutError:
            raise SessionLost(f"no ping within {self._patience:g}s") from None
        finally:
            self._is_over = True
            sending.cancel()
            if self._finishing is not None:
                self._finishing.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._call.cancel()
            self._outbox.drop_transient()

    def set_credit(self, credit: int) -> None:
        """Let the server have so many tasks open."""
        if credit != self.credit:
            self._outbox.put(pb.ConnectRequest(credit=pb.CreditGrant(delta=credit - self.credit)))
            self.credit = credit

    async def drain(self, reason: str, grace_seconds: float) -> None:
        """Take no more tasks, finish the open ones within the grace, close the stream."""
        if self._is_over:
            return
        self._outbox.put(pb.ConnectRequest(draining=pb.WorkerDraining(reason=reason)))
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(grace_seconds))
        await asyncio.wait((self._finishing,), timeout=grace_seconds + _GOODBYE_SECONDS)

    def abandon(self) -> None:
        """Stop what still runs: its server will not take the outputs."""
        for work in self._open.values():
            work.cancel()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._patience) as limit:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame is None:
                    raise SessionLost("the server sent bytes that are no frame")
                if self._patience is not None:
                    limit.reschedule(loop.time() + self._patience)
                self._take(frame)

    def _take(self, frame: pb.ConnectResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "task":
            task = frame.task
            # One that is open already has been sent again after a broken stream.
            if task.task_id not in self._open:
                self._idle.clear()
                self._open[task.task_id] = asyncio.create_task(self._do(task))
        elif kind == "ping":
            self._outbox.put_pong(pb.Pong(nonce=frame.ping.nonce, active_tasks=len(self._open)))
        elif kind == "cancel_task_id":
            work = self._open.get(frame.cancel_task_id)
            if work is not None:
                work.cancel()
        elif kind == "draining":
            self.reconnect_seconds = _seconds(frame.draining.reconnect_delay)
            grace = _seconds(frame.draining.grace_period) or _DEFAULT_GRACE_SECONDS
            _log.info("server %s stops: %s", self.server_id, frame.draining.reason or "no reason given")
            self.server_stops.set()
            if self._finishing is None:
                self._finishing = asyncio.create_task(self._finish(grace))

    async def _do(self, task: task_pb2.EvaluationTask) -> None:
        loop = asyncio.get_running_loop()
        tell = partial(self._tell, task.task_id)

        def progress(message: str, fraction: float | None = None) -> None:
            # From whatever thread the evaluator runs in.
            said = progress_said(message, fraction)
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(tell, *said)

        try:
            output = await self._tasks.run(task, progress=progress)
        except asyncio.CancelledError:
            # Said all the same: it gives the credit back.
            output = error_output("CANCELLED", "The task was cancelled")
        del self._open[task.task_id]
        self._outbox.drop_progress(task.task_id)
        completed = pb.TaskCompleted(task_id=task.task_id, output=output)
        self._outbox.put(pb.ConnectRequest(completed=completed))
        if not self._open:
            self._idle.set()

    def _tell(self, task_id: str, message: str, fraction: float | None) -> None:
        if task_id not in self._open:
            return
        self._outbox.put_progress(pb.TaskProgress(task_id=task_id, message=message[:1000], fraction=fraction))

    async def _send(self) -> None:
        # A stream that broke is found out by the reader, who knows why.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                frame = await self._outbox.next()
                await self._call.write(frame)
                self._outbox.sent(frame)
                if self._outbox.is_empty:
                    self._flushed.set()

    async def _finish(self, grace_seconds: float) -> None:
        """Wait for the open tasks, then close the stream. Ends with the stream."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
                if not self._outbox.is_empty:
                    self._flushed.clear()
                    await self._flushed.wait()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
            await asyncio.sleep(_GOODBYE_SECONDS)
        self._call.cancel()


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)
