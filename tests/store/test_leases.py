"""Leases: durable when put, replaced in one commit."""

from collections.abc import Callable

from evald_server.store.database import Database
from evald_server.store.leases import LeaseStore, StoredLease

from .conftest import Place

ROW = StoredLease(
    "lease",
    "instance",
    b"\x00plugin",
    "10.0.0.7:1",
    "tls",
    30.0,
    1.5,
    revoked=False,
    owner='{"name": "acme"}',
)


async def test_what_was_put_is_there_for_the_next_process(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
    database = open_database(lasting_place)
    await database.start()
    store = LeaseStore(database)
    assert await store.load() == []
    revoked = ROW._replace(lease_id="second", registered=2.0, revoked=True)
    await store.put(revoked)
    await store.put(ROW)
    await database.close()
    database = open_database(lasting_place)
    await database.start()
    store = LeaseStore(database)
    assert await store.load() == [ROW, revoked]
    await store.put(ROW._replace(lease_id="third"), instead="lease")
    await store.delete("second")
    await store.delete("never-there")
    assert [row.lease_id for row in await store.load()] == ["third"]


async def test_a_lease_put_again_is_replaced(database: Database) -> None:
    store = LeaseStore(database)
    await store.put(ROW)
    await store.put(ROW._replace(revoked=True))
    assert await store.load() == [ROW._replace(revoked=True)]
