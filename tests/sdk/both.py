"""Both clients behind one blocking interface, so that each test covers both."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, Protocol, TypeVar

from evald import AsyncClient, Client, Evaluation
from evald.session import SessionSummary
from evald_server import testing

T = TypeVar("T")


class Turns(Protocol):
    """An open session."""

    @property
    def summary(self) -> SessionSummary | None:
        """None before the end."""

    def turn(self, turn: Any) -> Evaluation:
        """Evaluate a turn."""


class Calls(Protocol):
    """A client of either kind."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call with one answer."""

    def take(self, count: int | None, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the first events of a stream; None: all."""

    def batch(
        self, items: Any, evaluators: Any = (), *, take: int | None = None, **kwargs: Any
    ) -> tuple[list[Any], Any]:
        """Return answers and summary of a batch."""

    def session(self, evaluators: Any, **kwargs: Any) -> AbstractContextManager[Turns]:
        """Open a session."""

    def items(self, source: Iterable[T]) -> Any:
        """Return an iterable of the client's kind."""


class Blocking:
    """`Client`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._client, method)(*args, **kwargs)

    def take(self, count: int | None, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        stream = getattr(self._client, method)(*args, **kwargs)
        taken = list(islice(stream, count))
        stream.close()
        return taken

    def batch(
        self, items: Any, evaluators: Any = (), *, take: int | None = None, **kwargs: Any
    ) -> tuple[list[Any], Any]:
        batch = self._client.batch(items, evaluators, **kwargs)
        answers = iter(batch)
        taken = list(islice(answers, take))
        answers.close()  # type: ignore[attr-defined]
        return taken, batch.summary

    def session(self, evaluators: Any, **kwargs: Any) -> AbstractContextManager[Turns]:
        return self._client.session(evaluators, **kwargs)

    def items(self, source: Iterable[T]) -> Iterable[T]:
        return source


class Awaiting:
    """`AsyncClient`, with an event loop that runs only during calls."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._run = runner.run

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._run(_bounded(getattr(self._client, method)(*args, **kwargs)))

    def take(self, count: int | None, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return self._run(_bounded(_take(getattr(self._client, method)(*args, **kwargs), count)))

    def batch(
        self, items: Any, evaluators: Any = (), *, take: int | None = None, **kwargs: Any
    ) -> tuple[list[Any], Any]:
        batch = self._client.batch(items, evaluators, **kwargs)
        return self._run(_bounded(_take(aiter(batch), take))), batch.summary

    @contextmanager
    def session(self, evaluators: Any, **kwargs: Any) -> Iterator[Turns]:
        session = self._client.session(evaluators, **kwargs)
        turns = _AwaitedTurns(session, self._run)
        self._run(_bounded(session.__aenter__()))
        try:
            yield turns
        except BaseException as problem:
            self._run(_bounded(session.__aexit__(type(problem), problem, problem.__traceback__)))
            raise
        self._run(_bounded(session.__aexit__(None, None, None)))

    def items(self, source: Iterable[T]) -> Any:
        return _async_items(source)


class _AwaitedTurns:
    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = session
        self._run = run

    @property
    def summary(self) -> Any:
        return self._session.summary

    def turn(self, turn: Any) -> Any:
        return self._run(_bounded(self._session.turn(turn)))


async def _async_items(source: Iterable[T]) -> Any:
    """Iterate in a thread, because the source may block."""
    iterator = iter(source)
    end = object()
    while (item := await asyncio.to_thread(next, iterator, end)) is not end:
        yield item


async def _take(stream: Any, count: int | None) -> list[Any]:
    taken: list[Any] = []
    async for event in stream:
        taken.append(event)
        if len(taken) == count:
            break
    await stream.aclose()
    return taken


async def _bounded(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(30):
        return await work


@contextmanager
def blocking(server: str, **options: Any) -> Iterator[Calls]:
    """Return a `Client`."""
    with Client(server, **options) as client:
        yield Blocking(client)


@contextmanager
def awaiting(server: str, runner: asyncio.Runner | None = None, **options: Any) -> Iterator[Calls]:
    """Return an `AsyncClient`."""
    runner = runner or asyncio.Runner()
    with runner:
        client = AsyncClient(server, **options)
        yield Awaiting(client, runner)
        runner.run(client.close())


@contextmanager
def blocking_server(**settings: Any) -> Iterator[Calls]:
    """Run a server in a thread, and yield a `Client`."""
    with testing.server(**settings) as server, blocking(server.address) as calls:
        yield calls


@contextmanager
def awaiting_server(**settings: Any) -> Iterator[Calls]:
    """Run a server and an `AsyncClient` in one event loop, because grpc.aio wakes several loops for each event."""
    runner = asyncio.Runner()
    server = testing.async_server(**settings)
    address = runner.run(server.__aenter__()).address
    client = AsyncClient(address)
    try:
        yield Awaiting(client, runner)
    finally:
        runner.run(client.close())
        runner.run(server.__aexit__(None, None, None))
        runner.close()
