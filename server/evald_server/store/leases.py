"""The store of remote evaluators' leases, so that a restarted server knows its listening plugins."""

from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from .database import Database
from .schema import LEASES


class StoredLease(NamedTuple):
    """One lease. plugin: serialized PluginInfo. registered: Unix time in seconds. owner: a principal as JSON.

    The expiry is not stored: a plugin cannot renew while the server is down, so a restored lease gets its full
    duration.
    """

    lease_id: str
    instance_id: str
    plugin: bytes
    target: str
    tls_profile: str
    ttl_seconds: float
    registered: float
    revoked: bool
    owner: str


class LeaseStore:
    """The leases in a database. All methods raise StoreProblem; a write is durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[StoredLease]:
        """Return all leases, oldest first."""
        wanted = select(LEASES).order_by(LEASES.c.registered)
        return await self._database.read(
            lambda connection: [StoredLease(*row) for row in connection.execute(wanted)]
        )

    async def put(self, lease: StoredLease, *, instead: str = "") -> None:
        """Store a lease. instead: id of a lease to delete."""

        def work(connection: Connection) -> None:
            connection.execute(delete(LEASES).where(LEASES.c.lease_id.in_([lease.lease_id, instead])))
            connection.execute(insert(LEASES), lease._asdict())

        await self._database.write(work)

    async def revoke(self, lease_id: str) -> None:
        """Mark a lease as revoked."""
        statement = update(LEASES).where(LEASES.c.lease_id == lease_id).values(revoked=True)
        await self._database.write(lambda connection: connection.execute(statement))

    async def delete(self, lease_id: str) -> None:
        """Delete a lease."""
        statement = delete(LEASES).where(LEASES.c.lease_id == lease_id)
        await self._database.write(lambda connection: connection.execute(statement))
