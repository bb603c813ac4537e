"""The store of resources, which callers create, change and delete: scenarios, personas, connectors, experiments."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, insert, or_, select, tuple_, update

from .database import Database
from .schema import RESOURCES, plain_text

_COLUMNS = tuple(RESOURCES.c[name] for name in ("id", "name", "body", "created", "updated"))


class ResourceKind(StrEnum):
    """The kinds of resources. Names and ids are unique within one kind."""

    SCENARIO = "scenario"
    PERSONA = "persona"
    CONNECTOR = "connector"
    EXPERIMENT = "experiment"


class StoredResource(NamedTuple):
    """A resource. body: its serialised message. created, updated: Unix microseconds."""

    id: str
    name: str
    body: bytes
    created: int
    updated: int


class NameTaken(Exception):
    """Another resource of the same kind has the name."""


class IdTaken(Exception):
    """Another resource of the same kind, another run or another suite run has the id."""


class ResourceStore:
    """The resources in a database. All methods raise StoreProblem; a write is durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, kind: ResourceKind, resource: StoredResource) -> None:
        """Store a new resource. Raises NameTaken, IdTaken."""

        def work(connection: Connection) -> None:
            _check_free(connection, kind, resource)
            connection.execute(insert(RESOURCES), {"kind": kind.value, **resource._asdict()})

        await self._database.write(work)

    async def get(self, kind: ResourceKind, resource_id: str) -> StoredResource | None:
        """Return a resource; None if it does not exist."""
        return await self._database.read(lambda connection: _get(connection, kind, resource_id))

    async def list(
        self, kind: ResourceKind, *, after: tuple[int, str] | None = None, limit: int = 100, name: str = ""
    ) -> list[StoredResource]:
        """Return resources, oldest first. after: `created` and `id` of the last one on the previous page."""
        columns = RESOURCES.c
        wanted = select(*_COLUMNS).where(columns.kind == kind.value)
        if name:
            wanted = wanted.where(columns.name == name)
        if after is not None:
            wanted = wanted.where(tuple_(columns.created, columns.id) > after)
        wanted = wanted.order_by(columns.created, columns.id).limit(limit)
        return await self._database.read(
            lambda connection: [StoredResource(*row) for row in connection.execute(wanted)]
        )

    async def names(
        self, kind: ResourceKind, limit: int, *, contains: str = "", ids: Sequence[str] | None = None
    ) -> dict[str, str]:
        """Return the names of resources by id, sorted by name.

        contains: a part of the name; the case of ASCII letters does not matter. ids: return only these resources.
        """
        columns = RESOURCES.c
        wanted = select(columns.id, columns.name).where(columns.kind == kind.value)
        if contains:
            wanted = wanted.where(columns.name.icontains(plain_text(contains), autoescape=True))
        if ids is not None:
            wanted = wanted.where(columns.id.in_(ids))
        wanted = wanted.order_by(columns.name).limit(limit)
        return await self._database.read(lambda connection: dict(connection.execute(wanted).all()))

    async def update(
        self, kind: ResourceKind, resource_id: str, change: Callable[[StoredResource], StoredResource]
    ) -> StoredResource | None:
        """Replace a resource by the result of `change` and return it; None if it does not exist.

        `change` runs in the database thread, between the read and the write. Raises NameTaken, and what `change`
        raises.
        """

        def work(connection: Connection) -> StoredResource | None:
            old = _get(connection, kind, resource_id)
            if old is None:
                return None
            # The id and the time of creation never change.
            new = change(old)._replace(id=old.id, created=old.created)
            if new.name != old.name:
                _check_free(connection, kind, new, but=old.id)
            connection.execute(update(RESOURCES).where(_is(kind, resource_id)), new._asdict())
            return new

        return await self._database.write(work)

    async def delete(
        self, kind: ResourceKind, resource_id: str, check: Callable[[StoredResource], None] = lambda _: None
    ) -> bool:
        """Delete a resource. Return False if it does not exist.

        `check` runs in the database thread before the deletion. Raises what `check` raises.
        """

        def work(connection: Connection) -> bool:
            old = _get(connection, kind, resource_id)
            if old is None:
                return False
            check(old)
            connection.execute(delete(RESOURCES).where(_is(kind, resource_id)))
            return True

        return await self._database.write(work)


def _is(kind: ResourceKind, resource_id: str) -> Any:
    return and_(RESOURCES.c.kind == kind.value, RESOURCES.c.id == resource_id)


def _get(connection: Connection, kind: ResourceKind, resource_id: str) -> StoredResource | None:
    row = connection.execute(select(*_COLUMNS).where(_is(kind, resource_id))).first()
    return None if row is None else StoredResource(*row)


def _check_free(connection: Connection, kind: ResourceKind, new: StoredResource, but: str = "") -> None:
    """Raise NameTaken or IdTaken if the name or the id is used. but: an id to ignore.

    No other write can run until the transaction ends.
    """
    columns = RESOURCES.c
    same = or_(columns.id == new.id, columns.name == new.name)
    for resource_id, _ in connection.execute(
        select(columns.id, columns.name).where(columns.kind == kind.value, same, columns.id != but)
    ):
        raise IdTaken(new.id) if resource_id == new.id else NameTaken(new.name)
