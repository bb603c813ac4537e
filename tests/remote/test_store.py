"""Registrations on disk: durable when acknowledged, refused when they cannot be."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evald_server.app import App, StartError
from evald_server.config import Settings
from evald_server.remote.errors import Refusal
from evald_server.remote.store import _MIGRATIONS, FILE_NAME, SqliteLeaseStore, StoredLease

from ..rpc.live import refusal, request, serving, until
from .scripted import WORD, active, deregister, listening, register, renew, states

ROW = StoredLease("lease", "instance", b"\x00plugin", "10.0.0.7:1", "tls", 30.0, 1.5)
LOOPBACK = ["127.0.0.1"]


async def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path)
    assert await store.load() == []
    await store.put(ROW)
    revoked = replace(ROW, lease_id="second", registered=2.0, revoked=True)
    await store.put(revoked)
    # Not closed: as after kill -9.
    again = SqliteLeaseStore(tmp_path)
    assert await again.load() == [ROW, revoked]
    await again.put(replace(ROW, lease_id="third"), instead="lease")
    await again.delete("second")
    await again.delete("never-there")
    assert [row.lease_id for row in await again.load()] == ["third"]
    await again.close()
    await store.close()


async def test_a_file_of_an_earlier_build_keeps_its_leases(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute(_MIGRATIONS[0])
        values = ("lease", "instance", b"\x00plugin", "10.0.0.7:1", "tls", "", 30.0, 1.5, 0)
        connection.execute("INSERT INTO registrations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    store = SqliteLeaseStore(tmp_path)
    assert await store.load() == [ROW]
    await store.put(replace(ROW, lease_id="second"))
    assert len(await store.load()) == 2
    await store.close()


async def test_five_hundred_registrations_at_once_are_a_few_commits(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path)
    commits = 0
    commit = store._commit

    def counted(statements: Any) -> Any:
        nonlocal commits
        commits += 1
        return commit(statements)

    store._commit = counted  # type: ignore[method-assign]
    await asyncio.gather(*(store.put(replace(ROW, lease_id=str(number))) for number in range(500)))
    assert commits <= 3
    assert len(await store.load()) == 500
    await store.close()


async def test_a_full_disk_and_a_locked_file_are_told_apart(tmp_path: Path) -> None:
    store = SqliteLeaseStore(tmp_path)
    await store.put(ROW)
    assert store._connection is not None
    store._connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(Refusal) as full:
        await store.put(replace(ROW, lease_id="large", plugin=b"x" * 1_000_000))
    assert full.value.reason == "STORAGE_FULL"
    store._connection.execute("PRAGMA max_page_count = 100000")
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refusal) as locked:
        await store.put(replace(ROW, lease_id="other"))
    assert locked.value.reason == "STORAGE_UNAVAILABLE"
    other.execute("ROLLBACK")
    other.close()
    await store.put(replace(ROW, lease_id="other"))
    assert {row.lease_id for row in await store.load()} == {"lease", "other"}
    await store.close()


async def test_nothing_is_acknowledged_that_could_not_be_written(tmp_path: Path) -> None:
    async with (
        serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live,
        listening("acme.word") as plugin,
    ):
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        refused = await refusal(register(live, plugin))
        assert (refused.code.name, refused.reason) == ("UNAVAILABLE", "STORAGE_UNAVAILABLE")
        assert refused.retry is not None
        assert await states(live) == {}
        other.execute("ROLLBACK")
        other.close()
        await register(live, plugin)
        assert (await live.unary(request(WORD))).summary.success


@pytest.mark.parametrize("content", ["garbage", "newer"])
async def test_a_file_that_cannot_be_read_stops_the_start_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / FILE_NAME
    if content == "garbage":
        path.write_bytes(b"no database at all, but long enough to look at" * 100)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    app = App(Settings(listen="127.0.0.1:0", http=None, data_dir=tmp_path))
    with pytest.raises(StartError, match=str(tmp_path)):
        await app.start()
    await app.remotes.stop()


async def test_a_restarted_server_knows_its_plugins_and_their_leases(tmp_path: Path) -> None:
    async with listening("acme.word") as plugin, listening("acme.word") as left:
        async with serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live:
            lease = await register(live, plugin)
            gone = await register(live, left, "left")
            await deregister(live, gone.lease_id)
        async with serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live:
            await active(live, "listening-1")
            assert await states(live) == {"listening-1": "active"}
            assert (await live.unary(request(WORD))).summary.success
            assert (await renew(live, lease.lease_id)).state == 1
            assert (await renew(live, gone.lease_id)).state == 2


@pytest.mark.parametrize(
    "settings",
    [{"remote_allowed": ["10.0.0.0/8"]}, {"remote_allowed": LOOPBACK, "remote_blocked": ["acme.tests"]}, {}],
    ids=["other-targets", "blocked", "nobody"],
)
async def test_what_the_operator_no_longer_allows_is_revoked_for_good(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with listening("acme.word") as plugin:
        async with serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live:
            lease = await register(live, plugin)
            await until(lambda: plugin.describes)
        for _ in range(2):
            async with serving(data_dir=tmp_path, **settings) as live:
                assert await states(live) == {}
                assert (await renew(live, lease.lease_id)).state == 3
        # Allowed again, it must register anew: whoever revoked it meant it.
        async with serving(remote_allowed=LOOPBACK, data_dir=tmp_path) as live:
            assert (await renew(live, lease.lease_id)).state == 3
