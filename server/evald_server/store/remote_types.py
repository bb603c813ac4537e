"""The store of remote evaluator types that were ever offered, so that a restarted server knows them."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, Delete, delete, insert, select

from .database import Database
from .schema import REMOTE_TYPES


class StoredType(NamedTuple):
    """One type in one version. body: serialized EvaluatorType. plugin, principal: who offered it last.

    offered: Unix time of the first offer, in microseconds.
    """

    type: str
    version: str
    body: bytes
    plugin: str
    principal: str
    offered: int


class RemoteTypeStore:
    """The types in a database. All methods raise StoreProblem; a write is durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[StoredType]:
        """Return all types, oldest first."""
        wanted = select(REMOTE_TYPES).order_by(REMOTE_TYPES.c.offered)
        return await self._database.read(
            lambda connection: [StoredType(*row) for row in connection.execute(wanted)]
        )

    async def put(self, stored: StoredType) -> None:
        """Store a type, instead of what was stored of its version."""

        def work(connection: Connection) -> None:
            connection.execute(_removal(stored.type, stored.version))
            connection.execute(insert(REMOTE_TYPES), stored._asdict())

        await self._database.write(work)

    async def delete(self, keys: Iterable[tuple[str, str]]) -> None:
        """Delete types, all or none of them."""
        statements = [_removal(name, version) for name, version in keys]

        def work(connection: Connection) -> None:
            for statement in statements:
                connection.execute(statement)

        await self._database.write(work)


def _removal(name: str, version: str) -> Delete:
    return delete(REMOTE_TYPES).where(REMOTE_TYPES.c.type == name, REMOTE_TYPES.c.version == version)
