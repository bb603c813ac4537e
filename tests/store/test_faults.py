"""A database in trouble: told apart, never acknowledged, and over when the trouble is over."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, insert, select

from evald_server.store.database import FILE_NAME, Database, StoreProblem
from evald_server.store.schema import RUN_SNAPSHOTS

from .postgres import Postgres

Open = Callable[[str | Path], Database]


def put(number: int, size: int = 10) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        connection.execute(insert(RUN_SNAPSHOTS), {"number": number, "body": b"x" * size})

    return work


def numbers(connection: Connection) -> set[int]:
    return set(connection.scalars(select(RUN_SNAPSHOTS.c.number)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


@pytest.fixture
async def database(path: Path, open_database: Open) -> Database:
    new = open_database(path)
    await new.start()
    await new.write(put(1))
    return new


async def refused(database: Database, number: int = 99, size: int = 10) -> str:
    with pytest.raises(StoreProblem) as problem:
        await database.write(put(number, size))
    return problem.value.reason


async def test_what_does_not_fit_is_refused_and_the_rest_is_stored(database: Database) -> None:
    def limit(pages: int) -> Callable[[Connection], None]:
        return lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close()

    await database.write(limit(100))
    outcomes = await asyncio.gather(
        database.write(put(2)),
        database.write(put(3, 1_000_000)),
        database.write(put(4)),
        return_exceptions=True,
    )
    assert [outcomes[0], outcomes[2]] == [None, None]
    assert isinstance(outcomes[1], StoreProblem)
    assert outcomes[1].reason == "STORAGE_FULL"
    assert await database.read(numbers) == {1, 2, 4}
    await database.write(limit(100_000))
    await database.write(put(3, 1_000_000))


FILLING = """
import asyncio, resource, signal, sys
from pathlib import Path
from evald_server.store.database import Database, StoreProblem
from tests.store.test_faults import numbers, put

async def main() -> None:
    database = Database(Path(sys.argv[1]))
    await database.start()
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, -1))
    stored, codes = set(), set()
    for number in range(20):
        try:
            await database.write(put(number, 100_000))
            stored.add(number)
        except StoreProblem as problem:
            codes.add(problem.reason)
    assert 0 < len(stored) < 20, stored
    assert await database.read(numbers) == stored
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await database.write(put(100, 1_000_000))
    assert await database.read(numbers) == stored | {100}
    print(*codes)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


async def test_a_file_that_may_not_grow_is_refused_until_it_may(path: Path) -> None:
    """As by a quota: not the text of a full disk, but nothing is acknowledged that was not written."""
    command = [sys.executable, "-c", FILLING, str(path)]
    run = await asyncio.to_thread(
        subprocess.run, command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["STORAGE_UNAVAILABLE"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of its own file system, of 2 MB. Used before databases, so that they are closed before it goes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Fill the disk to its last byte."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


async def test_a_full_disk_is_told(small_disk: Path, open_database: Open) -> None:
    database = open_database(small_disk / FILE_NAME)
    await database.start()
    filler = small_disk / "filler"
    fill(filler)
    assert await refused(database, size=100_000) == "STORAGE_FULL"
    assert await database.read(numbers) == set()
    filler.unlink()
    await database.write(put(1, 100_000))
    assert await database.read(numbers) == {1}


async def test_a_lock_of_another_process_is_told_and_reading_goes_on(database: Database, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await refused(database) == "STORAGE_UNAVAILABLE"
        assert await database.read(numbers) == {1}
        other.execute("ROLLBACK")
    await database.write(put(2))
    assert await database.read(numbers) == {1, 2}


async def test_a_file_that_was_removed_is_missed_and_used_again_when_it_is_back(
    database: Database, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    moved = path.with_name("moved")
    path.rename(moved)
    for _ in range(2):
        assert await refused(database) == "STORAGE_UNAVAILABLE"
        with pytest.raises(StoreProblem):
            await database.read(numbers)
    assert not path.exists(), "an empty database in its place would hide the loss"
    shutil.copy(moved, path)
    assert await database.read(numbers) == {1}
    await database.write(put(2))
    assert await database.read(numbers) == {1, 2}


async def test_a_file_that_is_no_database_stops_the_start(path: Path, open_database: Open) -> None:
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    with pytest.raises(StoreProblem):
        await open_database(path).start()
    assert path.read_bytes().startswith(b"no database")


READ_ONLY = """
import asyncio, os, sys
from pathlib import Path
from evald_server.store.database import Database, StoreProblem
from tests.store.test_faults import numbers, put

async def main() -> None:
    database = Database(Path(sys.argv[1]))
    try:
        await database.start()
        await database.write(put(2))
    except StoreProblem as problem:
        print(problem.reason)

if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(main())
"""


async def test_a_file_that_may_not_be_written_is_told(database: Database, path: Path) -> None:
    await database.close()
    path.chmod(0o444)
    for folder in (path.parent, *path.parent.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.is_relative_to("/tmp"):
            folder.chmod(0o755)
    path.parent.chmod(0o777)
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", READ_ONLY, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == ["STORAGE_UNAVAILABLE"], run.stderr


async def test_a_postgres_that_is_restarted_is_not_noticed_and_one_that_is_gone_is(
    postgres: Postgres, open_database: Open
) -> None:
    database = open_database(postgres.create())
    await database.start()
    await database.write(put(1))
    assert await database.read(numbers) == {1}
    await asyncio.to_thread(postgres.stop)
    try:
        for _ in range(2):
            assert await refused(database) == "STORAGE_UNAVAILABLE"
            with pytest.raises(StoreProblem):
                await database.read(numbers)
    finally:
        await asyncio.to_thread(postgres.start)
    await database.write(put(2))
    assert await database.read(numbers) == {1, 2}
    await asyncio.to_thread(postgres.stop)
    await asyncio.to_thread(postgres.start)
    assert await database.read(numbers) == {1, 2}
    await database.write(put(3))
    assert await database.read(numbers) == {1, 2, 3}


async def test_a_lock_on_a_table_of_postgres_is_told(postgres: Postgres, open_database: Open) -> None:
    url = postgres.create()
    database = open_database(url)
    await database.start()
    with await asyncio.to_thread(psycopg.connect, url) as other:
        other.execute("LOCK TABLE run_snapshots IN SHARE MODE")
        assert await refused(database) == "STORAGE_UNAVAILABLE"
        assert await database.read(numbers) == set()
        other.rollback()
    await database.write(put(1))


async def test_a_session_that_another_server_has_taken_over_writes_no_more(
    postgres: Postgres, open_database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock ends with the session, and whoever gets it next is the only one that writes."""
    monkeypatch.setattr("evald_server.store.database._TAKE_OVER_SECONDS", 0.2)
    url = postgres.create()
    first, second = open_database(url), open_database(url)
    await first.start()
    with await asyncio.to_thread(psycopg.connect, url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await second.start()
    assert await refused(first) == "STORAGE_UNAVAILABLE"
    await second.write(put(1))
    await second.close()
    await first.write(put(2))
    assert await first.read(numbers) == {1, 2}
