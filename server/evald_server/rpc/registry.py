"""CatalogService and RegistryService: the types of evaluators, and the plugins that offer some of them."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from evald.convert.evaluator_type import type_to_pb
from evald.plugin.v1 import registry_service_pb2 as registry_pb
from evald.v1 import catalog_service_pb2 as catalog_pb
from evald.v1.evaluator_pb2 import EvaluatorType
from evald_server.auth.audit import record
from evald_server.auth.current_call import caller
from evald_server.call_errors import CallError, invalid
from evald_server.engine.registry import Change, Entry, Registry, RevisionExpired, UnknownType
from evald_server.remote.instance import Instance
from evald_server.remote.instances import InstanceChange, InstanceRegistry, UnknownRevision
from evald_server.remote.plugin_type import CONTRACT
from evald_server.remote.remotes import Remotes

from .pages import page_size, page_token, read_token
from .server import RpcStream, parse, server_stops

# Renewals of a lease before it expires.
_RENEWALS: Final = 3


@dataclass
class CatalogService:
    """Handlers of CatalogService."""

    registry: Registry

    async def list_evaluator_types(
        self, request: catalog_pb.ListEvaluatorTypesRequest
    ) -> catalog_pb.ListEvaluatorTypesResponse:
        """List a page of types, ordered by name and version."""
        size = page_size(request.page_size)
        if request.kind not in (0, 1, 2):
            raise invalid("kind", f"got {request.kind}, wanted an EvaluatorKind this server knows")
        name, _, version = read_token(request.page_token).partition(" ")
        entries = [
            entry
            for entry in self.registry.types()
            if _place(entry) > (name, version) and request.kind in (0, int(entry.definition.kind))
        ]
        response = catalog_pb.ListEvaluatorTypesResponse(revision=self.registry.revision)
        response.evaluator_types.extend(_described(entry) for entry in entries[:size])
        if len(entries) > size:
            response.next_page_token = page_token(" ".join(_place(entries[size - 1])))
        return response

    async def get_evaluator_type(
        self, request: catalog_pb.GetEvaluatorTypeRequest
    ) -> catalog_pb.GetEvaluatorTypeResponse:
        """Get one type by name or alias."""
        if not request.type:
            raise invalid("type", "missing; wanted the name of an evaluator type")
        try:
            entry = self.registry.find(request.type, request.version).entry
        except UnknownType as problem:
            raise CallError("UNKNOWN_TYPE", str(problem), type=request.type) from None
        return catalog_pb.GetEvaluatorTypeResponse(evaluator_type=_described(entry))

    async def watch_evaluator_types(
        self, request: catalog_pb.WatchEvaluatorTypesRequest, stream: RpcStream
    ) -> None:
        """Send all types, then their changes, until the caller disconnects."""

        def snapshot() -> Iterator[Mapping[str, Any]]:
            for entry in self.registry.types():
                yield {"upserted": _described(entry)}

        def fields_of(change: Change) -> Mapping[str, Any]:
            if change.entry is None:
                return {"removed": catalog_pb.EvaluatorTypeRef(type=change.type, version=change.version)}
            return {"upserted": _described(change.entry)}

        response = catalog_pb.WatchEvaluatorTypesResponse
        await _send_changes(stream, self.registry, request.after_revision, response, snapshot(), fields_of)


@dataclass
class RegistrationService:
    """Handlers of RegistryService. connect_allowed: whether plugins may dial in."""

    remotes: Remotes
    connect_allowed: bool
    _renewals: set[asyncio.Task[Any]] = field(default_factory=set)  # of the streams that renew leases

    def drain(self, end_stream: Callable[[asyncio.Task[Any], CallError], None]) -> None:
        """End the streams that renew leases, which would delay the server's stop. end_stream: `RpcServer.end_stream`."""
        for task in self._renewals:
            end_stream(task, server_stops())

    async def attach(self, stream: RpcStream) -> None:
        """Serve the session of a plugin that dialled in."""
        if not self.connect_allowed:
            raise CallError(
                "CONNECT_NOT_ALLOWED",
                "this server does not accept plugins that dial in: its setting remote_connect is off",
            )
        await self.remotes.sessions.serve(stream, stream.context.peer(), caller())

    async def register(self, request: registry_pb.RegisterRequest) -> registry_pb.RegisterResponse:
        """Register a plugin and grant it a lease."""
        granted = await self.remotes.leases.register(request, caller())
        record("registered", caller(), instance=request.instance_id, target=request.target)
        response = registry_pb.RegisterResponse(
            lease_id=granted.id, contract_version=CONTRACT, server_id=self.remotes.server_id
        )
        response.ttl.FromMilliseconds(round(granted.ttl * 1000))
        response.renew_interval.FromMilliseconds(round(granted.ttl * 1000 / _RENEWALS))
        return response

    async def keep_alive(self, stream: RpcStream) -> None:
        """Renew leases, with one response per request, in order."""
        task = asyncio.current_task()
        assert task is not None
        self._renewals.add(task)
        try:
            async for data in stream:
                request = parse(registry_pb.KeepAliveRequest, data)
                response = registry_pb.KeepAliveResponse(lease_id=request.lease_id)
                self._renew(request, response)
                await stream.send(response.SerializeToString())
        finally:
            self._renewals.discard(task)

    async def renew_lease(self, request: registry_pb.RenewLeaseRequest) -> registry_pb.RenewLeaseResponse:
        """Renew one lease."""
        response = registry_pb.RenewLeaseResponse()
        self._renew(request, response)
        return response

    async def deregister(self, request: registry_pb.DeregisterRequest) -> registry_pb.DeregisterResponse:
        """End a lease."""
        instance_id = await self.remotes.leases.deregister(request, caller())
        record("deregistered", caller(), instance=instance_id)
        return registry_pb.DeregisterResponse()

    async def forget_type(self, request: registry_pb.ForgetTypeRequest) -> registry_pb.ForgetTypeResponse:
        """Remove a type that no instance offers."""
        await self.remotes.forget(request.type, request.version)
        record("type forgotten", caller(), type=request.type, version=request.version)
        return registry_pb.ForgetTypeResponse()

    async def list_registrations(
        self, request: registry_pb.ListRegistrationsRequest
    ) -> registry_pb.ListRegistrationsResponse:
        """List a page of instances, ordered by id."""
        size = page_size(request.page_size)
        after = read_token(request.page_token)

        def offering(instances: Iterable[Instance]) -> list[Instance]:
            return [instance for instance in instances if not request.type or _offers(instance, request.type)]

        later = [each for each in offering(self.remotes.instances.by_id.values()) if each.id > after]
        later.sort(key=lambda instance: instance.id)
        response = registry_pb.ListRegistrationsResponse(revision=self.remotes.instances.revision)
        response.registrations.extend(self._describe(instance) for instance in later[:size])
        if len(later) > size:
            response.next_page_token = page_token(later[size - 1].id)
        if not request.page_token:
            response.lost.extend(
                self._describe(instance) for instance in offering(self.remotes.instances.lost.values())
            )
            for pool in self.remotes.instances.pools.values():
                if pool.stored and not pool.instances and request.type in ("", pool.key[0]):
                    response.unoffered_types.add(
                        evaluator_type=EvaluatorType.FromString(pool.stored.body),
                        plugin=pool.stored.plugin,
                        principal=pool.stored.principal,
                        offer_time=_timestamp(pool.stored.offered / 1e6),
                    )
        return response

    async def watch_registrations(
        self, request: registry_pb.WatchRegistrationsRequest, stream: RpcStream
    ) -> None:
        """Send the instances, then their changes, until the caller disconnects."""

        def snapshot() -> Iterator[Mapping[str, Any]]:
            for instance in list(self.remotes.instances.by_id.values()):
                yield {"upserted": self._describe(instance)}

        def fields_of(change: InstanceChange) -> Mapping[str, Any]:
            if change.instance is None:
                return {"removed_instance_id": change.instance_id}
            return {"upserted": self._describe(change.instance)}

        response = registry_pb.WatchRegistrationsResponse
        await _send_changes(
            stream, self.remotes.instances, request.after_revision, response, snapshot(), fields_of
        )

    def _renew(
        self,
        request: registry_pb.KeepAliveRequest | registry_pb.RenewLeaseRequest,
        response: registry_pb.KeepAliveResponse | registry_pb.RenewLeaseResponse,
    ) -> None:
        """Renew a lease, and fill in the fields that both responses share."""
        renewal = self.remotes.leases.renew(request.lease_id, request.active_tasks, caller())
        response.state = int(renewal.state)  # type: ignore[assignment]
        response.server_id = self.remotes.server_id
        response.unreachable_reason = renewal.unreachable
        if renewal.ttl:
            response.ttl.FromMilliseconds(round(renewal.ttl * 1000))

    def _describe(self, instance: Instance) -> registry_pb.Registration:
        pb = registry_pb.Registration(
            instance_id=instance.id,
            plugin=instance.plugin.pb if instance.plugin else None,
            mode=int(instance.mode),  # type: ignore[arg-type]
            state=int(instance.shown_state),  # type: ignore[arg-type]
            target=instance.target,
            register_time=_timestamp(instance.registered),
            last_seen_time=None if instance.last_seen is None else _timestamp(instance.last_seen),
            active_tasks=instance.active + instance.foreign if instance.lost is None else instance.lost_tasks,
            last_error=instance.last_error,
            server_id=self.remotes.server_id,
            lost_time=None if instance.lost is None else _timestamp(instance.lost),
        )
        if instance.lease is not None and instance.lost is None:
            pb.expire_time.CopyFrom(_timestamp(time.time() + self.remotes.leases.left(instance.lease)))
        return pb


async def _send_changes(
    stream: RpcStream,
    log: Registry | InstanceRegistry,
    after: int,
    response: Callable[..., Any],
    snapshot: Iterable[Mapping[str, Any]],
    fields_of: Callable[[Any], Mapping[str, Any]],
) -> None:
    """Send the changes after a revision until the caller disconnects; for revision 0 a snapshot first.

    response: type of the messages. snapshot: lazily, the fields of its messages. fields_of: returns the fields of a
    change's message. Raises CallError for an unknown revision.
    """
    if after < 0:
        raise invalid("after_revision", f"got {after}, wanted 0 or more")
    changed = asyncio.Event()
    unsubscribe = log.watch(changed.set)
    try:
        if not after:
            after = log.revision
            for fields in snapshot:
                await stream.send(response(revision=after, **fields).SerializeToString())
            complete = response(revision=after)
            complete.snapshot_complete.SetInParent()
            await stream.send(complete.SerializeToString())
        while True:
            changed.clear()
            for change in log.changes_after(after):
                after = change.revision
                await stream.send(response(revision=after, **fields_of(change)).SerializeToString())
            await changed.wait()
    except (RevisionExpired, UnknownRevision) as problem:
        raise CallError("REVISION_GONE", f"{problem}; start again with after_revision 0") from None
    finally:
        unsubscribe()


def _described(entry: Entry) -> EvaluatorType:
    definition = entry.definition
    described = type_to_pb(definition)
    described.aliases[:] = sorted(definition.aliases)
    described.auto = entry.auto_config is not None
    described.config_schema_sha256 = hashlib.sha256(described.config_schema_json.encode()).hexdigest()
    described.origin, described.state = int(entry.origin), int(entry.state)  # type: ignore[assignment]
    described.instance_count = entry.instance_count
    return described


def _place(entry: Entry) -> tuple[str, str]:
    return entry.definition.type, entry.definition.version


def _offers(instance: Instance, name: str) -> bool:
    return instance.plugin is not None and any(offered.name == name for offered in instance.plugin.types)


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return stamp
