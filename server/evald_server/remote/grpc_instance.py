"""A plugin that listens: it is connected, described, health-checked, and reconnected when the connection is lost."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

from evald.plugin.v1 import task_pb2
from evald_server.config import Settings

from .channels import DialTls
from .connection import NotServing, PluginConnection
from .dial_allowlist import Resolver
from .errors import PluginUnavailable, Refusal, printable
from .instance import Instance, InstanceState, Mode, RemoteTask
from .plugin_type import Plugin

_log = logging.getLogger("evald.remote")

# Short at first, for a plugin that restarts; at most 2 s, so that a plugin is back soon after it starts.
_FIRST_WAIT: Final = 0.1
_MAX_WAIT: Final = 2.0

# A single late health check may be an accident.
_MAX_MISSES: Final = 2

_CLOSE_SECONDS: Final = 60.0


class GrpcInstance(Instance):
    """An instance that the server dials.

    confirm: called with the description after every connect. Raises Refusal.
    confirmed: set once the instance was healthy or was refused. refused: the last refusal. tls: None for a
    connection without TLS.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the contract
        target: str,
        plugin: Plugin | None,
        mode: Mode,
        settings: Settings,
        resolver: Resolver,
        confirm: "Callable[[GrpcInstance, Plugin], None]",
        changed: Callable[[Instance], None],
        tls: DialTls | None = None,
    ) -> None:
        super().__init__(id, target, plugin, changed)
        self.mode = mode
        self.confirmed = asyncio.Event()
        self.refused: Refusal | None = None
        self._no_tasks = asyncio.Event()
        self._settings = settings
        self._resolver = resolver
        self._confirm = confirm
        self.tls = tls
        self._connection: PluginConnection | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._connecting: asyncio.Task[None] | None = None

    @property
    def reachable(self) -> bool:
        """Whether the instance is connected."""
        return self._connection is not None

    def start(self) -> None:
        """Start connecting in the background, unless started already."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._keep_connected())

    async def run(self, task: RemoteTask) -> task_pb2.EvaluationOutput:
        """See Instance."""
        connection = self._connection
        if connection is None:
            raise PluginUnavailable("not connected")
        return await connection.evaluate(task)

    def release(self, principal: str, *, sent: bool) -> None:
        """See Instance."""
        super().release(principal, sent=sent)
        if not self.active:
            self._no_tasks.set()

    async def idle(self) -> None:
        """Wait until the instance has no open tasks."""
        while self.active:
            self._no_tasks.clear()
            await self._no_tasks.wait()

    async def close(self) -> None:
        """Disconnect. Open tasks may finish."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)

    async def closed(self) -> None:
        """Wait until all connections are closed, each after its last task."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def abort(self) -> None:
        """Disconnect at once. Open tasks fail with PluginUnavailable."""
        await self.close()
        for task in self._closing:
            task.cancel()
        await self.closed()

    async def _keep_connected(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                await self._connect()
                wait = _FIRST_WAIT
            except (PluginUnavailable, NotServing) as problem:
                self._mark_unhealthy(str(problem))
            except OSError as problem:
                self._mark_unhealthy(f"cannot resolve the target: {problem}")
            except Refusal as problem:
                self._mark_unhealthy(str(problem))
                self.refused, wait = problem, _MAX_WAIT
                self.confirmed.set()
            except Exception as problem:  # noqa: BLE001 - a peer can make gRPC raise anything
                _log.exception("remote instance %s", self.name)
                self._mark_unhealthy(f"{type(problem).__name__}: {problem}")
                wait = _MAX_WAIT
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 - not for secrets
            wait = min(wait * 2, _MAX_WAIT)

    async def _connect(self) -> None:
        """Connect, then return when the connection is lost."""
        dial = await self._resolver.dial(self.target)
        connection = PluginConnection(dial, self._settings, self.tls)
        try:
            await connection.open()
            plugin = await connection.describe()
            self._confirm(self, plugin)
            self._connection = connection
            await self._monitor(connection)
        finally:
            self._connection = None
            closing = asyncio.create_task(self._close(connection))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _monitor(self, connection: PluginConnection) -> None:
        """Check the health until the connection is lost."""
        misses = 0
        while True:
            try:
                await connection.check()
            except NotServing as problem:
                misses += 1
                if problem.certain or misses >= _MAX_MISSES or self.state is not InstanceState.ACTIVE:
                    self._mark_unhealthy(str(problem))
            else:
                misses = 0
                self.refused = None
                self.last_seen = time.time()
                if self.state in (InstanceState.PENDING, InstanceState.UNHEALTHY):
                    self.set_state(InstanceState.ACTIVE)
                self.confirmed.set()
            if await connection.lost(self._settings.remote_health_seconds):
                self._mark_unhealthy("the connection was lost")
                return

    def _mark_unhealthy(self, why: str) -> None:
        before, self.last_error = self.last_error, printable(why)
        if self.state is InstanceState.ACTIVE:
            self.set_state(InstanceState.UNHEALTHY, why)
        elif self.last_error != before:
            _log.warning("remote instance %s: %s", self.name, self.last_error)

    async def _close(self, connection: PluginConnection) -> None:
        try:
            await connection.close(_CLOSE_SECONDS)
        except asyncio.CancelledError:
            await connection.close(0)
            raise
