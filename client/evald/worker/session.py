"""A session with one server: receives tasks and sends outputs."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc

from ..contract import progress_said
from ..plugin.v1 import registry_service_pb2 as pb
from ..plugin.v1 import task_pb2
from ..stream_status import StreamStatus
from ..structs import duration_seconds
from .outputs import error_output
from .tasks import Tasks

_log = logging.getLogger("evald.worker")

# Timeout of the welcome.
WELCOME_SECONDS: Final = 10.0
# Time for the server to end the stream after the worker has half-closed it.
_GOODBYE_SECONDS: Final = 1.0
# Added to the server's ping interval and timeout before the session counts as lost.
_SLACK_SECONDS: Final = 2.0
# Grace period for open tasks if a stopping server sends none.
_DEFAULT_GRACE_SECONDS: Final = 30.0


class SessionLost(Exception):
    """The stream broke, or the server sent no ping."""


async def send_hello(call: Any, hello: pb.WorkerHello) -> pb.ServerWelcome:
    """Send hello over a new stream, and return the server's welcome.

    Raises AioRpcError, SessionLost, TimeoutError.
    """
    status = StreamStatus(call)
    async with asyncio.timeout(WELCOME_SECONDS):
        try:
            with suppress(asyncio.InvalidStateError):  # the stream is over; `read` reports why
                await call.write(pb.AttachRequest(hello=hello))
            frame = await call.read()
        except grpc.aio.AioRpcError as problem:
            raise await status.behind(problem) from None
    if frame is grpc.aio.EOF:
        raise SessionLost("the server ended the stream before its welcome")
    if frame is None or frame.WhichOneof("frame") != "welcome":
        raise SessionLost("the server's first frame is not a welcome")
    welcome: pb.ServerWelcome = frame.welcome
    return welcome


class ServerSession:
    """The tasks of one server, over one stream.

    id, server_id: from the server's welcome. target: the dialled address.
    credit: maximum open tasks of the server. server_stops: set when the server announces that it stops.
    reconnect_seconds: the delay before a reconnect that the server then requests.
    """

    def __init__(self, tasks: Tasks, call: Any, welcome: pb.ServerWelcome, credit: int, target: str) -> None:
        self.id = welcome.session_id
        self.server_id = welcome.server_id
        self.target = target
        self.credit = credit
        self.server_stops = asyncio.Event()
        self.reconnect_seconds = 0.0
        self._tasks = tasks
        self._call = call
        self._open: dict[str, asyncio.Task[None]] = {}
        self._outbox: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        # Unsent progress by task, so that later progress of the same task replaces it.
        self._unsent_progress: dict[str, pb.AttachRequest] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._finishing: asyncio.Task[None] | None = None
        self._is_over = False
        interval, limit = duration_seconds(welcome.ping_interval), duration_seconds(welcome.ping_timeout)
        self._silence_seconds = interval + limit + _SLACK_SECONDS if interval else None

    async def serve(self) -> None:
        """Serve the stream until it ends. Raises SessionLost if it broke."""
        sending = asyncio.create_task(self._send())
        try:
            await self._receive()
        except grpc.aio.AioRpcError as problem:
            raise SessionLost(f"{problem.code().name} {problem.details()}") from None
        except TimeoutError:
            raise SessionLost(f"no ping within {self._silence_seconds:g}s") from None
        finally:
            self._is_over = True
            sending.cancel()
            if self._finishing is not None:
                self._finishing.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._call.cancel()

    def set_credit(self, credit: int) -> None:
        """Set the maximum number of open tasks, and send the change to the server."""
        if credit != self.credit:
            self._outbox.put_nowait(pb.AttachRequest(credit=pb.CreditGrant(delta=credit - self.credit)))
            self.credit = credit

    async def drain(self, reason: str, grace_seconds: float) -> None:
        """Announce draining, finish the open tasks within the grace period, and close the stream."""
        if self._is_over:
            return
        self._outbox.put_nowait(pb.AttachRequest(draining=pb.WorkerDraining(reason=reason)))
        if self._finishing is None:
            self._finishing = asyncio.create_task(self._finish(grace_seconds))
        await asyncio.wait((self._finishing,), timeout=grace_seconds + _GOODBYE_SECONDS)

    def abandon(self) -> None:
        """Cancel all tasks, because the server will not take their outputs."""
        for work in self._open.values():
            work.cancel()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._silence_seconds) as limit:
            while (frame := await self._call.read()) is not grpc.aio.EOF:
                if frame is None:
                    raise SessionLost("the server sent bytes that cannot be parsed as a frame")
                if self._silence_seconds is not None:
                    limit.reschedule(loop.time() + self._silence_seconds)
                self._handle(frame)

    def _handle(self, frame: pb.AttachResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "task":
            task = frame.task
            if task.task_id not in self._open:
                self._idle.clear()
                self._open[task.task_id] = asyncio.create_task(self._run_task(task))
        elif kind == "ping":
            pong = pb.Pong(nonce=frame.ping.nonce, active_tasks=len(self._open))
            # After the outputs of finished tasks: the server counts on the order.
            self._outbox.put_nowait(pb.AttachRequest(pong=pong))
        elif kind == "cancel_task_id":
            work = self._open.get(frame.cancel_task_id)
            if work is not None:
                work.cancel()
        elif kind == "draining":
            self.reconnect_seconds = duration_seconds(frame.draining.reconnect_delay)
            grace = duration_seconds(frame.draining.grace_period) or _DEFAULT_GRACE_SECONDS
            _log.info("server %s is stopping: %s", self.server_id, frame.draining.reason or "no reason given")
            self.server_stops.set()
            if self._finishing is None:
                self._finishing = asyncio.create_task(self._finish(grace))

    async def _run_task(self, task: task_pb2.EvaluationTask) -> None:
        loop = asyncio.get_running_loop()
        tell = partial(self._tell, task.task_id)

        def progress(message: str, fraction: float | None = None) -> None:
            # The evaluator calls this in its thread.
            said = progress_said(message, fraction)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell, *said)

        try:
            output = await self._tasks.run(task, progress=progress)
        except asyncio.CancelledError:
            # Send an output, because it returns the credit.
            output = error_output("CANCELLED", "The task was cancelled")
        del self._open[task.task_id]
        completed = pb.TaskCompleted(task_id=task.task_id, output=output)
        self._outbox.put_nowait(pb.AttachRequest(completed=completed))
        if not self._open:
            self._idle.set()

    def _tell(self, task_id: str, message: str, fraction: float | None) -> None:
        if task_id not in self._open:
            return
        progress = pb.TaskProgress(task_id=task_id, message=message[:1000], fraction=fraction)
        unsent = self._unsent_progress.get(task_id)
        if unsent is not None:
            unsent.progress.CopyFrom(progress)
            return
        self._unsent_progress[task_id] = frame = pb.AttachRequest(progress=progress)
        self._outbox.put_nowait(frame)

    async def _send(self) -> None:
        # `_receive` reports a broken stream.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                frame = await self._outbox.get()
                if frame.WhichOneof("frame") == "progress":
                    del self._unsent_progress[frame.progress.task_id]
                await self._call.write(frame)
                self._outbox.task_done()

    async def _finish(self, grace_seconds: float) -> None:
        """Wait for the open tasks, then close the stream."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
                await self._outbox.join()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
            await asyncio.sleep(_GOODBYE_SECONDS)
        self._call.cancel()
