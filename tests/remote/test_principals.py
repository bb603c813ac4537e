"""Principals share a remote evaluator: one with slow tasks leaves slots and a part of the queue to the others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from evald.plugin.v1 import task_pb2
from evald.v1 import result_pb2
from evald_server.auth.principal import Role

from ..auth.keyring import Metadata, bearer, guarded, make_key
from ..rpc.live import Live, request, spec, until
from .scripted import PASSED, listening, worker

LONG = {"seconds": 120}


class Held:
    """An evaluator whose tasks end when the test says so. tasks: the answers that they were about, in order."""

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.released = asyncio.Event()

    async def behave(self, task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        """Wait for the release."""
        self.tasks.append(task.context.messages[-1].text)
        await self.released.wait()
        return PASSED


class Shared:
    """A server with one plugin, and two principals who call it."""

    def __init__(self, live: Live, callers: dict[str, Metadata]) -> None:
        self.live = live
        self._callers = callers

    def begin(
        self, principal: str, count: int, type_name: str = "acme.word", **fields: Any
    ) -> list[asyncio.Task[str]]:
        """Begin calls whose answer is the principal's name. Each returns the result's error code."""
        wanted = request(spec(type_name, **{"timeout": LONG, **fields}), answer=principal)
        return [asyncio.create_task(self._code(wanted, principal)) for _ in range(count)]

    async def _code(self, wanted: Any, principal: str) -> str:
        answer = await self.live.unary(wanted, metadata=self._callers[principal])
        (result,) = answer.summary.results
        assert (result.verdict == result_pb2.VERDICT_PASSED) == (not result.error.code)
        return result.error.code

    def queued(self) -> int:
        """The number of calls that wait for an instance."""
        return sum(pool.queued for pool in self.live.app.remotes.instances.pools.values())


@asynccontextmanager
async def shared(
    folder: Path, way: str, slots: int, behave: Any, *types: str, **settings: Any
) -> AsyncIterator[tuple[Shared, Any]]:
    """A server whose plugin has so many slots. way: "listens" or "connects"."""
    file = folder / "keys.toml"
    callers = {name: bearer(make_key(file, name, Role.CALLER)) for name in ("greedy", "other")}
    offering = bearer(make_key(file, "plugin", Role.PLUGIN, types=("acme.*",)))
    types = types or ("acme.word",)
    settings = {"remote_max_queued": 4, "remote_max_queue_seconds": 60, **settings}
    if way == "listens":
        async with (
            listening(*types, behave=behave, max_concurrency=slots) as plugin,
            guarded(file, remote_targets=[plugin.address], **settings) as live,
        ):
            instances = live.app.remotes.instances
            await until(lambda: any(one.state.name == "ACTIVE" for one in instances.by_id.values()))
            yield Shared(live, callers), plugin
    else:
        async with (
            guarded(file, **settings) as live,
            worker(live, *types, behave=behave, credit=slots, metadata=offering) as plugin,
        ):
            yield Shared(live, callers), plugin


@pytest.mark.parametrize(
    ("way", "slots", "limit"),
    [("listens", 100, 4), ("listens", 4, 64), ("connects", 100, 4), ("connects", 4, 64)],
)
async def test_one_principal_takes_neither_all_tasks_nor_the_whole_queue(
    way: str, slots: int, limit: int, tmp_path: Path
) -> None:
    held = Held()
    async with shared(tmp_path, way, slots, held.behave, remote_max_inflight=limit) as (plugin, _):
        greedy = plugin.begin("greedy", 10)
        await until(lambda: (sum(call.done() for call in greedy), len(held.tasks)) == (4, 3), 60)
        assert plugin.queued() == 3
        others = plugin.begin("other", 2)
        await until(lambda: (len(held.tasks), plugin.queued()) == (4, 4), 60)
        assert held.tasks == ["greedy"] * 3 + ["other"]
        held.released.set()
        assert await asyncio.gather(*others) == ["", ""]
        assert Counter(await asyncio.gather(*greedy)) == {"": 6, "EVALUATOR_BUSY": 4}


async def test_one_principal_does_not_take_a_plugin_s_slots_by_several_of_its_types(tmp_path: Path) -> None:
    held = Held()
    async with shared(tmp_path, "listens", 4, held.behave, "acme.one", "acme.two") as (plugin, _):
        greedy = [call for name in ("acme.one", "acme.two") for call in plugin.begin("greedy", 3, name)]
        await until(lambda: (len(held.tasks), plugin.queued()) == (3, 3), 60)
        others = plugin.begin("other", 1, "acme.two")
        await until(lambda: held.tasks == ["greedy"] * 3 + ["other"], 60)
        held.released.set()
        assert await asyncio.gather(*greedy, *others) == [""] * 7


async def test_waiting_calls_take_turns_by_principal(tmp_path: Path) -> None:
    held = Held()
    async with shared(tmp_path, "connects", 1, held.behave, remote_max_queued=8) as (plugin, _):
        calls = plugin.begin("greedy", 4)
        await until(lambda: (len(held.tasks), plugin.queued()) == (1, 3), 60)
        calls += plugin.begin("other", 2)
        await until(lambda: plugin.queued() == 5, 60)
        held.released.set()
        assert set(await asyncio.gather(*calls)) == {""}
        assert held.tasks == ["greedy", "greedy", "other", "greedy", "other", "greedy"]


async def test_tasks_that_go_on_after_their_deadline_keep_their_principal_s_slots(tmp_path: Path) -> None:
    finish = asyncio.Event()

    async def stubborn(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        while task.context.messages[-1].text == "greedy" and not finish.is_set():
            with suppress(asyncio.CancelledError):
                await finish.wait()
        return PASSED

    async with shared(tmp_path, "connects", 4, stubborn) as (plugin, worker_of_four):

        async def late() -> None:
            # Too short to say anything about the worker.
            assert "" not in await asyncio.gather(*plugin.begin("greedy", 4, timeout={"nanos": 90_000_000}))

        try:
            async with asyncio.timeout(60):
                while len(worker_of_four.tasks) < 3:
                    await late()
                await late()
                assert await asyncio.gather(*plugin.begin("other", 1)) == [""]
            assert len(worker_of_four.tasks) == 4
        finally:
            finish.set()


async def test_late_tasks_of_one_principal_open_the_circuit_for_this_one_only(tmp_path: Path) -> None:
    hangs_for_all = False

    async def behave(task: task_pb2.EvaluationTask) -> task_pb2.EvaluationOutput:
        if hangs_for_all or task.context.messages[-1].text == "greedy":
            await asyncio.Event().wait()
        return PASSED

    brief = {"timeout": {"nanos": 500_000_000}}
    async with shared(tmp_path, "listens", 20, behave) as (plugin, _):

        async def codes(principal: str, count: int, **fields: Any) -> list[str]:
            return [await plugin.begin(principal, 1, **fields)[0] for _ in range(count)]

        assert await codes("greedy", 5, **brief) == ["TIMEOUT"] * 5
        assert "REMOTE_CIRCUIT_OPEN" in await codes("greedy", 3, **brief)
        assert await codes("other", 5) == [""] * 5
        hangs_for_all = True
        late = await codes("other", 20, timeout={"seconds": 1})
        assert set(late) == {"TIMEOUT", "REMOTE_CIRCUIT_OPEN"}
