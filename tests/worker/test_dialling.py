"""A worker that dials out takes what it allows, answers pings, and always comes back."""

import asyncio
import random
import threading
import time
from contextlib import AsyncExitStack, suppress

import grpc
import pytest

import evald
from evald.plugin.v1 import registry_service_pb2 as pb
from evald.plugin.v1 import task_pb2
from evald.v1 import result_pb2
from evald.worker import connecting, dialling
from evald.worker.connecting import Backoff

from ..loop import run
from ..ports import free_address
from ..rpc.live import until
from .evaluators import Blocking, Counting, Rude, Sleepy, length, polite, scoped
from .registry import PATIENCE, Registry, registry, take, task


async def test_hello_says_what_the_worker_is() -> None:
    async with (
        registry() as server,
        evald.DiallingWorker(polite, length, server=server.address, max_concurrency=3),
    ):
        hello = (await server.link()).hello
        plugin = hello.plugin
        assert (plugin.name, plugin.version, plugin.max_concurrency) == ("acme.polite", "1.0.0", 3)
        assert list(plugin.contract_versions) == ["evald.plugin.v1"]
        assert plugin.sdk.startswith("python/")
        assert hello.initial_credit == 3
        first, second = plugin.evaluator_types
        assert (first.type, first.version, first.description) == ("acme.polite", "1.0.0", "Says please.")
        assert (second.type, second.metric.unit) == ("acme.length", "characters")


@pytest.mark.parametrize(
    ("evaluator", "can_be_stopped"), [(Sleepy, True), (length, True), (Blocking, False), (polite, False)]
)
async def test_a_worker_claims_to_stop_work_only_where_it_can(
    evaluator: type[evald.Evaluator], can_be_stopped: bool
) -> None:
    async with registry() as server, evald.DiallingWorker(evaluator, server=server.address):
        capabilities = (await server.link()).hello.plugin.capabilities
        assert task_pb2.CAPABILITY_PROGRESS in capabilities
        assert (task_pb2.CAPABILITY_CANCEL in capabilities) is can_be_stopped


async def test_tasks_are_answered_in_any_order_and_unknown_frames_are_skipped() -> None:
    async with registry() as server, evald.DiallingWorker(Sleepy, server=server.address):
        link = await server.link()
        await link.give(task("slow", "acme.sleepy", config={"seconds": 0.2}))
        # To this worker a frame of a later contract looks like one without any case.
        await link.send(ping=None)
        await link.give(task("fast", "acme.sleepy"))
        assert [(await link.take("completed")).task_id for _ in range(2)] == ["fast", "slow"]


async def test_progress_goes_up_while_the_task_runs() -> None:
    async with registry() as server, evald.DiallingWorker(scoped, server=server.address):
        link = await server.link()
        await link.give(task("t", "acme.scoped"))
        kinds = []
        while "completed" not in kinds:
            frame = await take(link.frames)
            kinds.append(frame.WhichOneof("frame"))
            if kinds[-1] == "progress":
                said = frame.progress
                assert (said.task_id, said.message, said.fraction) == ("t", "half way", 0.5)
        # It may be overtaken by the task's end, and is dropped then.
        assert kinds in (["progress", "completed"], ["completed"])


@pytest.mark.parametrize("evaluator", [Blocking, Rude], ids=lambda one: one.type)
async def test_pings_are_answered_while_every_place_is_busy(
    evaluator: type[Blocking], monkeypatch: pytest.MonkeyPatch
) -> None:
    for event in ("begun", "let_go"):
        monkeypatch.setattr(Blocking, event, threading.Event())
    worker = evald.DiallingWorker(evaluator, server="", max_concurrency=2, own_loop=True)
    async with registry() as server:
        worker.server = server.address
        async with worker:
            link = await server.link()
            for name in ("a", "b"):
                await link.give(task(name, evaluator.type, config={"seconds": 30}))
            await until(evaluator.begun.is_set)
            await link.ping()
            evaluator.let_go.set()
            assert {(await link.take("completed")).task_id for _ in range(2)} == {"a", "b"}


async def test_a_cancelled_task_stops_and_gives_its_credit_back() -> None:
    Counting.reset()
    async with registry() as server, evald.DiallingWorker(Counting, server=server.address):
        link = await server.link()
        before = link.credit
        await link.give(task("t", "acme.counting", config={"seconds": 30}))
        await until(lambda: Counting.evaluated)
        await link.send(cancel_task_id="t")
        completed = await link.take("completed")
        assert completed.output.error.code == "CANCELLED"
        assert (Counting.ended, link.credit) == (1, before)


async def test_a_new_session_gets_nothing_of_the_broken_one() -> None:
    Counting.reset()
    async with registry() as server, evald.DiallingWorker(Counting, server=server.address):
        first = await server.link()
        await first.give(task("old", "acme.counting", config={"seconds": 30}))
        await until(lambda: Counting.evaluated)
        await first.break_off()
        second = await server.link()
        await until(lambda: Counting.ended)
        assert second.hello.instance_id == first.hello.instance_id
        assert second.hello.initial_credit == first.hello.initial_credit
        await second.give(task("new", "acme.counting"))
        assert (await second.take("completed")).task_id == "new"


async def test_a_server_that_stops_gets_its_outputs_and_is_left_alone_for_as_long_as_it_says() -> None:
    async with registry() as server, evald.DiallingWorker(Sleepy, server=server.address):
        link = await server.link()
        await link.give(task("t", "acme.sleepy", config={"seconds": 0.2}))
        draining = pb.ServerDraining(reason="update")
        draining.reconnect_delay.FromMilliseconds(400)
        draining.grace_period.FromMilliseconds(60_000)
        began = time.monotonic()
        await link.send(draining=draining)
        assert (await link.take("completed")).output.verdict == result_pb2.VERDICT_PASSED
        async with asyncio.timeout(PATIENCE):
            await link.ended.wait()
        await server.link()
        assert time.monotonic() - began >= 0.4


async def test_stopping_finishes_open_tasks_and_says_so_first() -> None:
    Counting.reset()
    async with registry() as server:
        async with evald.DiallingWorker(Counting, server=server.address):
            link = await server.link()
            await link.give(task("t", "acme.counting", config={"held": True}))
            await until(lambda: Counting.evaluated)
            # While it is being stopped, which takes until then.
            asyncio.get_running_loop().call_later(0.1, Counting.let_go.set)
        assert (await link.take("draining")).reason
        assert (await link.take("completed")).output.verdict == result_pb2.VERDICT_PASSED


async def test_stopping_waits_no_longer_than_the_grace() -> None:
    Counting.reset()
    async with registry() as server:
        worker = evald.DiallingWorker(Counting, server=server.address, grace_seconds=0.1)
        async with worker:
            link = await server.link()
            await link.give(task("t", "acme.counting", config={"seconds": 30}))
            await until(lambda: Counting.evaluated)
            began = time.monotonic()
        assert time.monotonic() - began < 20
        await until(lambda: Counting.ended)


async def test_stopping_waits_for_no_server_that_has_gone() -> None:
    server = Registry()
    await server.start()
    async with evald.DiallingWorker(polite, server=server.address, grace_seconds=30) as worker:
        await worker.connected()
        # The worker stops in the moment in which it finds out.
        await server.stop()
        began = time.monotonic()
    assert time.monotonic() - began < 20


async def test_a_server_that_ends_every_session_at_once_is_not_stormed() -> None:
    async with registry() as server, evald.DiallingWorker(polite, server=server.address):
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.5
        while loop.time() < end:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await (await server.new_link.get()).break_off()
        # Bounds of 0.2, 0.4, 0.8 s and so on; without them it would be hundreds.
        assert 2 <= len(server.hellos) <= 30


async def test_a_silent_server_is_given_up() -> None:
    interval, limit = (task_pb2.EvaluationTask().timeout for _ in range(2))
    interval.FromMilliseconds(50)
    limit.FromMilliseconds(50)
    async with (
        registry(ping_interval=interval, ping_timeout=limit) as server,
        evald.DiallingWorker(polite, server=server.address),
    ):
        await server.link()
        await server.link()


async def test_it_waits_for_a_server_that_is_not_there_yet() -> None:
    async with registry() as gone:
        address = gone.address
    async with evald.DiallingWorker(polite, server=address) as worker:
        await asyncio.sleep(0.3)
        assert worker.server_ids == []
        server = Registry()
        await server.start(address)
        await worker.connected()
        assert worker.server_ids == ["server-1"]
        await server.stop()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, evald.errors.PermissionDenied),
        (grpc.StatusCode.ALREADY_EXISTS, evald.errors.InvalidRequest),
        (grpc.StatusCode.FAILED_PRECONDITION, evald.errors.InvalidRequest),
        (grpc.StatusCode.UNIMPLEMENTED, evald.errors.Unsupported),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_a_refusal_for_good_is_raised(code: grpc.StatusCode, error: type[Exception]) -> None:
    async with registry() as server:
        server.refuse = code
        async with evald.DiallingWorker(polite, server=server.address) as worker:
            with pytest.raises(error):
                await worker.connected()
            with pytest.raises(error):
                await worker.wait()


async def test_after_the_first_session_no_refusal_is_for_good() -> None:
    async with registry() as server, evald.DiallingWorker(polite, server=server.address):
        link = await server.link()
        server.refuse = grpc.StatusCode.PERMISSION_DENIED
        await link.break_off()
        await until(lambda: len(server.hellos) >= 3)
        server.refuse = None
        await server.link()


async def test_every_replica_gets_a_session_and_its_share_of_the_credit() -> None:
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(registry(server_id=f"replica-{n}", server_count=3))
            for n in range(3)
        ]
        target = "ipv4:" + ",".join(server.address for server in servers)
        worker = evald.DiallingWorker(polite, server=target, max_concurrency=7)
        await stack.enter_async_context(worker)
        await until(lambda: len(worker.server_ids) == 3)
        links = [server.links[-1] for server in servers]
        await until(lambda: sorted(link.credit for link in links) == [2, 2, 3])
        # One goes away: the others get its share, and it is looked for again.
        await links[0].break_off()
        await until(lambda: len(servers[0].links) >= 2 and len(worker.server_ids) == 3)
        await until(lambda: sum(server.links[-1].credit for server in servers) == 7)


async def test_an_address_that_cannot_be_reached_is_tried_again_after_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(registry(server_id=f"replica-{n}")) for n in range(2)]
        addresses = [f"ipv4:{free_address()}", *(f"ipv4:{server.address}" for server in servers)]

        async def resolve(_server: str) -> list[str]:
            return addresses

        monkeypatch.setattr(dialling, "resolve_targets", resolve)
        target = "ipv4:" + ",".join(address.removeprefix("ipv4:") for address in addresses)
        worker = await stack.enter_async_context(evald.DiallingWorker(polite, server=target))
        await until(lambda: len(worker.server_ids) == 2)


async def test_a_replica_that_is_met_twice_keeps_the_newest_session() -> None:
    # It says that there are two, but only one can be reached.
    async with (
        registry(server_count=2) as server,
        evald.DiallingWorker(polite, server=server.address) as worker,
    ):
        first, second = await server.link(), await server.link()
        await first.take("draining")
        assert worker.server_ids == ["server-1"]
        await second.take("credit")  # its share is all of it again
        assert (await second.output(task())).verdict == result_pb2.VERDICT_PASSED


def test_delays_grow_to_their_bound_and_are_spread() -> None:
    backoff = Backoff(first=0.2, maximum=3.0, rng=random.Random(1))
    bounds = [0.2, 0.4, 0.8, 1.6, 3.0, 3.0]
    delays = [backoff.next() for _ in bounds]
    assert all(0 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True))
    assert len(set(delays)) == len(delays)
    backoff.reset()
    assert backoff.next() <= 0.2


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [(7, 3, [3, 2, 2]), (4, 1, [4]), (1, 3, [1, 1, 1]), (5, 0, [])],
)
def test_credit_is_divided_evenly(total: int, parts: int, expected: list[int]) -> None:
    assert dialling.shares(total, parts) == expected


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("unix:/run/evald.sock", ["unix:/run/evald.sock"]),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", ["ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"]),
        ("127.0.0.1:50051", ["127.0.0.1:50051"]),
        ("dns:///127.0.0.1:50051", ["dns:///127.0.0.1:50051"]),
        ("no.such.host.invalid:1", ["no.such.host.invalid:1"]),
    ],
)
def test_a_server_is_one_target_or_the_addresses_behind_its_name(server: str, expected: list[str]) -> None:
    assert sorted(run(connecting.resolve_targets(server))) == expected
