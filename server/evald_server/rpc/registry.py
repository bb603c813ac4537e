"""RegistryService: register plugins, and list them for operators."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from evald.plugin.v1 import registry_service_pb2 as _pb
from evald.v1 import evaluator_pb2
from evald_server.auth.audit import record
from evald_server.auth.current_call import caller
from evald_server.call_errors import CallError
from evald_server.remote.instance import Instance
from evald_server.remote.instances import InstanceChange
from evald_server.remote.plugin_type import CONTRACT
from evald_server.remote.remotes import Remotes
from evald_server.store.remote_types import StoredType

from .changes import send_changes
from .pages import page_size, page_token, read_token
from .server import Methods, RpcStream, parse, server_stops

NAME: Final = "evald.plugin.v1.RegistryService"

# Renewals of a lease before it expires.
_RENEWALS: Final = 3


class RegistrationService:
    """Handlers of RegistryService. connect_allowed: whether plugins may dial in."""

    def __init__(self, remotes: Remotes, *, connect_allowed: bool = True) -> None:
        self._remotes = remotes
        self._instances = remotes.instances
        self._connect_allowed = connect_allowed
        self._draining = asyncio.Event()

    def methods(self) -> Methods:
        """Return the handlers by method."""
        return {
            "Attach": self.attach,
            "Register": self.register,
            "KeepAlive": self.keep_alive,
            "RenewLease": self.renew_lease,
            "Deregister": self.deregister,
            "ForgetType": self.forget_type,
            "ListRegistrations": self.list_registrations,
            "WatchRegistrations": self.watch_registrations,
        }

    def drain(self) -> None:
        """End the streams that would delay the server's stop: renewals and watches."""
        self._draining.set()

    async def attach(self, stream: RpcStream) -> None:
        """Serve the session of a plugin that dialled in."""
        if not self._connect_allowed:
            raise CallError(
                "CONNECT_NOT_ALLOWED",
                "this server does not accept plugins that dial in: its setting remote_connect is off",
            )
        await self._remotes.sessions.serve(stream, stream.context.peer(), caller())

    async def register(self, request: _pb.RegisterRequest) -> _pb.RegisterResponse:
        """Register a plugin and grant it a lease."""
        granted = await self._remotes.leases.register(request, caller())
        record("registered", caller(), instance=request.instance_id, target=request.target)
        response = _pb.RegisterResponse(
            lease_id=granted.id, contract_version=CONTRACT, server_id=self._remotes.server_id
        )
        response.ttl.FromMilliseconds(round(granted.ttl * 1000))
        response.renew_interval.FromMilliseconds(round(granted.ttl * 1000 / _RENEWALS))
        return response

    async def keep_alive(self, stream: RpcStream) -> None:
        """Renew leases, with one response per request, in order."""
        async with aclosing(self._until_drained(stream)) as requests:
            async for data in requests:
                request = parse(_pb.KeepAliveRequest, data)
                response = _pb.KeepAliveResponse(lease_id=request.lease_id)
                self._renew(request, response)
                await stream.send(response.SerializeToString())

    async def renew_lease(self, request: _pb.RenewLeaseRequest) -> _pb.RenewLeaseResponse:
        """Renew one lease."""
        response = _pb.RenewLeaseResponse()
        self._renew(request, response)
        return response

    async def deregister(self, request: _pb.DeregisterRequest) -> _pb.DeregisterResponse:
        """End a lease."""
        instance_id = await self._remotes.leases.deregister(request, caller())
        record("deregistered", caller(), instance=instance_id)
        return _pb.DeregisterResponse()

    async def forget_type(self, request: _pb.ForgetTypeRequest) -> _pb.ForgetTypeResponse:
        """Remove a type that no instance offers."""
        await self._remotes.forget(request.type, request.version)
        record("type forgotten", caller(), type=request.type, version=request.version)
        return _pb.ForgetTypeResponse()

    async def list_registrations(
        self, request: _pb.ListRegistrationsRequest
    ) -> _pb.ListRegistrationsResponse:
        """List a page of instances, ordered by id."""
        size = page_size(request.page_size)
        after = read_token(request.page_token)
        found = sorted(
            (
                instance
                for instance in self._instances.by_id.values()
                if instance.id > after and (not request.type or _offers(instance, request.type))
            ),
            key=lambda instance: instance.id,
        )
        response = _pb.ListRegistrationsResponse(revision=self._instances.revision)
        response.registrations.extend(self._describe(instance) for instance in found[:size])
        if len(found) > size:
            response.next_page_token = page_token(found[size - 1].id)
        if not request.page_token:
            response.lost.extend(
                self._describe(instance)
                for instance in self._instances.lost.values()
                if not request.type or _offers(instance, request.type)
            )
            response.unoffered_types.extend(
                _remembered(pool.stored)
                for pool in self._instances.pools.values()
                if pool.stored and not pool.instances and request.type in ("", pool.key[0])
            )
        return response

    async def watch_registrations(self, request: _pb.WatchRegistrationsRequest, stream: RpcStream) -> None:
        """Send the instances, then their changes, until the caller disconnects."""
        response, log = _pb.WatchRegistrationsResponse, self._instances

        def snapshot() -> Iterator[Mapping[str, Any]]:
            for instance in list(log.by_id.values()):
                yield {"upserted": self._describe(instance)}

        def fields_of(change: InstanceChange) -> Mapping[str, Any]:
            if change.instance is None:
                return {"removed_instance_id": change.instance_id}
            return {"upserted": self._describe(change.instance)}

        after = request.after_revision
        await send_changes(stream, log, after, response, snapshot(), fields_of, self._or_drained)

    def _renew(
        self,
        request: _pb.KeepAliveRequest | _pb.RenewLeaseRequest,
        response: _pb.KeepAliveResponse | _pb.RenewLeaseResponse,
    ) -> None:
        """Renew a lease, and fill in the fields that both responses share."""
        renewal = self._remotes.leases.renew(request.lease_id, request.active_tasks, caller())
        response.state = int(renewal.state)  # type: ignore[assignment]
        response.server_id = self._remotes.server_id
        response.unreachable_reason = renewal.unreachable
        if renewal.ttl:
            response.ttl.FromMilliseconds(round(renewal.ttl * 1000))

    def _describe(self, instance: Instance) -> _pb.Registration:
        pb = _pb.Registration(
            instance_id=instance.id,
            plugin=instance.plugin.pb if instance.plugin else None,
            mode=int(instance.mode),  # type: ignore[arg-type]
            state=int(instance.shown_state),  # type: ignore[arg-type]
            target=instance.target,
            register_time=_timestamp(instance.registered),
            last_seen_time=None if instance.last_seen is None else _timestamp(instance.last_seen),
            active_tasks=instance.active + instance.foreign if instance.lost is None else instance.lost_tasks,
            last_error=instance.last_error,
            server_id=self._remotes.server_id,
            lost_time=None if instance.lost is None else _timestamp(instance.lost),
        )
        if instance.lease is not None and instance.lost is None:
            left = self._remotes.leases.left(instance.lease)
            now = Timestamp()
            now.GetCurrentTime()
            pb.expire_time.FromMilliseconds(now.ToMilliseconds() + round(left * 1000))
        return pb

    async def _until_drained(self, stream: RpcStream) -> AsyncGenerator[bytes]:
        while True:
            try:
                data: bytes = await self._or_drained(anext(stream))
            except StopAsyncIteration:
                return
            yield data

    async def _or_drained(self, work: Awaitable[Any]) -> Any:
        """Await the work. Raises CallError if the server stops first."""
        doing = asyncio.ensure_future(_completed(work))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({doing, draining}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise server_stops()
        finally:
            doing.cancel()
            draining.cancel()


async def _completed(work: Awaitable[Any]) -> Any:
    return await work


def _offers(instance: Instance, name: str) -> bool:
    return instance.plugin is not None and any(one.name == name for one in instance.plugin.types)


def _remembered(stored: StoredType) -> _pb.RememberedType:
    return _pb.RememberedType(
        evaluator_type=evaluator_pb2.EvaluatorType.FromString(stored.body),
        plugin=stored.plugin,
        principal=stored.principal,
        offer_time=_timestamp(stored.offered / 1e6),
    )


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return stamp
