"""Registration of a listening worker: a lease that is renewed until the worker stops."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import grpc

from ..credentials import Access
from ..errors import EvaldError, InvalidInput, from_rpc_error
from ..plugin.v1 import registry_service_pb2 as pb
from ..plugin.v1 import registry_service_pb2_grpc, task_pb2
from ..stream_status import StreamStatus
from ..structs import duration_seconds
from .connecting import Backoff, first_of, is_final, new_channel, status_text

_log = logging.getLogger("evald.worker")

# Requested lease time: enough for three renewals. A killed worker stays registered for this time.
_WANTED_SECONDS: Final = 15
# Renewal interval if the server sends neither renew_interval nor ttl.
_RENEW_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 10.0


class Registration:
    """The registration of a worker with one server. Call `start`, then `stop`."""

    def __init__(
        self,
        server: str,
        access: Access,
        *,
        instance_id: str,
        info: task_pb2.PluginInfo,
        tls_profile: str,
        active: Callable[[], int],
    ) -> None:
        self.server = server
        self._request = pb.RegisterRequest(plugin=info, instance_id=instance_id, tls_profile=tls_profile)
        self._request.ttl.seconds = _WANTED_SECONDS
        self._access = access
        self._active = active
        self._target: Callable[[], Awaitable[str]] | None = None
        self._lease: pb.RegisterResponse | None = None
        self._granted = asyncio.Event()
        self._refusal: asyncio.Future[None] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self, target: Callable[[], Awaitable[str]]) -> None:
        """Register in the background.

        target: returns the address at which the server reaches the worker; may raise OSError.
        """
        self._target = target
        self._refusal = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Deregister; the server lets open tasks finish."""
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        if self._refusal is not None:
            self._refusal.cancel()
        if self._lease is None:
            return
        request = pb.DeregisterRequest(lease_id=self._lease.lease_id, drain=True)
        try:
            async with self._channel() as channel:
                stub = registry_service_pb2_grpc.RegistryServiceStub(channel)
                await stub.Deregister(request, timeout=_CALL_SECONDS, metadata=self._access.headers())
        except (grpc.aio.AioRpcError, InvalidInput) as problem:
            why = problem if isinstance(problem, InvalidInput) else problem.details()
            _log.warning("deregistering from %s failed: %s", self.server, why)

    async def granted(self) -> None:
        """Wait for the first lease. Raises EvaldError if the server rejects the worker permanently."""
        await first_of(self._granted.wait(), self.refused())

    async def refused(self) -> None:
        """Wait until the server rejects the first registration permanently. Raises that EvaldError."""
        assert self._refusal is not None
        await asyncio.shield(self._refusal)

    def _channel(self) -> Any:
        return new_channel(self.server, self._access)

    async def _keep(self) -> None:
        backoff = Backoff()
        while True:
            try:
                if self._lease is None:
                    await self._register()
                if await self._renew(backoff):
                    return
                # The lease has expired: register again at once.
                continue
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem, self.server)
                if is_final(problem.code()) and self._gives_up(f"{self.server} rejects this worker", error):
                    return
                why = status_text(problem)
            except InvalidInput as problem:
                # Certificate and token files may be replaced while a worker runs: retry.
                if self._gives_up(self.server, problem):
                    return
                why = str(problem)
            except TimeoutError:
                why = "DEADLINE_EXCEEDED no answer"
            except OSError as problem:
                why = f"UNAVAILABLE {problem}"
            except asyncio.InvalidStateError:
                why = "UNAVAILABLE the stream has ended"
            delay = backoff.next()
            _log.warning("registration with %s: %s; trying again in %.1fs", self.server, why, delay)
            await asyncio.sleep(delay)

    def _gives_up(self, what: str, error: EvaldError) -> bool:
        """Return True, and record the error, if the first registration failed permanently.

        Later registrations are retried, because the configuration may change.
        """
        if self._granted.is_set():
            return False
        assert self._refusal is not None
        if not self._refusal.done():
            self._refusal.set_exception(error)
            # Mark the exception as retrieved, because there may be no waiter.
            self._refusal.exception()
        _log.error("%s: %s", what, error)
        return True

    async def _register(self) -> None:
        assert self._target is not None
        self._request.target = await self._target()
        async with self._channel() as channel:
            stub = registry_service_pb2_grpc.RegistryServiceStub(channel)
            lease = await stub.Register(self._request, timeout=_CALL_SECONDS, metadata=self._access.headers())
        self._lease = lease
        self._granted.set()
        _log.info(
            "registered with %s as %s, lease %s for %gs",
            self.server,
            self._request.target,
            lease.lease_id,
            duration_seconds(lease.ttl),
        )

    async def _renew(self, backoff: Backoff) -> bool:
        """Renew the lease until it ends. Returns True if it was revoked, False if it expired.

        Raises AioRpcError, TimeoutError.
        """
        lease = self._lease
        assert lease is not None
        unreachable = ""
        every = duration_seconds(lease.renew_interval) or duration_seconds(lease.ttl) / 3 or _RENEW_SECONDS
        async with self._channel() as channel:
            stub = registry_service_pb2_grpc.RegistryServiceStub(channel)
            call = stub.KeepAlive(metadata=self._access.headers())
            status = StreamStatus(call)
            ended = asyncio.Event()
            call.add_done_callback(lambda _: ended.set())
            while True:
                async with asyncio.timeout(_CALL_SECONDS):
                    try:
                        await call.write(
                            pb.KeepAliveRequest(lease_id=lease.lease_id, active_tasks=self._active())
                        )
                        answer = await call.read()
                    except grpc.aio.AioRpcError as problem:
                        raise await status.behind(problem) from None
                if answer is grpc.aio.EOF:
                    await _raise_end(call)
                if answer.state == pb.LEASE_STATE_REVOKED:
                    self._lease = None
                    _log.error(
                        "the operator of %s has removed this worker; it will not register again", self.server
                    )
                    return True
                if answer.state != pb.LEASE_STATE_ACTIVE:
                    self._lease = None
                    _log.warning("lease %s has expired; registering again", lease.lease_id)
                    return False
                backoff.reset()
                if answer.unreachable_reason != unreachable:
                    unreachable = answer.unreachable_reason
                    if unreachable:
                        _log.warning("%s cannot reach this worker: %s", self.server, unreachable)
                    else:
                        _log.info("%s reaches this worker", self.server)
                # If the stream ends during the wait, the server is gone: reconnect at once.
                with suppress(TimeoutError):
                    async with asyncio.timeout(every):
                        await ended.wait()
                if ended.is_set():
                    await _raise_end(call)


async def _raise_end(call: Any) -> None:
    """Raise AioRpcError with the status that ended the stream."""
    code = await call.code()
    raise grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.OK else code,
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details() or "the server ended the stream",
    )
