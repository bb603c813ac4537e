"""A worker that dials out: the server sends tasks on the worker's stream, as many as the worker grants credit for."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from evald.plugin.v1 import registry_service_pb2, task_pb2
from evald_server import wire_pb2
from evald_server.config import Settings
from evald_server.fair_slots import count_down
from evald_server.wire_limits import parse_message

from .errors import ContractError, PluginTimeout, PluginUnavailable, Refusal, invalid, printable
from .instance import MAX_OUTPUT_BYTES, Instance, InstanceState, Mode, RemoteTask, TaskIds, read_answer
from .plugin_type import Plugin

_Frame = registry_service_pb2.AttachResponse

# A worker needs no more, and sums of grants must not overflow.
_MAX_CREDIT: Final = 10_000

_RECONNECT_SECONDS: Final = 1.0


class Frames(Protocol):
    """Both directions of the stream."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def send(self, data: bytes, /) -> Awaitable[None]:
        """Send a message."""


def read_frame(data: bytes) -> wire_pb2.AttachRequest:
    """Parse a worker's frame. Raises Refusal."""
    try:
        return parse_message(wire_pb2.AttachRequest, data)
    except DecodeError:
        raise Refusal(
            "UNREADABLE_MESSAGE",
            f"cannot parse evald.plugin.v1.AttachRequest from the {len(data)} bytes received",
        ) from None


@dataclass(slots=True)
class _PendingTask:
    """A task of the worker. output: serialized; None once its caller has left. unsent: its frame; empty once sent.

    principal: its caller.
    """

    output: "asyncio.Future[bytes] | None"
    principal: str
    progress: Callable[[str, float | None], None]
    unsent: list[bytes]

    def fail(self, problem: Exception) -> bool:
        """Raise the problem in the caller. Returns False if the caller has left."""
        if self.output is None or self.output.done():
            return False
        self.output.set_exception(problem)
        return True


class WorkerSession(Instance):
    """One stream of one worker.

    Each task costs one credit, which returns with the worker's answer. A cancelled task keeps its credit until then,
    because the worker may still be busy with it, or until a pong shows that the worker is not.
    """

    mode = Mode.CONNECTED

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the contract
        session_id: str,
        peer: str,
        plugin: Plugin,
        credit: int,
        settings: Settings,
        ids: TaskIds,
        changed: Callable[[Instance], None],
    ) -> None:
        super().__init__(id, peer, plugin, changed)
        self.state = InstanceState.ACTIVE
        self.session_id = session_id
        self.credit = min(credit, _MAX_CREDIT)
        self._settings = settings
        self._can_cancel = plugin.can(task_pb2.CAPABILITY_CANCEL)
        self._ids = ids
        # By id, including tasks whose caller has left while the worker still has them.
        self._tasks: dict[str, _PendingTask] = {}
        self._outgoing: deque[list[bytes]] = deque()  # one frame each; empty if it must not be sent any more
        self._posted = asyncio.Event()
        self._stop_writing = False
        self._writing: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nonce = 0
        self._pinged: frozenset[str] | None = None  # the pending tasks at the last ping; None: answered
        self._ponged = asyncio.Event()

    @property
    def slots(self) -> int:
        """See Instance. A cancelled task holds its slot as long as its credit."""
        return max(0, self.credit + self.held.total())

    @property
    def free(self) -> bool:
        """Whether the worker grants credit for one more task."""
        return self.credit > 0 and not self._over.done()

    @property
    def reachable(self) -> bool:
        """Whether the stream is open."""
        return not self._over.done()

    @property
    def load(self) -> float:
        """The share of its credit in use, from 0 to 1."""
        return self.active / max(1, self.active + self.credit)

    def claim(self, principal: str) -> None:
        """Take a credit."""
        super().claim(principal)
        self.credit -= 1

    def release(self, principal: str, *, sent: bool) -> None:
        """End a call. The credit of a task that was sent returns with the worker's answer."""
        self.active -= 1
        if not sent:
            count_down(self.held, principal)
            self.credit += 1

    async def serve(self, frames: Frames) -> None:
        """Serve the stream until it ends. Raises Refusal for frames that violate the protocol."""
        self._writing = writing = asyncio.create_task(self._write(frames))
        reading = asyncio.create_task(self._read(frames))
        pinging = asyncio.create_task(self._ping())
        try:
            await asyncio.wait({reading, writing, pinging, self._over}, return_when=asyncio.FIRST_COMPLETED)
            # A write fails only if the stream has ended, which the reader or gRPC reports.
            for done in (self._over, reading, pinging):
                if done.done():
                    done.result()
        except Refusal:
            self._outgoing.clear()
            self._end_writing()
            raise
        finally:
            reading.cancel()
            pinging.cancel()
            self.lost_tasks = self.active
            # This comes first: gRPC may cancel the call during the wait below, and no caller may wait for lost tasks.
            self.end()
            tasks, self._tasks = self._tasks, {}
            for pending in tasks.values():
                pending.unsent.clear()
                pending.fail(PluginUnavailable("the stream ended"))
            await asyncio.gather(reading, pinging, return_exceptions=True)

    async def flush(self) -> None:
        """Wait until all frames are sent or cannot be sent. Call it after `serve`.

        A write must not be cancelled: gRPC could then not send the status, and the worker would wait for it.
        A worker that does not read keeps its stream, and nothing else, until it reads or disconnects.
        """
        if self._writing is not None:
            self._end_writing()
            try:
                await asyncio.wait([self._writing])
            finally:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)

    async def run(self, task: RemoteTask) -> task_pb2.EvaluationOutput:
        """See Instance."""
        if self._over.done():
            raise PluginUnavailable("the session has ended")
        task_id, unsent = task.pb.task_id, [_Frame(task=task.pb).SerializeToString()]
        output: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._tasks[task_id] = pending = _PendingTask(output, task.principal, task.progress, unsent)
        self._post(unsent)
        try:
            async with asyncio.timeout(task.seconds):
                data = await output
        except (asyncio.CancelledError, TimeoutError) as problem:
            pending.output = None
            if task_id in self._tasks and unsent:
                # A worker that does not read must not fill the memory with tasks without a caller.
                unsent.clear()
                del self._tasks[task_id]
                self._return_credit(pending)
            elif task_id in self._tasks and self._can_cancel:
                self._send(_Frame(cancel_task_id=task_id))
            if isinstance(problem, TimeoutError):
                raise PluginTimeout from None
            raise
        return read_answer(task_pb2.EvaluationOutput, data, MAX_OUTPUT_BYTES)

    async def close(self) -> None:
        """End the stream with OK. The worker may connect again."""
        self.end()

    def welcome(self, contract: str, server_id: str) -> None:
        """Send the first frame."""
        settings = self._settings
        frame = _Frame()
        welcome = frame.welcome
        welcome.session_id, welcome.server_id = self.session_id, server_id
        welcome.contract_version = contract
        welcome.ping_interval.FromMilliseconds(int(settings.remote_ping_seconds * 1000))
        welcome.ping_timeout.FromMilliseconds(int(settings.remote_ping_seconds * 1000))
        welcome.max_task_bytes = settings.remote_max_task_bytes
        welcome.server_count = 1
        self._send(frame)

    def end(self, why: Refusal | None = None) -> None:
        """End the stream: with OK, or with the status of a refusal."""
        if self._over.done():
            return
        if why is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(why)
            self._over.exception()  # mark as retrieved: the stream may have ended by itself

    def send_draining(self, reason: str, grace: float) -> None:
        """Notify the worker that the server stops."""
        frame = _Frame()
        frame.draining.reason = reason
        frame.draining.reconnect_delay.FromMilliseconds(int(_RECONNECT_SECONDS * 1000))
        frame.draining.grace_period.FromMilliseconds(int(grace * 1000))
        self._send(frame)

    async def _read(self, frames: Frames) -> None:
        async for data in frames:
            self.last_seen = time.time()
            frame = read_frame(data)
            kind = frame.WhichOneof("frame")
            if kind == "completed":
                self._complete(frame.completed.task_id, frame.completed.output)
            elif kind == "progress":
                self._progress(frame.progress)
            elif kind == "credit":
                self._grant(frame.credit.delta)
            elif kind == "pong":
                self._pong(frame.pong)
            elif kind == "draining":
                reason = frame.draining.reason
                why = f"the worker is draining: {reason}" if reason else "the worker is draining"
                self.set_state(InstanceState.DRAINING, why)
            elif kind == "hello":
                raise invalid("frame", "got a second hello, wanted it only as the first frame")
            # Frame kinds of a later contract are ignored.

    async def _write(self, frames: Frames) -> None:
        """Send frames one at a time, until `_end_writing`."""
        outgoing = self._outgoing
        while True:
            while outgoing:
                if unsent := outgoing.popleft():
                    await frames.send(unsent.pop())
            if self._stop_writing:
                return
            self._posted.clear()
            await self._posted.wait()

    def _send(self, frame: registry_service_pb2.AttachResponse) -> None:
        self._post([frame.SerializeToString()])

    def _post(self, unsent: list[bytes]) -> None:
        self._outgoing.append(unsent)
        self._posted.set()

    def _end_writing(self) -> None:
        self._stop_writing = True
        self._posted.set()

    def _complete(self, task_id: str, output: bytes) -> None:
        pending = self._tasks.pop(task_id, None)
        if pending is not None:
            if pending.output is not None and not pending.output.done():
                pending.output.set_result(output)
            self._return_credit(pending)
        elif not self._ids.were_given(task_id):
            self._reject(task_id)
        # A late or repeated answer is harmless; its task has returned its credit already.

    def _reject(self, task_id: str) -> None:
        """Fail one pending task, because a worker that answers an unknown id will not answer one of its tasks."""
        shown = printable(task_id)[:60]
        self.log_problem(f"completed a task that it never received: {shown!r}")
        problem = ContractError(f"task_id: got {shown!r}, which is not a task of this plugin")
        for pending in self._tasks.values():
            if pending.fail(problem):
                return

    async def _ping(self) -> None:
        seconds = self._settings.remote_ping_seconds
        while True:
            await asyncio.sleep(seconds)
            self._nonce += 1
            self._pinged = frozenset(self._tasks)
            self._ponged.clear()
            ping = _Frame()
            ping.ping.nonce = self._nonce
            self._send(ping)
            try:
                async with asyncio.timeout(seconds):
                    await self._ponged.wait()
            except TimeoutError:
                why = f"no pong within {seconds:g}s"
                self.set_state(InstanceState.UNHEALTHY, why)
                raise Refusal("WORKER_SILENT", why) from None

    def _pong(self, pong: registry_service_pb2.Pong) -> None:
        """Process a pong, and return the credit of cancelled tasks that the worker has stopped."""
        if pong.nonce != self._nonce or self._pinged is None:
            return
        pinged, self._pinged = self._pinged, None
        self._ponged.set()
        # Frames keep their order: tasks that the worker had at the ping and has finished since are no longer in
        # `tasks`. So the worker has at most as many cancelled tasks as it counts beyond the other tasks.
        tasks = self._tasks
        left = [task_id for task_id in pinged if task_id in tasks]
        cancelled = [task_id for task_id in left if tasks[task_id].output is None]
        busy = max(0, pong.active_tasks - (len(left) - len(cancelled)))
        gone = cancelled[: max(0, len(cancelled) - busy)]
        for task_id in gone:
            count_down(self.held, tasks.pop(task_id).principal)
        if gone:
            self._grant(len(gone))

    def _progress(self, progress: registry_service_pb2.TaskProgress) -> None:
        pending = self._tasks.get(progress.task_id)
        if pending is not None and pending.output is not None:
            fraction = progress.fraction if progress.HasField("fraction") else None
            pending.progress(progress.message, fraction)

    def _return_credit(self, ended: _PendingTask) -> None:
        count_down(self.held, ended.principal)
        self._grant(1)

    def _grant(self, delta: int) -> None:
        self.credit = max(-_MAX_CREDIT, min(self.credit + delta, _MAX_CREDIT))
        for waiting in self.waiting:
            waiting.wake()
