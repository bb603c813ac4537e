"""Transactions: together in a commit, apart in failure, and durable when they return."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import IntegrityError

from evald_server.store.database import Database, StoreProblem
from evald_server.store.schema import COUNTERS

from .conftest import Place

Open = Callable[[Place], Database]


def put(name: str, value: int = 1) -> Callable[[Connection], str]:
    def work(connection: Connection) -> str:
        connection.execute(insert(COUNTERS), {"name": name, "value": value})
        return name

    return work


def names(connection: Connection) -> set[str]:
    return set(connection.scalars(select(COUNTERS.c.name)))


async def test_all_that_waits_during_a_commit_goes_into_the_next_one(database: Database) -> None:
    commits = 0

    def count(_connection: Connection) -> None:
        nonlocal commits
        commits += 1

    assert database._engine is not None
    event.listen(database._engine, "commit", count)
    wanted = [str(number) for number in range(300)]
    assert await asyncio.gather(*(database.write(put(name)) for name in wanted)) == wanted
    assert commits <= 3
    assert await database.read(names) == set(wanted)


async def test_a_work_that_fails_takes_nothing_of_the_others_with_it(database: Database) -> None:
    def half(connection: Connection) -> None:
        put("half")(connection)
        raise LookupError("not wanted")

    await database.write(put("there"))
    outcomes = await asyncio.gather(
        database.write(put("first")),
        database.write(half),
        database.write(put("there")),
        database.write(put("last")),
        return_exceptions=True,
    )
    assert [outcomes[0], outcomes[3]] == ["first", "last"]
    assert isinstance(outcomes[1], LookupError)
    assert isinstance(outcomes[2], IntegrityError)
    assert await database.read(names) == {"there", "first", "last"}


async def test_a_cancelled_caller_leaves_the_others_alone(database: Database) -> None:
    running = [asyncio.create_task(database.write(put(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    for task in running[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert outcomes[1::2] == [str(number) for number in range(1, 20, 2)]
    assert {str(number) for number in range(1, 20, 2)} <= await database.read(names)
    assert await database.write(put("later")) == "later"


async def test_what_was_awaited_is_there_for_the_next_process(
    lasting_place: Place, open_database: Open
) -> None:
    first = open_database(lasting_place)
    await first.start()
    await first.write(put("kept"))
    await first.close()
    again = open_database(lasting_place)
    await again.start()
    assert await again.read(names) == {"kept"}


async def test_close_finishes_what_waits_and_refuses_the_rest(place: Place, open_database: Open) -> None:
    database = open_database(place)
    await database.start()
    waiting = asyncio.create_task(database.write(put("waiting")))
    await asyncio.sleep(0)
    await database.close()
    assert await waiting == "waiting"
    for refused in (database.write(put("late")), database.read(names)):
        with pytest.raises(StoreProblem, match="stops"):
            await refused
    await database.close()


async def test_a_database_in_memory_is_its_own(open_database: Open) -> None:
    first, second = open_database("sqlite://"), open_database("sqlite://")
    for one in (first, second):
        await one.start()
    await first.write(put("mine"))
    assert await second.read(names) == set()


async def test_the_file_is_for_its_owner_alone(tmp_path: Path, open_database: Open) -> None:
    path = tmp_path / "100%? #1.sqlite3"
    database = open_database(path)
    await database.start()
    await database.write(put("secret"))
    modes = {name: os.stat(tmp_path / name).st_mode & 0o077 for name in os.listdir(tmp_path)}  # noqa: PTH116, PTH208
    assert modes[path.name] == 0
    assert set(modes.values()) == {0}


async def test_a_second_server_is_refused_and_takes_over_when_the_first_is_gone(
    postgres: object, open_database: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evald_server.store.database._TAKE_OVER_SECONDS", 0.2)
    url = request.getfixturevalue("postgres").create()
    first, second = open_database(url), open_database(url)
    await first.start()
    with pytest.raises(StoreProblem, match=r"another server uses this database.*EVALD_STORE"):
        await second.start()
    await first.close()
    await second.start()
    assert await second.write(put("mine")) == "mine"


async def test_an_old_session_that_ends_soon_is_waited_for(
    postgres: object, open_database: Open, request: pytest.FixtureRequest
) -> None:
    """A server that was killed in the middle of a statement: PostgreSQL finishes it first."""
    url = request.getfixturevalue("postgres").create()
    old = await asyncio.to_thread(psycopg.connect, url)
    key = int.from_bytes(b"evald", "big")
    await asyncio.to_thread(old.execute, "SELECT pg_advisory_lock(%s)", (key,))
    starting = asyncio.create_task(open_database(url).start())
    began = time.monotonic()
    await asyncio.sleep(0.3)
    assert not starting.done()
    old.close()
    await starting
    assert time.monotonic() - began < 5


async def test_a_password_and_a_path_are_in_no_message(tmp_path: Path, open_database: Open) -> None:
    for place in ("postgresql://me:hunter2@127.0.0.1:1/none", tmp_path / "missing" / "file"):
        with pytest.raises(StoreProblem) as refused:
            await open_database(place).start()
        assert refused.value.reason == "STORAGE_UNAVAILABLE"
        assert "hunter2" not in refused.value.message
        assert str(tmp_path) not in refused.value.message
