"""Tasks that were sent down one stream, and are answered in any order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .instance import printable
from .task import Broken, Late, Task, TaskIds


@dataclass(slots=True)
class OpenTask:
    """A task that the plugin has. done: None once nobody waits for it any more."""

    done: "asyncio.Future[bytes] | None"
    task: Task

    def fail(self, problem: Exception) -> bool:
        """Tell who waits. False: nobody does."""
        if self.done is None or self.done.done():
            return False
        self.done.set_exception(problem)
        return True


class OpenTasks:
    """What one stream has to send, and what is expected back.

    by_id: tasks that are not answered, those that nobody waits for any more among them.
    complain: told when the plugin breaks the rules. cancel: makes the frame that cancels the task of an id;
    None for a plugin that could not cancel it.
    """

    def __init__(
        self,
        ids: TaskIds,
        complain: Callable[[str], None],
        cancel: Callable[[str], bytes] | None,
    ) -> None:
        self.by_id: dict[str, OpenTask] = {}
        self._ids = ids
        self._complain = complain
        self._cancel = cancel
        self._outgoing: deque[bytes] = deque()
        self._something = asyncio.Event()
        self._ending = False

    async def run(self, task: Task, frame: bytes) -> bytes:
        """Send a task in its frame; give its output. Raises Late, Lost, Broken."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()
        self.by_id[task.id] = opened = OpenTask(done, task)
        self.post(frame)
        timer = loop.call_later(task.seconds, _run_out, done)
        try:
            return await done
        except (asyncio.CancelledError, Late):
            opened.done = None
            if self._cancel is not None and task.id in self.by_id:
                self.post(self._cancel(task.id))
            raise
        finally:
            timer.cancel()

    def complete(self, task_id: str, output: bytes) -> bool:
        """The plugin has answered. False: it was not expected to."""
        opened = self.by_id.pop(task_id, None)
        if opened is None:
            # Late, or said twice, is harmless.
            if not self._ids.were_given(task_id):
                self._blame(task_id)
            return False
        if opened.done is not None and not opened.done.done():
            opened.done.set_result(output)
        return True

    def fail(self, problem: Exception) -> None:
        """No open task will be answered any more. problem: of the kinds that `run` raises."""
        tasks, self.by_id = self.by_id, {}
        for opened in tasks.values():
            opened.fail(type(problem)(*problem.args))

    def post(self, frame: bytes) -> None:
        """Send a frame when it is its turn."""
        self._outgoing.append(frame)
        self._something.set()

    def end(self, *, at_once: bool = False) -> None:
        """Send nothing more than what is there, or nothing more at all."""
        if at_once:
            self._outgoing.clear()
        self._ending = True
        self._something.set()

    async def write(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what there is to send, one after the other, until `end`."""
        outgoing, something = self._outgoing, self._something
        while True:
            while outgoing:
                await send(outgoing.popleft())
            if self._ending:
                return
            something.clear()
            await something.wait()

    def _blame(self, task_id: str) -> None:
        """The plugin answers a task that nobody gave it, so one of those that it has gets no answer."""
        shown = printable(task_id)[:60]
        self._complain(f"answered a task that it was never given: {shown!r}")
        problem = Broken(f"task_id: got {shown!r}, which this plugin was never given")
        for opened in self.by_id.values():
            if opened.fail(problem):
                return


def _run_out(done: "asyncio.Future[bytes]") -> None:
    if not done.done():
        done.set_exception(Late)
