"""A plugin that listens: dialled, described, watched, and dialled again when it is lost."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from .connection import Connection, NotServing, Tls
from .instance import Instance, Mode, State, printable
from .limits import Limits
from .offer import Plugin
from .refusal import Refusal
from .targets import Resolver
from .task import Lost, Task

_log = logging.getLogger("evald.remote")

# The first retry is quick, for a plugin that restarts; with the last a plugin is back within 2 s of its start.
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0

# One answer that is late may be chance.
_MISSES: Final = 2

_PATIENCE_SECONDS: Final = 60.0


class Dialled(Instance):
    """An instance that the server calls.

    confirm: told what the plugin says of itself, after every connection. Raises Refusal.
    confirmed: it has worked, or was refused, once. refused: why, if so.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - as it is
        target: str,
        plugin: Plugin | None,
        mode: Mode,
        limits: Limits,
        resolver: Resolver,
        confirm: "Callable[[Dialled, Plugin], None]",
        changed: Callable[[Instance], None],
        tls: Tls | None = None,
    ) -> None:
        super().__init__(id, target, plugin, changed)
        self.mode = mode
        self.confirmed = asyncio.Event()
        self.refused: Refusal | None = None
        self._emptied = asyncio.Event()
        self._limits = limits
        self._resolver = resolver
        self._confirm = confirm
        self._tls = tls
        self._connection: Connection | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._dialling: asyncio.Task[None] | None = None

    @property
    def reachable(self) -> bool:
        """Whether it is connected."""
        return self._connection is not None

    def start(self) -> None:
        """Begin to dial."""
        self._dialling = asyncio.create_task(self._dial())

    def run(self, task: Task) -> Awaitable[bytes]:
        """See Instance."""
        connection = self._connection
        if connection is None:
            raise Lost("not connected")
        return connection.evaluate(task)

    def give_back(self, *, used: bool) -> None:
        """See Instance."""
        super().give_back(used=used)
        if not self.active:
            self._emptied.set()

    async def idle(self) -> None:
        """Wait until it has no tasks."""
        while self.active:
            self._emptied.clear()
            await self._emptied.wait()

    async def close(self) -> None:
        """Let go of it. Open tasks may finish."""
        dialling, self._dialling = self._dialling, None
        if dialling is not None:
            dialling.cancel()
            await asyncio.gather(dialling, return_exceptions=True)

    async def retired(self) -> None:
        """Wait until the connections that it had are closed, each after its last task."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def cut(self) -> None:
        """End all connections at once. Open tasks are Lost."""
        await self.close()
        for task in self._closing:
            task.cancel()
        await self.retired()

    async def _dial(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                await self._connect()
                wait = _FIRST_WAIT
            except (Lost, NotServing) as problem:
                self._fall(str(problem))
            except OSError as problem:
                self._fall(f"cannot be resolved: {problem}")
            except Refusal as problem:
                self._fall(problem.message)
                self.refused, wait = problem, _LONGEST_WAIT
                self.confirmed.set()
            except Exception as problem:  # noqa: BLE001 - whatever a peer makes gRPC raise
                _log.exception("remote instance %s", self.name)
                self._fall(f"{type(problem).__name__}: {problem}")
                wait = _LONGEST_WAIT
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 - not for secrets
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _connect(self) -> None:
        """Connect, and return when the connection is lost."""
        dial = await self._resolver.dial(self.target)
        connection = Connection(dial, self._limits, self._tls)
        try:
            await connection.open()
            plugin = await connection.describe()
            self._confirm(self, plugin)
            self._connection = connection
            await self._watch(connection)
        finally:
            self._connection = None
            closing = asyncio.create_task(self._retire(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _watch(self, connection: Connection) -> None:
        """Keep the state right until the connection is lost."""
        misses = 0
        while True:
            try:
                await connection.check()
            except NotServing as problem:
                misses += 1
                if problem.certain or misses >= _MISSES or self.state is not State.ACTIVE:
                    self._fall(str(problem))
            else:
                misses = 0
                self.refused = None
                self.last_seen = time.time()
                if self.state in (State.PENDING, State.UNHEALTHY):
                    self.set_state(State.ACTIVE)
                self.confirmed.set()
            if await connection.lost(self._limits.health_seconds):
                self._fall("the connection was lost")
                return

    def _fall(self, why: str) -> None:
        self.last_error = printable(why)
        if self.state is State.ACTIVE:
            self.set_state(State.UNHEALTHY, why)

    async def _retire(self, connection: Connection) -> None:
        try:
            await connection.close(_PATIENCE_SECONDS)
        except asyncio.CancelledError:
            await connection.close(0)
            raise
