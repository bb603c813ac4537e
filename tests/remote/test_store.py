"""Registrations in the store: durable when acknowledged, refused when they cannot be."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evald.plugin.v1 import task_pb2
from evald_server.app import App, StartError
from evald_server.config import Settings
from evald_server.store.database import FILE_NAME
from evald_server.store.leases import LeaseStore, StoredLease

from ..rpc.live import Live, refusal, request, serving, until
from .scripted import PASSED, WORD, active, deregister, listening, register, renew, states

LOOPBACK = ["127.0.0.1"]


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


class _Late:
    """The store of a server, whose first `put` comes after its others."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.store = LeaseStore(live.app.database)
        put = LeaseStore.put

        async def late(store: LeaseStore, lease: StoredLease, *, instead: str = "") -> None:
            if not self.begun.is_set():
                self.begun.set()
                await self.go_on.wait()
            await put(store, lease, instead=instead)

        monkeypatch.setattr(LeaseStore, "put", late)

    async def targets(self) -> list[str]:
        """The targets of all stored leases."""
        return [row.target for row in await self.store.load()]


async def test_who_registered_last_stays_whichever_is_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word") as first,
        listening("acme.word") as last,
    ):
        late = _Late(live, monkeypatch)
        registering = asyncio.create_task(register(live, first, "x"))
        await late.begun.wait()
        lease = await register(live, last, "x")
        late.go_on.set()
        assert (await renew(live, (await registering).lease_id)).state == 2
        assert (await renew(live, lease.lease_id)).state == 1
        assert await late.targets() == [last.address]
        assert (await live.unary(request(WORD))).summary.success
        assert last.tasks
        assert not first.describes, "nobody dials it"


async def test_the_same_registration_twice_is_dialled_once_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        late = _Late(live, monkeypatch)
        registering = asyncio.create_task(register(live, plugin))
        await late.begun.wait()
        lease = await register(live, plugin)
        late.go_on.set()
        await registering
        assert (await renew(live, lease.lease_id)).state == 1
        assert (await live.unary(request(WORD))).summary.success
        assert plugin.describes == 1
        assert await late.targets() == [plugin.address]


async def test_a_lease_that_runs_out_while_it_is_written_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        late = _Late(live, monkeypatch)
        registering = asyncio.create_task(register(live, plugin, ttl=1))
        await late.begun.wait()
        await until(lambda: not live.app.remotes.instances.by_id)
        late.go_on.set()
        assert (await renew(live, (await registering).lease_id)).state == 2
        assert await late.targets() == []
        assert await states(live) == {}
        assert not plugin.describes


@pytest.mark.parametrize("content", ["garbage", "newer"])
async def test_a_file_that_cannot_be_read_stops_the_start_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / FILE_NAME
    if content == "garbage":
        path.write_bytes(b"no database at all, but long enough to look at" * 100)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
            connection.execute("INSERT INTO alembic_version VALUES ('9999')")
        connection.close()
    app = App(Settings(listen="127.0.0.1:0", http=None, web=None, data_dir=tmp_path))
    with pytest.raises(StartError, match=str(tmp_path)):
        await app.start()


async def test_a_plugin_that_registers_while_it_drains_stays_registered() -> None:
    release = asyncio.Event()

    async def waits(_task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        if len(plugin.tasks) == 1:
            await release.wait()
        return PASSED

    async with (
        serving(remote_allowed=LOOPBACK) as live,
        listening("acme.word", behave=waits) as plugin,
    ):
        before = await register(live, plugin)
        call = asyncio.create_task(live.unary(request(WORD)))
        await until(lambda: plugin.tasks)
        await deregister(live, before.lease_id, drain=True)
        assert await states(live) == {"listening-1": "draining"}
        lease = await register(live, plugin)
        await active(live, "listening-1")
        assert (await live.unary(request(WORD))).summary.success
        release.set()
        assert (await call).summary.success
        assert await states(live) == {"listening-1": "active"}
        assert (await renew(live, lease.lease_id)).state == 1
        assert (await live.unary(request(WORD))).summary.success


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
