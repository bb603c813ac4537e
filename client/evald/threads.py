"""Threads for plugin evaluators, so that a slow or stuck one does not block others.

Each plain function runs in its own thread; async functions share an event loop.
Neither can be killed: an evaluator that exceeds its time is abandoned, and the
number of threads per evaluator type is limited.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from .foreign import EvaluatorRaised, raised_by

T = TypeVar("T")

# Callback that gets the result or the exception, in any thread.
Tell: TypeAlias = Callable[[Any, Exception | None], None]

# Per type: enough for concurrent slow I/O, few enough to bound the leak of a stuck type.
MAX_PER_TYPE: Final = 16

_log = logging.getLogger("evald.threads")


class Busy(Exception):
    """No thread can run the call. The message says why, for the caller."""


class Threads:
    """Runs functions in daemon threads.

    Unlike a ThreadPoolExecutor's threads, a stuck daemon thread does not prevent the process from exiting.
    """

    def __init__(self, max_per_type: int = MAX_PER_TYPE) -> None:
        self._max_per_type = max_per_type
        self._idle: SimpleQueue[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._places: dict[str, asyncio.Semaphore] = {}
        self._overrun: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(
        self, type_name: str, function: Callable[..., T], *args: Any, at_once: int | None = None
    ) -> T:
        """Run a function in a thread and return its result.

        at_once: maximum concurrent functions of the type, for functions that always end. The call then waits
            for a slot, even if many functions have exceeded their time.

        Cancelling ends the wait; the thread continues.

        Raises the function's exception, EvaluatorRaised instead of a BaseException that is no Exception, and
        Busy at once if all threads of the type are stuck, or the system gives no more threads.
        """
        most = self._max_per_type if at_once is None else at_once
        places = self._places.setdefault(type_name, asyncio.Semaphore(most))
        if at_once is None:
            self._check(type_name)
        await places.acquire()

        def work(tell: Tell) -> None:
            try:
                result = function(*args)
            except BaseException as problem:  # noqa: BLE001 - foreign code; handed to the caller
                tell(None, _as_exception(problem))
            else:
                tell(result, None)

        def start(tell: Tell) -> None:
            try:
                self._start(partial(work, tell))
            except Busy:
                places.release()
                raise

        return await self._wait(type_name, start, over=places.release)  # type: ignore[no-any-return]

    async def run_async(self, type_name: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the plugins' shared event loop and return its result. Raises as `run` does.

        Cancelling cancels the coroutine, and does not wait for one that continues nevertheless.
        """
        try:
            self._check(type_name)
            loop = self._plugins_loop()
        except Busy:
            coroutine.close()
            raise
        tasks: list[asyncio.Task[T]] = []

        def begin(tell: Tell) -> None:
            task = loop.create_task(coroutine)
            tasks.append(task)

            def end(task: asyncio.Task[T]) -> None:
                tasks.clear()  # a task keeps its exception, whose traceback refers to what waits here
                tell(*_outcome(task))

            task.add_done_callback(end)

        def cancel() -> None:
            # Runs after `begin`, because the loop keeps the order of callbacks.
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        return await self._wait(  # type: ignore[no-any-return]
            type_name, lambda tell: loop.call_soon_threadsafe(begin, tell), stop=cancel
        )

    def close(self) -> None:
        """End the idle threads and the plugins' event loop. Busy threads go on."""
        self._places.clear()  # a semaphore belongs to the event loop that waited for it
        with suppress(Empty):
            while True:
                self._idle.get_nowait().put(None)
        loop, self._loop = self._loop, None
        if loop is not None:
            with suppress(RuntimeError):  # a plugin has closed it
                loop.call_soon_threadsafe(loop.stop)

    def _check(self, type_name: str) -> None:
        if self._overrun[type_name] >= self._max_per_type:
            raise Busy(
                "All threads of this evaluator are blocked by earlier calls that exceeded their time limit; try again later"
            )

    async def _wait(
        self,
        type_name: str,
        start: Callable[[Tell], object],
        *,
        stop: Callable[[], None] = lambda: None,
        over: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call `start` and wait for the result. over: called when the work has ended.

        A cancelled wait calls `stop`, and counts the work as overrun until it ends.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        # Beside the future, which would keep an exception whose traceback refers to it.
        outcomes: list[tuple[Any, Exception | None]] = []
        left_behind = False

        def finished(result: Any, problem: Exception | None) -> None:
            over()
            if left_behind:
                self._overrun[type_name] -= 1
            if not done.done():
                outcomes.append((result, problem))
                done.set_result(None)

        def tell(result: Any, problem: Exception | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: there is no waiter
                loop.call_soon_threadsafe(finished, result, problem)

        start(tell)
        try:
            await done
        except asyncio.CancelledError:
            if not done.done() or done.cancelled():
                left_behind = True
                self._overrun[type_name] += 1
                with suppress(RuntimeError):
                    stop()
            raise
        result, problem = outcomes.pop()
        try:
            if problem is not None:
                raise problem
            return result
        finally:
            del problem  # its traceback refers to this frame

    def _start(self, work: Callable[[], None]) -> None:
        try:
            self._idle.get_nowait().put(work)
        except Empty:
            inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            inbox.put(work)
            _start_thread("evald-plugin", self._serve, inbox)

    def _serve(self, inbox: "SimpleQueue[Callable[[], None] | None]") -> None:
        while (work := inbox.get()) is not None:
            work()
            del work  # else it is kept until the next one
            self._idle.put(inbox)

    def _plugins_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._loop.is_closed():
            self._loop = loop = asyncio.new_event_loop()
            try:
                _start_thread("evald-plugins", self._serve_loop, loop)
            except Busy:
                self._loop = None
                loop.close()
                raise
        return self._loop

    def _serve_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        # Plugins can add callbacks and tasks. These can stop the loop, or end it by raising a BaseException
        # that is no Exception: run it again.
        while self._loop is loop and not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException as problem:  # noqa: BLE001 - foreign code
                raised = raised_by(problem)
                _log.error(
                    "a plugin's own task raised in the plugins' event loop: %s\n%s", raised, raised.trace
                )
        if loop.is_closed():
            return
        for task in asyncio.all_tasks(loop):
            task.cancel()
        # Run the loop once more, so that the cancelled tasks end.
        loop.call_soon(loop.stop)
        with suppress(BaseException):
            loop.run_forever()
        loop.close()


def _start_thread(name: str, target: Callable[[Any], None], arg: object) -> None:
    """Start a daemon thread. Raises Busy."""
    try:
        threading.Thread(target=target, args=(arg,), name=name, daemon=True).start()
    except RuntimeError:
        raise Busy(
            "The system does not allow this process more threads; raise its limit of processes, or send fewer calls at once"
        ) from None


def _as_exception(problem: BaseException) -> Exception:
    """Convert to an exception that a future accepts."""
    if isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        return problem
    return raised_by(problem)


def _outcome(task: "asyncio.Task[T]") -> tuple[T | None, Exception | None]:
    if task.cancelled():
        return None, EvaluatorRaised("the evaluator cancelled itself")
    problem = task.exception()
    return (task.result(), None) if problem is None else (None, _as_exception(problem))
