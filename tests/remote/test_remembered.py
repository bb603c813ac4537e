"""Types that were offered outlive the server: their calls are errors of one evaluator until they are back or forgotten."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from evald.plugin.v1 import registry_service_pb2 as pb
from evald.v1 import evaluator_pb2
from evald_server.store.database import FILE_NAME
from evald_server.store.remote_types import RemoteTypeStore

from ..rpc.live import Live, refusal, request, serving, spec, until
from .scripted import WORD, active, answers, evaluator_type, listening, register, renew, worker

REGISTRY = "/evald.plugin.v1.RegistryService/"
LOOPBACK = ["127.0.0.1"]


@asynccontextmanager
async def _attached(data: Path) -> AsyncIterator[Live]:
    async with serving(data_dir=data) as live, worker(live, "acme.word"):
        yield live


@asynccontextmanager
async def _registered(data: Path) -> AsyncIterator[Live]:
    async with serving(data_dir=data, remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        granted = await register(live, plugin)
        await active(live, "listening-1")
        yield live
        leaving = pb.DeregisterRequest(lease_id=granted.lease_id)
        await live.raw(f"{REGISTRY}Deregister", leaving.SerializeToString())


@asynccontextmanager
async def _static(data: Path) -> AsyncIterator[Live]:
    async with listening("acme.word") as plugin:
        targets = [{"target": plugin.address}]
        async with serving(data_dir=data, remote_targets=targets) as live:
            await until(lambda: live.app.registry.get("acme.word"))
            yield live


async def _unoffered(live: Live) -> list[tuple[str, str]]:
    data = await live.raw(f"{REGISTRY}ListRegistrations", b"")
    types = pb.ListRegistrationsResponse.FromString(data).unoffered_types
    return [(one.evaluator_type.type, one.evaluator_type.version) for one in types]


async def _forget(live: Live, name: str, version: str = "") -> None:
    asked = pb.ForgetTypeRequest(type=name, version=version)
    await live.raw(f"{REGISTRY}ForgetType", asked.SerializeToString())


def _mixed(seconds: float) -> Any:
    asked = request(WORD, spec("is-json"), answer="[]")
    asked.options.timeout.FromMilliseconds(round(seconds * 1000))
    return asked


@pytest.mark.parametrize("way", [_attached, _registered, _static])
async def test_a_restarted_server_answers_for_a_type_whose_plugin_is_away(
    tmp_path: Path, way: Callable[[Path], AbstractAsyncContextManager[Live]]
) -> None:
    async with way(tmp_path) as live:
        assert (await live.unary(request(WORD))).summary.success
    async with serving(data_dir=tmp_path) as live:
        assert live.app.registry.get("acme.word")
        remote, built_in = (await live.unary(_mixed(0.6))).summary.results
        assert remote.error.code == "REMOTE_UNAVAILABLE"
        assert built_in.verdict == 1
        assert await _unoffered(live) == [("acme.word", "1.0.0")]
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_remote_instances{evaluator="acme.word",mode="remembered",state="active"} 0.0' in text


@pytest.mark.parametrize(("seconds", "longest"), [(0.4, 0.3), (2.0, 1.6)])
async def test_soon_after_a_start_a_call_waits_half_its_deadline(
    tmp_path: Path, seconds: float, longest: float
) -> None:
    async with _attached(tmp_path):
        pass
    async with serving(data_dir=tmp_path) as live:
        began = time.monotonic()
        (result, _) = (await live.unary(_mixed(seconds))).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"
        assert seconds / 2 - 0.05 < time.monotonic() - began < longest


async def test_soon_after_a_start_only_calls_of_the_type_wait_until_it_is_back(tmp_path: Path) -> None:
    async with _attached(tmp_path):
        pass
    async with serving(data_dir=tmp_path, remote_max_queued=1) as live:
        waiting = [asyncio.create_task(live.unary(_mixed(20))) for _ in range(20)]
        assert (await live.unary(request(spec("is-json"), answer="[]"))).summary.success
        assert not any(call.done() for call in waiting)
        async with worker(live, "acme.word"):
            assert all(done.summary.success for done in await asyncio.gather(*waiting))


async def test_a_type_that_was_lost_while_the_server_ran_is_not_waited_for(tmp_path: Path) -> None:
    async with serving(data_dir=tmp_path) as live:
        async with worker(live, "acme.word"):
            pass
        await until(lambda: not live.app.remotes.instances.by_id)
        async with asyncio.timeout(4):
            (result, _) = (await live.unary(_mixed(20))).summary.results
        assert result.error.code == "REMOTE_UNAVAILABLE"


async def test_the_first_live_instance_replaces_a_remembered_schema(tmp_path: Path) -> None:
    other = evaluator_type(
        "acme.word", schema={"type": "object", "properties": {"length": {"type": "integer"}}}
    )
    other.kind = evaluator_pb2.EVALUATOR_KIND_METRIC
    async with _attached(tmp_path):
        pass
    async with serving(data_dir=tmp_path) as live:
        async with worker(live, other, behave=answers(verdict=1, value=3)):
            asked = request(spec("acme.word", {"length": 4}))
            assert dict((await live.unary(asked)).summary.metrics) == {"acme.word": 3}
        await until(lambda: not live.app.remotes.instances.by_id)
    async with serving(data_dir=tmp_path) as live:
        entry = live.app.registry.get("acme.word")
        assert entry is not None
        assert "length" in entry.definition.config_schema()


async def test_a_dead_plugin_whose_lease_is_restored_does_not_hold_its_schema(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path, "remote_allowed": LOOPBACK}
    async with listening("acme.word") as plugin, serving(**settings) as live:
        await register(live, plugin)
        await active(live, "listening-1")
    other = evaluator_type("acme.word", schema={"type": "object"})
    async with serving(**settings) as live, worker(live, other):
        assert (await live.unary(request(spec("acme.word", {"anything": 1})))).summary.success


async def test_what_is_forgotten_stays_forgotten(tmp_path: Path) -> None:
    newer = evaluator_type("acme.word", version="2.0.0")
    async with serving(data_dir=tmp_path) as live:
        async with worker(live, "acme.word", "acme.more"), worker(live, newer, instance_id="newer"):
            refused = await refusal(_forget(live, "acme.word"))
            assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TYPE_OFFERED")
        await until(lambda: not live.app.remotes.instances.by_id)
        for name, version in (("acme.none", ""), ("acme.word", "3.0.0"), ("is-json", ""), ("", "")):
            refused = await refusal(_forget(live, name, version))
            assert (refused.code, refused.fields) == (grpc.StatusCode.NOT_FOUND, ["type"])
        await _forget(live, "acme.word", "1.0.0")
        assert sorted(await _unoffered(live)) == [("acme.more", "1.0.0"), ("acme.word", "2.0.0")]
        await _forget(live, "acme.word")
        refused = await refusal(live.unary(request(WORD)))
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TYPE")
        assert live.app.remotes.instances.counts().keys() == {("acme.more", "connected", "active")}
    async with serving(data_dir=tmp_path) as live:
        assert await _unoffered(live) == [("acme.more", "1.0.0")]
        async with worker(live, "acme.word"):
            assert (await live.unary(request(WORD))).summary.success


async def test_a_server_without_a_data_directory_remembers_until_it_ends() -> None:
    async with serving() as live:
        async with worker(live, "acme.word"):
            pass
        await until(lambda: not live.app.remotes.instances.by_id)
        assert await _unoffered(live) == [("acme.word", "1.0.0")]
        await _forget(live, "acme.word")
        assert await _unoffered(live) == []


async def test_a_plugin_is_accepted_while_the_store_fails_and_its_type_is_stored_later(
    tmp_path: Path,
) -> None:
    async with serving(data_dir=tmp_path) as live:
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with worker(live, "acme.word"):
            assert (await live.unary(request(WORD))).summary.success
            other.execute("ROLLBACK")
            other.close()

            async def is_stored() -> bool:
                return [row.type for row in await RemoteTypeStore(live.app.database).load()] == ["acme.word"]

            await until(is_stored, 20)


async def test_a_type_that_fails_takes_no_tasks_from_the_other_types_of_its_instance() -> None:
    async def behave(task: Any) -> Any:
        if task.type == "acme.slow":
            await asyncio.Event().wait()
        return await answers(verdict=1, score=1)(task)

    async with serving() as live, worker(live, "acme.word", "acme.slow", behave=behave, credit=16):
        late = request(spec("acme.slow", {"word": "x"}))
        late.options.timeout.FromMilliseconds(300)
        codes = set()
        for _ in range(8):
            (result,) = (await live.unary(late)).summary.results
            codes.add(result.error.code)
        assert codes == {"TIMEOUT", "REMOTE_CIRCUIT_OPEN"}
        assert (await live.unary(request(WORD))).summary.success
        counts = live.app.remotes.instances.counts()
        assert counts["acme.word", "connected", "active"] == 1
        assert counts["acme.slow", "connected", "unhealthy"] == 1


async def test_a_plugin_that_cannot_be_reached_is_told_why_with_its_renewals() -> None:
    async with serving(remote_allowed=LOOPBACK) as live, listening("acme.word") as plugin:
        lease = (await register(live, plugin)).lease_id
        await active(live, "listening-1")
        assert (await renew(live, lease)).unreachable_reason == ""
        await plugin.stop()

        async def is_told() -> bool:
            return plugin.address in (await renew(live, lease)).unreachable_reason

        await until(is_told)
        assert (await renew(live, lease)).state == pb.LEASE_STATE_ACTIVE
