"""A type that was offered stays, unavailable, until it is forgotten; only another version takes its place."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import evald
from evald.plugin.v1 import registry_service_pb2 as pb
from evald_server.config import Settings
from evald_server.engine.registry import Registry, State
from evald_server.remote.instance import Instance, InstanceState, Mode
from evald_server.remote.instances import InstanceRegistry
from evald_server.remote.plugin_type import Key, read_plugin
from evald_server.store.remote_types import StoredType

from ..rpc.live import Live, request, serving, until
from ..worker.evaluators import polite
from .scripted import WORD, Worker, evaluator_type, hangs, listening, plugin_info, register, worker

LEASE = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake(Instance):
    """An instance that is there."""

    mode = Mode.CONNECTED

    def __init__(self, name: str, changed: Callable[[Instance], None], *types: Any) -> None:
        super().__init__(name, name, read_plugin(plugin_info(*types)), changed)
        self.state = InstanceState.ACTIVE


class Known:
    """A registry with a clock of its own, and the catalogue that it keeps."""

    def __init__(self) -> None:
        self.clock, self.catalogue = Clock(), Registry()
        self.registry = InstanceRegistry(
            self.catalogue, Settings(remote_lease_seconds=LEASE), lambda _: Tally(), Memory(), self.clock
        )

    def add(self, name: str, *types: Any) -> Fake:
        instance = Fake(name, self.registry.changed, *types)
        self.registry.add(instance)
        return instance

    def remove(self, instance: Fake, *, goodbye: bool) -> None:
        self.registry.remove(instance, lost="" if goodbye else "its stream broke")
        if goodbye:
            self.registry.supersede_after(instance, LEASE)

    def after(self, seconds: float) -> dict[str, State]:
        """The versions that are listed so much later, with their type's name."""
        self.clock.now += seconds
        self.registry.remove_superseded()
        return {
            f"{entry.definition.type} {entry.definition.version}": entry.state
            for entry in self.catalogue.types()
        }

    @property
    def series(self) -> set[str]:
        return {evaluator for evaluator, _, _ in self.registry.counts()}


class Memory:
    def remember(self, stored: StoredType) -> None: ...

    def drop(self, key: Key) -> None: ...


class Tally:
    def observe(self, seconds: float) -> None: ...


def _version(version: str) -> Any:
    offered = evaluator_type("acme.word")
    offered.version = version
    return offered


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_type_that_nobody_offers_stays_listed_with_its_series(goodbye: bool) -> None:
    known = Known()
    known.remove(known.add("a", "acme.word"), goodbye=goodbye)
    assert known.after(100 * LEASE) == {"acme.word 1.0.0": State.UNAVAILABLE}
    assert known.registry.counts() == {("acme.word", "connected", "active"): 0}


def test_a_version_that_left_in_order_leaves_the_catalogue_once_another_one_is_offered() -> None:
    known = Known()
    known.remove(known.add("a", _version("1")), goodbye=True)
    assert known.after(2 * LEASE) == {"acme.word 1": State.UNAVAILABLE}
    known.add("b", _version("2"))
    assert known.after(0) == {"acme.word 2": State.ACTIVE}


def test_a_version_that_was_lost_stays_beside_another_one() -> None:
    known = Known()
    known.remove(known.add("a", _version("1")), goodbye=False)
    known.add("b", _version("2"))
    assert known.after(2 * LEASE) == {"acme.word 1": State.UNAVAILABLE, "acme.word 2": State.ACTIVE}


def test_a_version_that_comes_back_in_time_stays_and_later_is_as_new() -> None:
    known = Known()
    known.add("new", _version("2"))
    known.remove(known.add("a", _version("1")), goodbye=True)
    known.after(LEASE / 2)
    back = known.add("b", _version("1"))
    assert known.after(LEASE) == {"acme.word 1": State.ACTIVE, "acme.word 2": State.ACTIVE}
    kept = known.registry.pools["acme.word", "1"]
    known.remove(back, goodbye=True)
    assert known.after(LEASE) == {"acme.word 2": State.ACTIVE}
    known.add("c", _version("1"))
    # Plans that have it from before go on.
    assert known.registry.pools["acme.word", "1"] is kept


@pytest.mark.parametrize(
    ("lost", "back", "left"),
    [
        (["a"], ("a", "acme.word"), []),
        (["a"], ("z", "acme.word"), []),
        (["a"], ("z", "acme.more"), ["a"]),
        (["a", "b"], ("z", "acme.word"), ["b"]),
        (["a", "b"], ("b", "acme.word"), ["a"]),
    ],
)
def test_an_instance_takes_the_place_of_one_lost_instance_with_its_types(
    lost: list[str], back: tuple[str, str], left: list[str]
) -> None:
    known = Known()
    for instance in [known.add(name, "acme.word") for name in lost]:
        known.remove(instance, goodbye=False)
    known.add(*back)
    assert list(known.registry.lost) == left


async def _half_close(remote: Worker) -> None:
    await remote.finish()


async def _drain(remote: Worker) -> None:
    await remote.send(draining=pb.WorkerDraining(reason="done"))
    await remote.finish()


async def _break(remote: Worker) -> None:
    remote.kill()


async def _registrations(live: Live) -> pb.ListRegistrationsResponse:
    data = await live.raw("/evald.plugin.v1.RegistryService/ListRegistrations", b"")
    return pb.ListRegistrationsResponse.FromString(data)


@pytest.mark.parametrize(
    ("leave", "is_lost"),
    [(_half_close, True), (_drain, False), (_break, True)],
    ids=["half-close", "drain", "break"],
)
async def test_a_worker_that_goes_without_a_word_is_lost_in_the_list_and_in_the_log(
    leave: Any, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "evald.remote"):
        async with serving() as live, worker(live, "acme.word") as remote:
            await leave(remote)
            await until(lambda: "disconnected" in caplog.text)
            (line,) = [record for record in caplog.records if "disconnected" in record.getMessage()]
            assert line.levelno == (logging.WARNING if is_lost else logging.INFO)
            listed = await _registrations(live)
            assert not listed.registrations
            assert [one.instance_id for one in listed.lost] == ["worker-1"] * is_lost
            assert [one.evaluator_type.type for one in listed.unoffered_types] == ["acme.word"]
            (result,) = (await live.unary(request(WORD))).summary.results
            assert result.error.code == "REMOTE_UNAVAILABLE"


async def test_a_lost_worker_is_listed_with_its_open_tasks_and_the_reason() -> None:
    async with serving() as live, worker(live, "acme.word", behave=hangs) as remote:
        calls = [asyncio.create_task(live.unary(request(WORD))) for _ in range(3)]
        await until(lambda: len(remote.tasks) == 3)
        remote.kill()
        await asyncio.gather(*calls)
        (lost,) = (await _registrations(live)).lost
        assert (lost.state, lost.active_tasks) == (pb.Registration.STATE_LOST, 3)
        assert lost.last_error
        assert lost.lost_time.seconds


async def test_a_worker_of_the_sdk_and_a_plugin_that_deregisters_leave_in_order() -> None:
    async with serving(remote_lease_seconds=0.3, remote_allowed=["127.0.0.1"]) as live:
        async with evald.DiallingWorker(polite, server=live.app.address) as sdk:
            await sdk.connected()
        async with listening("acme.word") as plugin:
            granted = await register(live, plugin)
            request = pb.DeregisterRequest(lease_id=granted.lease_id, drain=True)
            await live.raw("/evald.plugin.v1.RegistryService/Deregister", request.SerializeToString())
        await until(lambda: not live.app.remotes.instances.by_id)
        listed = await _registrations(live)
        assert not listed.lost
        assert {one.evaluator_type.type for one in listed.unoffered_types} == {"acme.polite", "acme.word"}
