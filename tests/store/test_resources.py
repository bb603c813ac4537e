"""Resources: unique names and ids, changed in one transaction, listed page by page."""

import asyncio

import pytest

from evald_server.store.database import Database
from evald_server.store.resources import (
    IdTaken,
    NameTaken,
    ResourceKind,
    ResourceStore,
    StoredResource,
)

SCENARIO, PERSONA = ResourceKind.SCENARIO, ResourceKind.PERSONA


@pytest.fixture
def store(database: Database) -> ResourceStore:
    return ResourceStore(database)


def resource(number: int, name: str = "") -> StoredResource:
    return StoredResource(f"id-{number}", name or f"name-{number}", b"\x00body", 1000 + number, 2000)


async def test_what_was_created_can_be_got_and_deleted(store: ResourceStore) -> None:
    await store.create(SCENARIO, resource(1))
    assert await store.get(SCENARIO, "id-1") == resource(1)
    assert await store.get(PERSONA, "id-1") is None
    assert not await store.delete(PERSONA, "id-1")
    assert await store.delete(SCENARIO, "id-1")
    assert not await store.delete(SCENARIO, "id-1")
    assert await store.get(SCENARIO, "id-1") is None


async def test_names_and_ids_are_unique_within_a_kind(store: ResourceStore) -> None:
    await store.create(SCENARIO, resource(1))
    await store.create(PERSONA, resource(1))
    with pytest.raises(IdTaken):
        await store.create(SCENARIO, resource(1, "other"))
    with pytest.raises(NameTaken):
        await store.create(SCENARIO, resource(2, "name-1"))
    assert await store.list(SCENARIO) == [resource(1)]


async def test_one_of_many_that_want_a_name_at_once_gets_it(store: ResourceStore) -> None:
    outcomes = await asyncio.gather(
        *(store.create(SCENARIO, resource(number, "same")) for number in range(20)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(NameTaken) == 19
    assert len(await store.list(SCENARIO)) == 1


async def test_an_update_is_one_transaction(store: ResourceStore) -> None:
    await store.create(SCENARIO, resource(1)._replace(body=b""))

    def longer(old: StoredResource) -> StoredResource:
        return old._replace(body=old.body + b"x", updated=old.updated + 1)

    await asyncio.gather(*(store.update(SCENARIO, "id-1", longer) for _ in range(30)))
    assert await store.get(SCENARIO, "id-1") == resource(1)._replace(body=b"x" * 30, updated=2030)


async def test_an_update_that_fails_changes_nothing(store: ResourceStore) -> None:
    for number in (1, 2):
        await store.create(SCENARIO, resource(number))

    def fail(_old: StoredResource) -> StoredResource:
        raise ValueError("max_messages: got 1")

    with pytest.raises(ValueError, match="max_messages"):
        await store.update(SCENARIO, "id-1", fail)
    with pytest.raises(NameTaken):
        await store.update(SCENARIO, "id-1", lambda old: old._replace(name="name-2"))
    assert await store.list(SCENARIO) == [resource(1), resource(2)]
    assert await store.update(SCENARIO, "none", fail) is None


async def test_an_update_keeps_the_id_and_the_time_of_creation(store: ResourceStore) -> None:
    await store.create(SCENARIO, resource(1))
    changed = await store.update(SCENARIO, "id-1", lambda old: StoredResource("other", "new", b"", 1, 7))
    assert changed == StoredResource("id-1", "new", b"", 1001, 7) == await store.get(SCENARIO, "id-1")


async def test_pages_are_complete_and_in_order(store: ResourceStore) -> None:
    # Three of each time: the id decides.
    rows = [resource(number)._replace(created=number // 3) for number in range(30)]
    for row in reversed(rows):
        await store.create(SCENARIO, row)
    wanted = sorted(rows, key=lambda row: (row.created, row.id))
    seen: list[StoredResource] = []
    while page := await store.list(
        SCENARIO, after=(seen[-1].created, seen[-1].id) if seen else None, limit=7
    ):
        seen += page
    assert seen == wanted
    assert await store.list(SCENARIO, name="name-7") == [rows[7]]
    assert await store.list(SCENARIO, name="none") == []


async def test_no_text_breaks_a_database(store: ResourceStore) -> None:
    for number, name in enumerate(["with\0nul", "O'Brien; DROP TABLE resources", "日本 🎉", "%_\\"]):
        await store.create(SCENARIO, resource(number, name))
        assert [one.id for one in await store.list(SCENARIO, name=name)] == [f"id-{number}"]
    assert await store.get(SCENARIO, "\0") is None
