"""For tests: a server inside the process, and evaluators run on a turn without one."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from .aio import AsyncClient
from .client import Client
from .context import EvaluatorContext
from .contract import violation
from .result import Result
from .turn import TurnLike, as_turn

if TYPE_CHECKING:
    from .evaluator import Evaluator, EvaluatorDefinition

    AnyEvaluator: TypeAlias = type[Evaluator] | EvaluatorDefinition

__all__ = ["LocalServer", "async_server", "context", "evaluate", "server"]


def context(turn: TurnLike, config: Mapping[str, Any] | None = None) -> EvaluatorContext:
    """The turn as an evaluator sees it. config: what a function evaluator finds in `ctx.config`."""
    return as_turn(turn).context.with_config(config or {})


def evaluate(
    evaluator: "AnyEvaluator",
    config: Mapping[str, Any] | None = None,
    turn: TurnLike | EvaluatorContext = (),
) -> Result:
    """Run an evaluator on a turn, as a server would, and wait for its result.

    evaluator: an `Evaluator` class, or what `define_evaluator` returned. An async one needs that no
        event loop runs in this thread.
    Raises InvalidConfig (a ValueError) for a config that does not fit, ValueError for a result
    that breaks the contract, and whatever the evaluator itself raises.
    """
    from .evaluator import to_result

    definition = evaluator.definition() if isinstance(evaluator, type) else evaluator
    ctx = turn if isinstance(turn, EvaluatorContext) else context(turn)
    outcome = definition.compile(config or {})(ctx)
    if inspect.isawaitable(outcome):
        outcome = asyncio.run(_result_of(outcome))
    result = to_result(definition.kind, outcome, definition.description)
    problem = violation(definition.kind, result)
    if problem:
        raise ValueError(f"{definition.type} breaks the contract: {problem}")
    return result


async def _result_of(outcome: Any) -> Any:
    return await outcome


class LocalServer:
    """A server inside this process. address, http_address: "127.0.0.1:PORT"; the latter perhaps None."""

    def __init__(self, address: str, http_address: str | None) -> None:
        self.address = address
        self.http_address = http_address

    def client(self, **options: Any) -> Client:
        """A client of this server. options: as for `Client`."""
        return Client(self.address, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A client of this server for asyncio. options: as for `AsyncClient`."""
        return AsyncClient(self.address, **options)


@contextmanager
def server(*evaluators: "AnyEvaluator", **settings: Any) -> Iterator[LocalServer]:
    """A real server in a thread of its own, on a free port of the loopback interface.

    For tests that block; those with an event loop use `async_server`.

    evaluators: of your own, beside the built-in ones.
    settings: as in a config file, for example `max_messages=10`; `http="127.0.0.1:0"` adds the
        HTTP port.
    """
    app = _app(evaluators, settings)
    running = _Running(app)
    running.start()
    try:
        yield LocalServer(app.address, app.http_address)
    finally:
        running.stop()


@asynccontextmanager
async def async_server(*evaluators: "AnyEvaluator", **settings: Any) -> AsyncIterator[LocalServer]:
    """A real server in the running event loop. Arguments as for `server`.

    Several loops in one process work, but gRPC wakes them all for every event, and the one that
    finds nothing logs a BlockingIOError.
    """
    app = _app(evaluators, settings)
    await app.start()
    try:
        yield LocalServer(app.address, app.http_address)
    finally:
        await app.stop(0)


def _app(evaluators: "tuple[AnyEvaluator, ...]", settings: Mapping[str, Any]) -> Any:
    from evald_server.app import App
    from evald_server.config import Settings
    from evald_server.engine.registry import Origin

    app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, **settings}))
    for evaluator in evaluators:
        definition = evaluator.definition() if isinstance(evaluator, type) else evaluator
        app.registry.register(definition, Origin.PLUGIN)
    return app


class _Running:
    """An app in an event loop of its own."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="evald-server", daemon=True)

    def start(self) -> None:
        """Return when it listens. Raises what kept it from starting."""
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            self._thread.join()
            raise self._problem

    def stop(self) -> None:
        """Return when it has stopped; open calls are ended."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._serve())
            except BaseException as problem:  # noqa: BLE001 - raised where the server was asked for
                self._problem = problem
            finally:
                self._started.set()

    async def _serve(self) -> None:
        await self._app.start()
        self._started.set()
        await self._stopping.wait()
        await self._app.stop(0)
