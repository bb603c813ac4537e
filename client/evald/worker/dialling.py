"""A worker that dials servers. It needs no port, and works behind NAT and on a laptop."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import grpc

from ..connection import open_to
from ..credentials import Tls, Token
from ..errors import InvalidInput, from_rpc_error
from ..fields import number
from ..plugin.v1 import registry_service_pb2 as pb
from ..plugin.v1 import registry_service_pb2_grpc, task_pb2
from .connecting import (
    Backoff,
    first_of,
    is_final,
    listed_addresses,
    new_channel,
    resolve_targets,
    status_text,
)
from .listening import DEFAULT_CONCURRENCY, DEFAULT_GRACE_SECONDS
from .offer import AnyEvaluator, OfferedEvaluators
from .session import ServerSession, SessionLost, send_hello
from .tasks import Tasks

_log = logging.getLogger("evald.worker")

# Search slowly for other replicas while at least one is connected.
_MAX_SEARCH_SECONDS: Final = 30.0
# A shorter session does not reset the backoff.
_LASTING_SECONDS: Final = 5.0
# Maximum reconnect delay that a stopping server may request.
_MAX_AWAY_SECONDS: Final = 60.0


class DiallingWorker:
    """A worker that dials a server and evaluates for it until the `async with` block ends.

    It reconnects without a timeout. It connects to every replica that the server reports, and to every address in
    `server`.

    evaluators: `Evaluator` classes, or `EvaluatorDefinition`s of `@assertion`, `@metric` and `define_evaluator`.
    server: "HOST:PORT", a gRPC target such as "dns:///evald.svc:50051", several servers as
        "ipv4:10.0.0.1:50051,10.0.0.2:50051", or None for $EVALD_SERVER, else 127.0.0.1:50051.
    name, version: name and version of the plugin; by default the type and version of the first evaluator.
    max_concurrency: maximum concurrent tasks over all sessions; 1 or more.
    grace_seconds: time for open tasks when the worker stops.
    tls, token, insecure, credentials, metadata: for the calls to the server, as in `Client`.
    own_loop: run async evaluators in a separate event loop, not in the caller's.

    Raises ValueError and TypeError for invalid arguments.
    """

    def __init__(
        self,
        *evaluators: AnyEvaluator,
        server: str | None = None,
        name: str | None = None,
        version: str | None = None,
        max_concurrency: int = DEFAULT_CONCURRENCY,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        tls: Tls | bool | None = None,
        token: Token | None = None,
        insecure: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        own_loop: bool = False,
    ) -> None:
        self.server, self._access = open_to(
            server, tls=tls, token=token, insecure=insecure, credentials=credentials, metadata=metadata
        )
        self._offered = OfferedEvaluators(
            evaluators, name=name, version=version, max_concurrency=max_concurrency
        )
        self._tasks = Tasks(self._offered, own_loop=own_loop)
        self._info = self._offered.info(task_pb2.CAPABILITY_PROGRESS)
        self._grace = number(grace_seconds, "grace_seconds", unit="seconds")
        # By server id.
        self._sessions: dict[str, ServerSession] = {}
        # Also contains sessions that finish their last tasks.
        self._attending: dict[ServerSession, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._listed = len(listed_addresses(self.server)) or 1
        self._wanted = self._listed
        self._failed: set[str] = set()  # addresses that are tried again after all others
        self._stay_away_until = 0.0
        self._backoff = Backoff()
        self._search = Backoff(maximum=_MAX_SEARCH_SECONDS)
        self._changed = asyncio.Event()
        self._connected = asyncio.Event()
        self._dialling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Connect in the background."""
        self._dialling = asyncio.create_task(self._dial())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain: notify the servers, let open tasks finish within the grace period, disconnect."""
        assert self._dialling is not None
        self._dialling.cancel()
        await asyncio.gather(self._dialling, return_exceptions=True)
        if self._tasks.active:
            _log.info("stopping; %d open tasks have %gs to finish", self._tasks.active, self._grace)
        await asyncio.gather(
            *(session.drain("the worker is stopping", self._grace) for session in self._attending)
        )
        for attending in self._attending.values():
            attending.cancel()
        await asyncio.gather(*self._attending.values(), *self._retiring, return_exceptions=True)
        self._tasks.close()
        _log.info("stopped")

    @property
    def server_ids(self) -> list[str]:
        """The ids of the currently connected servers."""
        return sorted(self._sessions)

    async def connected(self) -> None:
        """Wait for the first session.

        Raises EvaldError if the server rejects it permanently, or a certificate or token file is unreadable.
        """
        assert self._dialling is not None
        await first_of(self._connected.wait(), asyncio.shield(self._dialling))

    async def wait(self) -> None:
        """Wait until the worker stops. Raises EvaldError as `connected` does."""
        assert self._dialling is not None
        await asyncio.wait((self._dialling,))
        if not self._dialling.cancelled():
            self._dialling.result()

    async def _dial(self) -> None:
        """Keep one session with each replica."""
        loop = asyncio.get_running_loop()
        while True:
            # Cleared here, so that a session that is lost from now on ends the next pause.
            self._changed.clear()
            if len(self._sessions) >= self._wanted:
                await self._changed.wait()
                continue
            await asyncio.sleep(max(0.0, self._stay_away_until - loop.time()))
            searching = bool(self._sessions)
            try:
                if await self._connect():
                    continue
                delay = self._search.next()
            except grpc.aio.AioRpcError as problem:
                if is_final(problem.code()) and not self._connected.is_set():
                    refusal = from_rpc_error(problem, self.server)
                    _log.error("%s rejects this worker: %s", self.server, refusal)
                    raise refusal from None
                # Retry a permanent rejection slowly: an operator must change the configuration.
                slowly = searching or is_final(problem.code())
                delay = (self._search if slowly else self._backoff).next()
                self._log_retry(status_text(problem), delay)
            except InvalidInput as problem:
                # Certificate and token files may be replaced while a worker runs: retry.
                if not self._connected.is_set():
                    _log.error("%s: %s", self.server, problem)
                    raise
                delay = self._search.next()
                self._log_retry(str(problem), delay)
            except (SessionLost, TimeoutError) as problem:
                delay = self._backoff.next()
                self._log_retry(str(problem) or "no welcome within the time limit", delay)
            await self._pause(delay)

    async def _pause(self, seconds: float) -> None:
        """Sleep until the time has passed or a session is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _log_retry(self, why: str, delay: float) -> None:
        _log.warning("%s: %s; trying again in %.1fs", self.server, why, delay)

    async def _connect(self) -> bool:
        """Open a session. Returns False if its server is already connected."""
        target, authority = await self._next_target()
        channel = new_channel(target, self._access, authority)
        credit = shares(self._offered.max_concurrency, max(self._wanted, len(self._sessions) + 1))[-1]
        hello = pb.WorkerHello(
            plugin=self._info, instance_id=self._offered.instance_id, initial_credit=credit
        )
        try:
            stub = registry_service_pb2_grpc.RegistryServiceStub(channel)
            call = stub.Attach(metadata=self._access.headers())
            welcome = await send_hello(call, hello)
        except BaseException:
            self._failed.add(target)
            await channel.close()
            raise
        session = ServerSession(self._tasks, call, welcome, credit, target)
        return self._welcomed(session, channel, welcome.server_count)

    def _welcomed(self, session: ServerSession, channel: Any, server_count: int) -> bool:
        """Add a session. Returns False if its server is already connected."""
        self._wanted = max(self._listed, server_count)
        known = self._sessions.get(session.server_id)
        # Keep the newest session, because the server may have replaced the older one.
        self._sessions[session.server_id] = session
        self._connected.set()
        attending = asyncio.create_task(self._attend(session, channel))
        self._attending[session] = attending
        if known is not None:
            retiring = asyncio.create_task(known.drain("replaced by a newer session", self._grace))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        else:
            _log.info(
                "connected to %s: session %s with server %s, offering %s",
                self.server,
                session.id,
                session.server_id,
                self._offered,
            )
        self._share_credit()
        return known is None

    async def _attend(self, session: ServerSession, channel: Any) -> None:
        """Serve a session until it ends."""
        began = asyncio.get_running_loop().time()
        serving = asyncio.create_task(session.serve())
        stops = asyncio.create_task(session.server_stops.wait())
        try:
            await asyncio.wait((serving, stops), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                # The server is stopping: connect to another one while the open tasks finish here.
                self._leave(session, began)
            await serving
            _log.info("session %s with server %s has ended", session.id, session.server_id)
            session.abandon()
        except SessionLost as lost:
            _log.warning("session %s with server %s: %s", session.id, session.server_id, lost)
            # If the server has replaced the session, it sends the open tasks again over the newer session, where
            # they join the running ones.
            if self._sessions.get(session.server_id) in (None, session):
                session.abandon()
        finally:
            self._leave(session, began)
            stops.cancel()
            serving.cancel()
            await asyncio.gather(stops, serving, return_exceptions=True)
            await channel.close()
            if self._attending.get(session) is asyncio.current_task():
                del self._attending[session]

    def _leave(self, session: ServerSession, began: float) -> None:
        """Remove a session from those that get new tasks, and search for another. began: time of its start."""
        if self._sessions.get(session.server_id) is session:
            del self._sessions[session.server_id]
            now = asyncio.get_running_loop().time()
            if now - began > _LASTING_SECONDS:
                self._backoff.reset()
            self._search.reset()
            # Delay the reconnect, because all workers of that server reconnect now.
            away = min(session.reconnect_seconds, _MAX_AWAY_SECONDS) + self._backoff.next()
            self._stay_away_until = now + away
            self._share_credit()
            self._changed.set()

    def _share_credit(self) -> None:
        """Divide max_concurrency among the sessions."""
        sessions = list(self._sessions.values())
        for session, credit in zip(
            sessions, shares(self._offered.max_concurrency, len(sessions)), strict=True
        ):
            session.set_credit(credit)

    async def _next_target(self) -> tuple[str, str]:
        """Return the target to dial, and its authority if it is one of several addresses."""
        if self._wanted == 1:
            return self.server, ""
        # A second session with the same server would replace the first one.
        in_use = {session.target for session in self._sessions.values()}
        addresses = [address for address in await resolve_targets(self.server) if address not in in_use]
        untried = [address for address in addresses if address not in self._failed]
        if not untried:
            self._failed.clear()
        target = (untried or addresses or [self.server])[0]
        return (target, "") if target == self.server else (target, _authority(self.server))


def shares(total: int, parts: int) -> list[int]:
    """Divide a number into parts that differ by at most one, each at least 1."""
    return [max(1, total // parts + (part < total % parts)) for part in range(parts)]


def _authority(server: str) -> str:
    """Return the host name for TLS and HTTP; "" if there is none."""
    scheme = server.partition(":")[0]
    return "" if scheme in ("ipv4", "ipv6") else server.rpartition("/")[2]
