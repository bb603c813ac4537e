"""The standard methods of stored resources: scenarios, personas, connectors and experiments."""

import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import uuid4

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from evald.v1.connector_service_pb2 import Connector
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.experiment_service_pb2 import Experiment
from evald_server.auth.current_call import recorded
from evald_server.call_errors import BadField, CallError, invalid, refusal
from evald_server.store.resources import IdTaken, NameTaken, ResourceKind, ResourceStore, StoredResource

from .errors import microseconds
from .pages import page_size, page_token, read_page, read_token
from .server import Methods

Resource = TypeVar("Resource", Scenario, Persona, Connector, Experiment)

_MAX_NAME: Final = 200
_MAX_ID: Final = 100
MAX_BYTES: Final = 1 << 20

# Maximum ids that one resource may name; each takes a query.
_MAX_IDS: Final = 1000

# Set by the server.
_OUTPUT_ONLY: Final = ("create_time", "update_time")


class ResourceService(Generic[Resource]):
    """Handlers of the standard methods of one kind of resource. A subclass defines the kind and checks its fields.

    message: the resource's class. requests: module with the requests and responses of its methods. plural: of its name.
    """

    kind: ClassVar[ResourceKind]
    message: type[Resource]
    requests: ModuleType
    plural: ClassVar[str]

    def __init__(self, store: ResourceStore) -> None:
        self._store = store

    async def problems(self, resource: Resource) -> list[BadField]:
        """Return the invalid fields of a resource, except its id and its name."""
        raise NotImplementedError

    def shown(self, resource: Resource) -> Resource:
        """Return the resource without hidden values. May change and return its argument."""
        return resource

    def keep_hidden(self, updated: Resource, stored: Resource, sent: Resource) -> None:
        """Copy the stored resource's hidden values into the updated one. Raises CallError.

        sent: the fields that the caller sent.
        """

    @classmethod
    def service_name(cls) -> str:
        """Return the full name of the service."""
        return f"evald.v1.{cls._one()}Service"

    def methods(self) -> Methods:
        """Return the handlers by method."""
        one = self._one()
        return {
            f"Create{one}": self.create,
            f"Get{one}": self.get,
            f"List{self.plural}": self.list_page,
            f"Update{one}": self.update,
            f"Delete{one}": self.delete,
        }

    async def create(self, request: Any) -> Any:
        """Store a resource."""
        resource: Resource = getattr(request, self.kind)
        await self._check(resource)
        now = _now()
        stored = _as_stored(resource, resource.id or str(uuid4()), now, now)
        try:
            await recorded(self._store.create(self.kind, stored), "created", self.kind, stored.id)
        except NameTaken:
            raise self._name_taken(resource.name) from None
        except IdTaken:
            raise self._taken(
                "id", resource.id, "choose another one, or omit it and the server creates one"
            ) from None
        return self._answer("Create", self._resource(stored))

    async def get(self, request: Any) -> Any:
        """Return a resource."""
        return self._answer("Get", await self.load(self._named(request)))

    async def list_page(self, request: Any) -> Any:
        """Return a page of resources."""
        size = page_size(request.page_size)
        created, _, last = read_token(request.page_token, "[0-9]{1,18}( .*)?").partition(" ")
        after = (int(created), last) if created else None
        found, more = await read_page(
            size,
            after,
            lambda after, limit: self._store.list(self.kind, after=after, limit=limit, name=request.name),
            lambda stored: (stored.created, stored.id),
            lambda stored: len(stored.body),
        )
        response = getattr(self.requests, f"List{self.plural}Response")()
        getattr(response, self.plural.lower()).extend(self.shown(self._resource(stored)) for stored in found)
        if more:
            response.next_page_token = page_token(f"{found[-1].created} {found[-1].id}")
        return response

    async def update(self, request: Any) -> Any:
        """Replace fields of a resource."""
        given: Resource = getattr(request, self.kind)
        if not given.id:
            raise invalid(f"{self.kind}.id", f"missing; wanted the id of a stored {self.kind}")
        fields = self._masked(request.update_mask)
        expected = _expected(request)
        while True:
            try:
                updated = await self._update(given, fields, expected)
            except _ChangedMeanwhile:
                continue
            return self._answer("Update", updated)

    async def delete(self, request: Any) -> Any:
        """Delete a resource."""
        resource_id = self._named(request)
        expected = _expected(request)

        def check(current: StoredResource) -> None:
            if expected not in (None, current.updated):
                raise self._changed(current)

        deleting = self._store.delete(self.kind, resource_id, check)
        if not await recorded(deleting, "deleted", self.kind, resource_id):
            raise self._missing(resource_id)
        return getattr(self.requests, f"Delete{self._one()}Response")()

    async def load(self, resource_id: str, field: str = "") -> Resource:
        """Return a stored resource. field: the request's field with the id, for the error. Raises CallError."""
        return self._resource(await self._load(resource_id, field))

    async def unknown(self, ids: Sequence[str], path: str) -> list[BadField]:
        """Return the problems of unknown and repeated ids. path: the field with the ids."""
        if len(ids) > _MAX_IDS:
            return [BadField(path, f"got {len(ids)} ids, wanted at most {_MAX_IDS}")]
        found: list[BadField] = []
        named: set[str] = set()
        for number, resource_id in enumerate(ids):
            field = f"{path}[{number}]"
            if resource_id in named:
                found.append(BadField(field, f'"{resource_id[:_MAX_ID]}" is listed twice'))
            else:
                found += await self.missing(resource_id, field)
            named.add(resource_id)
        return found

    async def missing(self, resource_id: str, field: str) -> list[BadField]:
        """Return a problem of the field if no resource has the id."""
        there = resource_id and await self._store.get(self.kind, resource_id) is not None
        return [] if there else [BadField(field, self._no_such(resource_id))]

    async def _update(self, given: Resource, fields: Sequence[str], expected: int | None) -> Resource:
        """Replace the fields. Raises _ChangedMeanwhile if the resource changes between the check and the write.

        expected: update_time that the caller expects, Unix microseconds; None for any.
        """
        before = await self._load(given.id)
        wanted = self._resource(before)
        for field in fields:
            wanted.ClearField(field)
        sent = _only(given, fields)
        wanted.MergeFrom(sent)
        wanted.DiscardUnknownFields()
        self.keep_hidden(wanted, self._resource(before), sent)
        # No error if nothing is to change: the caller may repeat a call whose response was lost.
        changes = wanted != self._resource(before)
        if changes and expected not in (None, before.updated):
            raise self._changed(before)
        await self._check(wanted)
        if not changes:
            return wanted
        after = _as_stored(wanted, before.id, before.created, max(_now(), before.updated + 1))

        def change(current: StoredResource) -> StoredResource:
            if current.updated != before.updated:
                raise _ChangedMeanwhile
            return after

        try:
            updating = self._store.update(self.kind, given.id, change)
            stored = await recorded(updating, "updated", self.kind, given.id, unless=None)
        except NameTaken:
            raise self._name_taken(wanted.name) from None
        if stored is None:
            raise self._missing(given.id)
        return self._resource(stored)

    async def _load(self, resource_id: str, field: str = "") -> StoredResource:
        stored = await self._store.get(self.kind, resource_id) if len(resource_id) <= _MAX_ID else None
        if stored is None:
            raise self._missing(resource_id, field)
        return stored

    async def _check(self, resource: Resource) -> None:
        """Raise CallError with all problems of the resource."""
        found = []
        if not resource.name.strip():
            found.append(BadField(f"{self.kind}.name", "Name is required"))
        elif len(resource.name) > _MAX_NAME or not resource.name.isprintable():
            text = f"got {len(resource.name)} characters, wanted at most {_MAX_NAME}, all of them printable"
            found.append(BadField(f"{self.kind}.name", text))
        if len(resource.id) > _MAX_ID or not resource.id.isprintable():
            found.append(BadField(f"{self.kind}.id", f"wanted at most {_MAX_ID} printable characters"))
        size = resource.ByteSize()
        if size > MAX_BYTES:
            found.append(BadField(str(self.kind), f"got {size} bytes, wanted at most {MAX_BYTES}"))
        else:
            found += await self.problems(resource)
        if found:
            raise refusal(found)

    def _masked(self, mask: FieldMask) -> list[str]:
        known = [
            field.name for field in self.message.DESCRIPTOR.fields if field.name not in ("id", *_OUTPUT_ONLY)
        ]
        for number, path in enumerate(mask.paths):
            if path not in known:
                raise invalid(
                    f"update_mask.paths[{number}]", f'got "{path[:100]}", wanted one of {", ".join(known)}'
                )
        return list(mask.paths) or known

    def _resource(self, stored: StoredResource) -> Resource:
        resource = self.message.FromString(stored.body)
        resource.id, resource.name = stored.id, stored.name
        resource.create_time.FromMicroseconds(stored.created)
        resource.update_time.FromMicroseconds(stored.updated)
        return resource

    def _answer(self, verb: str, resource: Resource) -> Any:
        return getattr(self.requests, f"{verb}{self._one()}Response")(**{self.kind: self.shown(resource)})

    def _named(self, request: Any) -> str:
        """Return the id of the resource that a request names. Raises CallError."""
        field = f"{self.kind}_id"
        resource_id: str = getattr(request, field)
        if not resource_id:
            raise invalid(field, f"missing; wanted the id of a {self.kind}")
        return resource_id

    def _missing(self, resource_id: str, field: str = "") -> CallError:
        return invalid(field or f"{self.kind}_id", self._no_such(resource_id), "RESOURCE_NOT_FOUND")

    def _no_such(self, resource_id: str) -> str:
        return f'no {self.kind} has the id "{resource_id[:_MAX_ID]}"; List{self.plural} returns the existing ones'

    def _changed(self, stored: StoredResource) -> CallError:
        """Return the error for an update of an outdated version of the resource."""
        pb = Timestamp()
        pb.FromMicroseconds(stored.updated)
        changed = pb.ToJsonString()
        text = (
            f'the {self.kind} "{stored.name}" was changed at {changed}, after you read it; '
            "read it again, and send the change with its new update_time (over HTTP: its new ETag)"
        )
        return invalid("expected_update_time", text, "RESOURCE_CHANGED", update_time=changed)

    def _name_taken(self, name: str) -> CallError:
        error = self._taken("name", name, "choose another one")
        error.message = f'{self._one()} with name "{name}" already exists'
        return error

    def _taken(self, key: str, value: str, advice: str) -> CallError:
        text = f'another {self.kind} already has the {key} "{value}"; {advice}'
        return invalid(f"{self.kind}.{key}", text, "RESOURCE_EXISTS")

    @classmethod
    def _one(cls) -> str:
        return cls.kind.capitalize()


class _ChangedMeanwhile(Exception):
    """Another call has changed the resource after this one read it."""


def _expected(request: Any) -> int | None:
    """Return the update_time that a request expects, Unix microseconds; None for any."""
    field = "expected_update_time"
    return microseconds(request, field, field) if request.HasField(field) else None


def _as_stored(resource: Resource, resource_id: str, created: int, updated: int) -> StoredResource:
    body = type(resource)()
    body.CopyFrom(resource)
    for field in ("id", "name", *_OUTPUT_ONLY):
        body.ClearField(field)
    # An update merges messages, which would concatenate their unknown fields.
    body.DiscardUnknownFields()
    return StoredResource(resource_id, resource.name, body.SerializeToString(), created, updated)


def _only(resource: Resource, fields: Sequence[str]) -> Resource:
    part = type(resource)()
    part.CopyFrom(resource)
    for field in resource.DESCRIPTOR.fields:
        if field.name not in fields:
            part.ClearField(field.name)
    return part


def _now() -> int:
    return time.time_ns() // 1000
