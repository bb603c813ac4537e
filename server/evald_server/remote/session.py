"""A worker that has dialled out: tasks go down its stream, as many as it allows."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from evald.plugin.v1 import registry_service_pb2, task_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited

from .instance import Instance, Mode, State
from .limits import Limits
from .offer import Plugin
from .open_tasks import OpenTasks
from .refusal import Refusal, invalid
from .task import Lost, Task, TaskIds

_Frame = registry_service_pb2.ConnectResponse

# The field of evald.plugin.v1.ConnectResponse.
_TASK: Final = 2

# A worker has no use for more, and sums of grants must not overflow.
_MOST_CREDIT: Final = 10_000

_RECONNECT_SECONDS: Final = 1.0


class Frames(Protocol):
    """Both directions of the stream."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def send(self, data: bytes, /) -> Awaitable[None]:
        """Send a message."""


def read_frame(data: bytes) -> wire_pb2.ConnectRequest:
    """A worker's frame. Raises Refusal for bytes that are none."""
    try:
        return wire_pb2.ConnectRequest.FromString(data)
    except DecodeError:
        raise Refusal(
            "UNREADABLE_MESSAGE", f"the {len(data)} bytes are no evald.plugin.v1.ConnectRequest"
        ) from None


class Session(Instance):
    """One stream of one worker.

    Every task costs a credit, which comes back when the worker says that the task is done. A task that
    was cancelled keeps its credit until then, because the worker may still be busy with it, or until
    a pong says that it is not.
    """

    mode = Mode.CONNECTED

    def __init__(
        self,
        id: str,  # noqa: A002 - as it is
        session_id: str,
        peer: str,
        plugin: Plugin,
        credit: int,
        limits: Limits,
        ids: TaskIds,
        changed: Callable[[Instance], None],
    ) -> None:
        super().__init__(id, peer, plugin, changed)
        self.state = State.ACTIVE
        self.session_id = session_id
        self.credit = min(credit, _MOST_CREDIT)
        self._limits = limits
        cancel = _cancel if plugin.can(task_pb2.CAPABILITY_CANCEL) else None
        self._tasks = OpenTasks(ids, self.complain, cancel)
        self._writing: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nonce = 0
        self._asked: frozenset[str] | None = None  # the tasks that it had at the last ping; None: answered
        self._answered = asyncio.Event()

    @property
    def free(self) -> bool:
        """Whether the worker allows one more task."""
        return self.credit > 0 and not self._over.done()

    @property
    def reachable(self) -> bool:
        """Whether the stream is open."""
        return not self._over.done()

    @property
    def load(self) -> float:
        """Share of what it allows that is taken."""
        return self.active / max(1, self.active + self.credit)

    def claim(self) -> None:
        """Take a credit."""
        self.active += 1
        self.credit -= 1

    def give_back(self, *, used: bool) -> None:
        """The call is over. A credit that was used comes back with the worker's word."""
        self.active -= 1
        if not used:
            self.credit += 1

    async def serve(self, frames: Frames) -> None:
        """Follow the stream to its end. Raises Refusal for frames that break the protocol."""
        self._writing = writing = asyncio.create_task(self._tasks.write(frames.send))
        reading = asyncio.create_task(self._read(frames))
        pinging = asyncio.create_task(self._ping())
        try:
            await asyncio.wait({reading, writing, pinging, self._over}, return_when=asyncio.FIRST_COMPLETED)
            # A write fails only when the stream is gone, of which the reader and gRPC tell.
            for done in (self._over, reading, pinging):
                if done.done():
                    done.result()
        except Refusal:
            self._tasks.end(at_once=True)
            raise
        finally:
            reading.cancel()
            pinging.cancel()
            await asyncio.gather(reading, pinging, return_exceptions=True)
            self._lose("the stream ended")

    async def flush(self) -> None:
        """Wait until what is left to send has been sent, or cannot be. To be called after `serve`.

        A write must not be cut short: gRPC could then not send the status either, and the worker would
        wait for it. One that does not read keeps its stream, and nothing else, until it does or is gone.
        """
        if self._writing is not None:
            self._tasks.end()
            try:
                await asyncio.wait([self._writing])
            finally:
                self._writing.cancel()
                await asyncio.gather(self._writing, return_exceptions=True)

    async def run(self, task: Task) -> bytes:
        """See Instance. The credit comes back when the worker says that it is done."""
        if self._over.done():
            raise Lost("the session is over")
        return await self._tasks.run(task, delimited(_TASK, task.data))

    async def close(self) -> None:
        """End the stream well. The worker may connect again."""
        self.end()

    def welcome(self, contract: str, server_id: str) -> None:
        """Say what the worker needs to know. The first frame."""
        limits = self._limits
        frame = _Frame()
        welcome = frame.welcome
        welcome.session_id, welcome.server_id = self.session_id, server_id
        welcome.contract_version = contract
        welcome.ping_interval.FromMilliseconds(int(limits.ping_seconds * 1000))
        welcome.ping_timeout.FromMilliseconds(int(limits.ping_timeout * 1000))
        welcome.max_task_bytes = limits.task_bytes
        welcome.server_count = 1
        self._send(frame)

    def end(self, why: Refusal | None = None) -> None:
        """End the stream, with a status that says why, or well."""
        if self._over.done():
            return
        if why is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(why)
            self._over.exception()  # looked at, even if the stream has just ended by itself

    def tell_draining(self, reason: str, grace: float) -> None:
        """Tell the worker that the server stops."""
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
                self._complete(frame.completed)
            elif kind == "progress":
                self._progress(frame.progress)
            elif kind == "credit":
                self._grant(frame.credit.delta)
            elif kind == "pong":
                self._hear(frame.pong)
            elif kind == "draining":
                self._drain(frame.draining.reason)
            elif kind == "hello":
                raise invalid("frame", "a second hello; wanted it once, as the first frame")
            # Else a case that this server does not know, which it skips.

    async def _ping(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(limits.ping_seconds)
            self._nonce += 1
            self._asked = frozenset(self._tasks.by_id)
            self._answered.clear()
            ping = _Frame()
            ping.ping.nonce = self._nonce
            self._send(ping)
            try:
                async with asyncio.timeout(limits.ping_timeout):
                    await self._answered.wait()
            except TimeoutError:
                why = f"no pong within {limits.ping_timeout:g}s"
                self.set_state(State.UNHEALTHY, why)
                raise Refusal("WORKER_SILENT", why) from None

    def _complete(self, completed: wire_pb2.TaskCompleted) -> None:
        # What was not expected gave its credit back already.
        if self._tasks.complete(completed.task_id, completed.output):
            self._credit_back(1)

    def _progress(self, progress: registry_service_pb2.TaskProgress) -> None:
        opened = self._tasks.by_id.get(progress.task_id)
        if opened is not None and opened.done is not None:
            opened.task.progress(
                progress.message, progress.fraction if progress.HasField("fraction") else None
            )

    def _grant(self, delta: int) -> None:
        self.credit = max(-_MOST_CREDIT, min(self.credit + delta, _MOST_CREDIT))
        for pool in self.pools:
            pool.wake()

    def _credit_back(self, count: int) -> None:
        if count:
            self._grant(count)

    def _hear(self, pong: registry_service_pb2.Pong) -> None:
        if pong.nonce != self._nonce or self._asked is None:
            return
        had, self._asked = self._asked, None
        self._answered.set()
        # Frames keep their order: whatever the worker had when it read the ping and has finished since
        # is out of `by_id` by now. So of the cancelled tasks it can have no more than it counts beyond the
        # others.
        by_id = self._tasks.by_id
        left = [task_id for task_id in had if task_id in by_id]
        cancelled = [task_id for task_id in left if by_id[task_id].done is None]
        busy = max(0, pong.active_tasks - (len(left) - len(cancelled)))
        gone = cancelled[: max(0, len(cancelled) - busy)]
        for task_id in gone:
            del by_id[task_id]
        self._credit_back(len(gone))

    def _drain(self, reason: str) -> None:
        self.set_state(State.DRAINING, f"the worker drains: {reason}" if reason else "the worker drains")

    def _lose(self, why: str) -> None:
        if not self._over.done():
            self._over.set_result(None)
        self._tasks.fail(Lost(why))

    def _send(self, frame: registry_service_pb2.ConnectResponse) -> None:
        self._tasks.post(frame.SerializeToString())


def _cancel(task_id: str) -> bytes:
    return _Frame(cancel_task_id=task_id).SerializeToString()
