"""Run a real server inside the process of a test."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeAlias

from evald import AsyncClient, Client, Evaluator, EvaluatorDefinition

from .app import App
from .config import Settings
from .engine.registry import Origin

__all__ = ["LocalServer", "async_server", "server"]

AnyEvaluator: TypeAlias = type[Evaluator] | EvaluatorDefinition


class LocalServer(NamedTuple):
    """The addresses of a server inside this process, and clients for it.

    address: of the gRPC port, "127.0.0.1:PORT".
    http_address: of metrics and health; None if the server has no HTTP port.
    web_address: of the console and the HTTP API; None if the server has no web port.
    """

    address: str
    http_address: str | None
    web_address: str | None = None

    def client(self, **options: Any) -> Client:
        """Return a client of this server. options: as for `evald.Client`."""
        return Client(self.address, **{"tls": False, "token": "", **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """Return a client of this server for asyncio. options: as for `evald.AsyncClient`."""
        return AsyncClient(self.address, **{"tls": False, "token": "", **options})


@contextmanager
def server(*evaluators: AnyEvaluator, **settings: Any) -> Iterator[LocalServer]:
    """Run a server in a thread of its own, on a free port of the loopback interface.

    For blocking tests; tests with an event loop use `async_server`.

    evaluators: your own, beside the built-in ones.
    settings: as in a config file, for example `max_messages=10`; `http="127.0.0.1:0"` adds the
        HTTP port, `web="127.0.0.1:0"` the web port.
    """
    app = _app(evaluators, settings)
    thread = _ServerThread(app)
    thread.start()
    try:
        yield LocalServer(app.address, app.http_address, app.web_address)
    finally:
        thread.stop()


@asynccontextmanager
async def async_server(*evaluators: AnyEvaluator, **settings: Any) -> AsyncIterator[LocalServer]:
    """Run a server in the running event loop. Arguments as for `server`.

    Several loops in one process work, but gRPC wakes all of them for every event, and a loop without
    work then logs a BlockingIOError.
    """
    app = _app(evaluators, settings)
    await app.start()
    try:
        yield LocalServer(app.address, app.http_address, app.web_address)
    finally:
        await app.stop(0)


def _app(evaluators: tuple[AnyEvaluator, ...], settings: Mapping[str, Any]) -> App:
    app = App(Settings.model_validate({"listen": "127.0.0.1:0", "http": None, "web": None, **settings}))
    for evaluator in evaluators:
        definition = evaluator.definition() if isinstance(evaluator, type) else evaluator
        app.registry.register(definition, Origin.PLUGIN)
    return app


class _ServerThread:
    """An app in an event loop and a thread of its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="evald-server", daemon=True)

    def start(self) -> None:
        """Start the server and return when it listens. Raises the server's exception if it cannot start."""
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            self._thread.join()
            raise self._problem

    def stop(self) -> None:
        """Stop the server, end open calls, and return when it has stopped."""
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
