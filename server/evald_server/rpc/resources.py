"""The standard methods of stored resources, the same for every kind; kinds.py has the kinds."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from evald.v1.connector_service_pb2 import Connector
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.experiment_service_pb2 import Experiment
from evald_server.auth.current_call import recorded
from evald_server.call_errors import BadField, CallError, invalid, refusal
from evald_server.connectors.headers import mask, unmask
from evald_server.methods import StandardMethods, find_method
from evald_server.store.resources import IdTaken, NameTaken, ResourceKind, ResourceStore, StoredResource

from .errors import microseconds
from .pages import page_size, page_token, read_page, read_token
from .server import Methods
from .stored import no_such

Resource = TypeVar("Resource", Scenario, Persona, Connector, Experiment)

_MAX_NAME: Final = 200
_MAX_ID: Final = 100
_MAX_BYTES: Final = 1 << 20

# Maximum ids that one field may name: they are looked up in one query.
_MAX_IDS: Final = 1000

# Set by the server.
_OUTPUT_ONLY: Final = ("create_time", "update_time")


@dataclass
class ResourceService(Generic[Resource]):
    """The resources of one kind, and the handlers of their standard methods.

    Values of headers that may be secrets are stored, but never shown: an update may send their masks back.

    problems: returns the invalid fields of a resource, except its id and its name. problems_of_move: returns the hidden
    values that an update must not keep, given the updated and the stored resource and the fields that the caller sent.
    """

    store: ResourceStore
    standard: StandardMethods
    message: type[Resource]
    problems: Callable[[Resource], Awaitable[list[BadField]]]
    problems_of_move: Callable[[Resource, Resource, Resource], list[BadField]] = lambda *_: []

    def __post_init__(self) -> None:
        self._kind = ResourceKind(self.standard.word)

    def methods(self) -> Methods:
        """Return the handlers by method."""
        handlers: Methods = {
            "Create": self.create,
            "Get": self.get,
            "List": self.list_page,
            "Update": self.update,
            "Delete": self.delete,
        }
        return {self.standard.method(verb).rpartition("/")[2]: handler for verb, handler in handlers.items()}

    async def create(self, request: Any) -> Any:
        """Store a resource."""
        resource: Resource = getattr(request, self._kind)
        await self._check(resource)
        now = _now()
        stored = _as_stored(resource, resource.id or str(uuid4()), now, now)
        try:
            await recorded(self.store.create(self._kind, stored), "created", self._kind, stored.id)
        except NameTaken:
            raise self._name_taken(resource.name) from None
        except IdTaken:
            text = (
                f'another {self._kind} already has the id "{resource.id}"; choose another one, or omit it and the '
                "server creates one"
            )
            raise invalid(f"{self._kind}.id", text, "RESOURCE_EXISTS") from None
        return self._answer("Create", self._resource(stored))

    async def get(self, request: Any) -> Any:
        """Return a resource."""
        return self._answer("Get", await self.load(self._named(request)))

    async def list_page(self, request: Any) -> Any:
        """Return a page of resources."""
        size = page_size(request.page_size)
        created, _, last = read_token(request.page_token, "[0-9]{1,18}( .*)?").partition(" ")
        page, more = await read_page(
            size,
            (int(created), last) if created else None,
            lambda after, limit: self.store.list(self._kind, after=after, limit=limit, name=request.name),
            lambda stored: (stored.created, stored.id),
            lambda stored: len(stored.body),
        )
        shown = [_shown(self._resource(stored)) for stored in page]
        token = page_token(f"{page[-1].created} {page[-1].id}") if more else ""
        return self._response("List", **{self.standard.plural: shown}, next_page_token=token)

    async def update(self, request: Any) -> Any:
        """Replace fields of a resource."""
        given: Resource = getattr(request, self._kind)
        if not given.id:
            raise invalid(f"{self._kind}.id", f"missing; wanted the id of a stored {self._kind}")
        sent = self.message()
        sent.CopyFrom(given)
        fields, expected = self._masked(request.update_mask), _expected(request)
        for field in self.message.DESCRIPTOR.fields:
            if field.name not in fields:
                sent.ClearField(field.name)
        while True:
            before = await self._load(given.id)
            wanted, stored = self._resource(before), self._resource(before)
            for name in fields:
                wanted.ClearField(name)
            wanted.MergeFrom(sent)
            wanted.DiscardUnknownFields()
            if invalid_fields := self.problems_of_move(wanted, stored, sent):
                raise refusal(invalid_fields)
            if isinstance(wanted, Persona | Connector):
                unmask(wanted.headers, stored.headers)
            # No error if nothing is to change: the caller may repeat a call whose response was lost.
            changes = wanted != stored
            if changes and expected not in (None, before.updated):
                raise self._changed(before)
            await self._check(wanted)
            if not changes:
                return self._answer("Update", wanted)
            try:
                return self._answer("Update", await self._replace(before, wanted))
            except _ChangedMeanwhile:
                continue

    async def delete(self, request: Any) -> Any:
        """Delete a resource."""
        resource_id, expected = self._named(request), _expected(request)

        def check(current: StoredResource) -> None:
            if expected not in (None, current.updated):
                raise self._changed(current)

        deleting = self.store.delete(self._kind, resource_id, check)
        if not await recorded(deleting, "deleted", self._kind, resource_id):
            raise self._missing(resource_id)
        return self._response("Delete")

    async def load(self, resource_id: str, field: str = "") -> Resource:
        """Return a stored resource. field: the request's field with the id, for the error. Raises CallError."""
        return self._resource(await self._load(resource_id, field))

    async def unknown(self, ids: Sequence[str], path: str) -> list[BadField]:
        """Return the problems of unknown and repeated ids. path: the field with the ids."""
        if len(ids) > _MAX_IDS:
            return [BadField(path, f"got {len(ids)} ids, wanted at most {_MAX_IDS}")]
        known = await self.store.names(self._kind, _MAX_IDS, ids=ids) if ids else {}
        invalid_fields, unlisted = [], set(known)
        for number, resource_id in enumerate(ids):
            if resource_id in unlisted:
                unlisted.remove(resource_id)
                continue
            twice = f'"{resource_id}" is listed twice'
            text = twice if resource_id in known else self._no_such(resource_id)
            invalid_fields.append(BadField(f"{path}[{number}]", text))
        return invalid_fields

    async def missing(self, resource_id: str, field: str) -> list[BadField]:
        """Return a problem of the field if no resource has the id."""
        return [problem._replace(field=field) for problem in await self.unknown([resource_id], field)]

    async def _replace(self, before: StoredResource, wanted: Resource) -> Resource:
        """Store an updated resource. Raises _ChangedMeanwhile if another call has changed it since `before`."""
        after = _as_stored(wanted, before.id, before.created, max(_now(), before.updated + 1))

        def change(current: StoredResource) -> StoredResource:
            if current.updated != before.updated:
                raise _ChangedMeanwhile
            return after

        try:
            updating = self.store.update(self._kind, before.id, change)
            stored = await recorded(updating, "updated", self._kind, before.id, unless=None)
        except NameTaken:
            raise self._name_taken(wanted.name) from None
        if stored is None:
            raise self._missing(before.id)
        return self._resource(stored)

    async def _load(self, resource_id: str, field: str = "") -> StoredResource:
        stored = await self.store.get(self._kind, resource_id) if len(resource_id) <= _MAX_ID else None
        if stored is None:
            raise self._missing(resource_id, field)
        return stored

    async def _check(self, resource: Resource) -> None:
        """Raise CallError with all problems of the resource."""
        invalid_fields = []
        if not resource.name.strip():
            invalid_fields.append(BadField(f"{self._kind}.name", "Name is required"))
        elif len(resource.name) > _MAX_NAME or not resource.name.isprintable():
            text = f"got {len(resource.name)} characters, wanted at most {_MAX_NAME}, all of them printable"
            invalid_fields.append(BadField(f"{self._kind}.name", text))
        if len(resource.id) > _MAX_ID or not resource.id.isprintable():
            invalid_fields.append(
                BadField(f"{self._kind}.id", f"wanted at most {_MAX_ID} printable characters")
            )
        size = resource.ByteSize()
        if size > _MAX_BYTES:
            invalid_fields.append(BadField(self._kind, f"got {size} bytes, wanted at most {_MAX_BYTES}"))
        else:
            invalid_fields += await self.problems(resource)
        if invalid_fields:
            raise refusal(invalid_fields)

    def _masked(self, update_mask: FieldMask) -> Sequence[str]:
        """Return the names of the fields that an update replaces. Raises CallError."""
        names = [field.name for field in self.message.DESCRIPTOR.fields]
        known = [name for name in names if name not in ("id", *_OUTPUT_ONLY)]
        for number, path in enumerate(update_mask.paths):
            if path not in known:
                text = f'got "{path[:100]}", wanted one of {", ".join(known)}'
                raise invalid(f"update_mask.paths[{number}]", text)
        return update_mask.paths or known

    def _resource(self, stored: StoredResource) -> Resource:
        resource = self.message.FromString(stored.body)
        resource.id, resource.name = stored.id, stored.name
        resource.create_time.FromMicroseconds(stored.created)
        resource.update_time.FromMicroseconds(stored.updated)
        return resource

    def _answer(self, verb: str, resource: Resource) -> Any:
        return self._response(verb, **{self._kind: _shown(resource)})

    def _response(self, verb: str, **fields: Any) -> Any:
        return find_method(self.standard.method(verb)).answer(**fields)

    def _named(self, request: Any) -> str:
        """Return the id of the resource that a request names. Raises CallError."""
        field = f"{self._kind}_id"
        resource_id: str = getattr(request, field)
        if not resource_id:
            raise invalid(field, f"missing; wanted the id of a {self._kind}")
        return resource_id

    def _missing(self, resource_id: str, field: str = "") -> CallError:
        return invalid(field or f"{self._kind}_id", self._no_such(resource_id), "RESOURCE_NOT_FOUND")

    def _no_such(self, resource_id: str) -> str:
        return no_such(self._kind, resource_id, f"List{self.standard.plural.title()}")

    def _changed(self, stored: StoredResource) -> CallError:
        """Return the error for an update of an outdated version of the resource."""
        pb = Timestamp()
        pb.FromMicroseconds(stored.updated)
        changed = pb.ToJsonString()
        text = (
            f'the {self._kind} "{stored.name}" was changed at {changed}, after you read it; '
            "read it again, and send the change with its new update_time (over HTTP: its new ETag)"
        )
        return invalid("expected_update_time", text, "RESOURCE_CHANGED", update_time=changed)

    def _name_taken(self, name: str) -> CallError:
        field, text = f"{self._kind}.name", f'{self._kind.title()} with name "{name}" already exists'
        return CallError("RESOURCE_EXISTS", text, [BadField(field, text)], field=field)


class _ChangedMeanwhile(Exception):
    """Another call has changed the resource after this one read it."""


def _shown(resource: Resource) -> Resource:
    """Mask the headers of a resource that has any. Returns its argument."""
    if isinstance(resource, Persona | Connector):
        mask(resource.headers)
    return resource


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


def _now() -> int:
    return time.time_ns() // 1000
