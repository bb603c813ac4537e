"""Threads for foreign evaluators, so that a slow or stuck one holds up nobody else.

Plain functions each get a thread while they run; async ones share an event
loop of their own. A thread cannot be killed: one that overruns its time is
left behind and its type may only use so many at a time.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Per type: enough to wait on something slow side by side, few enough that a stuck type is no leak.
MAX_PER_TYPE: Final = 16


class Busy(Exception):
    """All threads of the type are taken by calls that overran their time."""


class Threads:
    """Runs functions in daemon threads: unlike a ThreadPoolExecutor's they do not hold up the exit
    of the process when one of them is stuck."""

    def __init__(self, max_per_type: int = MAX_PER_TYPE) -> None:
        self._max_per_type = max_per_type
        self._idle: SimpleQueue[SimpleQueue[Callable[[], None]]] = SimpleQueue()
        self._places: dict[str, asyncio.Semaphore] = {}
        self._overrun: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(
        self, type_name: str, function: Callable[..., T], *args: Any, at_once: int | None = None
    ) -> T:
        """The function's result. Raises Busy at once when the type's threads are all stuck.

        at_once: how many functions of the type run at a time, where none of them can be stuck for ever, so
        that waiting for a place makes sense however many have overrun their time.
        Cancelling gives the caller back its time; the thread goes on by itself.
        """
        most = self._max_per_type if at_once is None else at_once
        places = self._places.setdefault(type_name, asyncio.Semaphore(most))
        if at_once is None and self._overrun[type_name] >= most:
            raise Busy
        await places.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        left_behind = False

        def finished(result: T | None, problem: BaseException | None) -> None:
            places.release()
            if left_behind:
                self._overrun[type_name] -= 1
            if done.done():
                return
            if problem is not None:
                done.set_exception(problem)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, problem = None, None
            try:
                result = function(*args)
            except BaseException as error:  # noqa: BLE001 - foreign code; handed to the caller
                problem = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finished, result, problem)

        self._start(work)
        try:
            return await done
        except asyncio.CancelledError:
            if not done.done() or done.cancelled():
                left_behind = True
                self._overrun[type_name] += 1
            raise

    async def run_async(self, type_name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, out of the event loop that all plugins share."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), name="evald-plugins", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def close(self) -> None:
        """Stop the plugins' loop. Threads end by themselves."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _start(self, work: Callable[[], None]) -> None:
        try:
            self._idle.get_nowait().put(work)
        except Empty:
            inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
            inbox.put(work)
            threading.Thread(target=self._serve, args=(inbox,), name="evald-plugin", daemon=True).start()

    def _serve(self, inbox: "SimpleQueue[Callable[[], None]]") -> None:
        while True:
            inbox.get()()
            self._idle.put(inbox)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    # One more turn, in which the cancelled tasks end.
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
