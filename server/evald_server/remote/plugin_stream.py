"""EvaluateStream of a plugin that listens: all its tasks go over one call, which is opened once.

A call of its own for each task costs the server as much again as everything else that it does for the task.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited

from .open_tasks import OpenTasks
from .task import Broken, Lost, Task, TaskIds

# The field of evald.plugin.v1.EvaluateStreamRequest.
_TASK: Final = 1


class PluginStream:
    """Opened with the first task, and anew with the next one when it has ended.

    method: of the channel. trouble: what the end of a call means for its tasks. works: False once the
    plugin has said that it does not know the method.
    """

    def __init__(
        self,
        method: Any,
        ids: TaskIds,
        complain: Callable[[str], None],
        trouble: Callable[[grpc.aio.AioRpcError], Exception],
        *,
        cancels: bool,
    ) -> None:
        self.works = True
        self._method = method
        self._ids = ids
        self._complain = complain
        self._trouble = trouble
        self._cancel = _cancel if cancels else None
        self._tasks: OpenTasks | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self, task: Task) -> bytes:
        """See `Instance.run`."""
        tasks = self._tasks or self._open()
        try:
            return await tasks.run(task, delimited(_TASK, task.data))
        finally:
            # What is answered after that is known by its id, and dropped.
            tasks.by_id.pop(task.id, None)

    def end(self) -> None:
        """Take no more tasks. The plugin is told so, and may answer those that it has."""
        if self._tasks is not None:
            self._tasks.end()
            self._tasks = None

    async def close(self) -> None:
        """End it at once. Open tasks are Lost."""
        self.end()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _open(self) -> OpenTasks:
        self._tasks = tasks = OpenTasks(self._ids, self._complain, self._cancel)
        serving = asyncio.create_task(self._serve(tasks))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        return tasks

    async def _serve(self, tasks: OpenTasks) -> None:
        """Follow the call to its end."""
        call = self._method()
        writing = asyncio.create_task(_write(call, tasks))
        problem: Exception = Lost("the stream of tasks was closed")
        try:
            problem = await self._read(call, tasks)
        finally:
            if self._tasks is tasks:
                self._tasks = None
            tasks.fail(problem)
            writing.cancel()
            call.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _read(self, call: Any, tasks: OpenTasks) -> Exception:
        """Take answers until there are no more; give the reason."""
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                answer = wire_pb2.TaskCompleted.FromString(data)
                tasks.complete(answer.task_id, answer.output)
        except DecodeError:
            return Broken("the answer is no evald.plugin.v1.EvaluateStreamResponse")
        except grpc.aio.AioRpcError as problem:
            self.works = problem.code() is not grpc.StatusCode.UNIMPLEMENTED
            return self._trouble(problem)
        return Lost("the plugin ended the stream of tasks")


async def _write(call: Any, tasks: OpenTasks) -> None:
    await tasks.write(call.write)
    await call.done_writing()


def _cancel(task_id: str) -> bytes:
    return plugin_pb2.EvaluateStreamRequest(cancel_task_id=task_id).SerializeToString()
