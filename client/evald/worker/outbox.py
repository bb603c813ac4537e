"""Frames on their way out of a session."""

import asyncio
from collections import deque

from ..plugin.v1.registry_service_pb2 import ConnectRequest, Pong, TaskProgress


class Outbox:
    """Pongs first, then what must arrive, in order; of each task's progress only the latest.

    It outlives a broken stream, so that what was finished meanwhile is told over the next one.
    """

    def __init__(self) -> None:
        self._pong: Pong | None = None
        self._frames: deque[ConnectRequest] = deque()
        self._progress: dict[str, TaskProgress] = {}
        self._filled = asyncio.Event()

    def put(self, frame: ConnectRequest) -> None:
        """Send a frame after those before it."""
        self._frames.append(frame)
        self._filled.set()

    def put_pong(self, pong: Pong) -> None:
        """Answer a ping before everything else."""
        self._pong = pong
        self._filled.set()

    def put_progress(self, progress: TaskProgress) -> None:
        """Tell a task's progress, in place of what it said last and nobody has heard yet."""
        self._progress[progress.task_id] = progress
        self._filled.set()

    def drop_progress(self, task_id: str) -> None:
        """The task is over: nobody cares any more."""
        self._progress.pop(task_id, None)

    def drop_transient(self) -> None:
        """Forget what means nothing on another stream."""
        self._pong = None
        self._progress.clear()
        self._frames = deque(frame for frame in self._frames if frame.WhichOneof("frame") == "completed")

    async def next(self) -> ConnectRequest:
        """The next frame, as soon as there is one. It stays first until `sent`."""
        while True:
            if self._pong is not None:
                return ConnectRequest(pong=self._pong)
            if self._frames:
                return self._frames[0]
            if self._progress:
                return ConnectRequest(progress=next(iter(self._progress.values())))
            self._filled.clear()
            await self._filled.wait()

    def sent(self, frame: ConnectRequest) -> None:
        """The frame that `next` gave is on its way."""
        kind = frame.WhichOneof("frame")
        if kind == "pong":
            if self._pong is not None and self._pong.nonce == frame.pong.nonce:
                self._pong = None
        elif kind == "progress":
            if self._progress.get(frame.progress.task_id) == frame.progress:
                del self._progress[frame.progress.task_id]
        elif self._frames and self._frames[0] is frame:
            self._frames.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether everything is on its way."""
        return not (self._pong or self._frames or self._progress)
