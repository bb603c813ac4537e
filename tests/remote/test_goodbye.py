"""A type whose last instance went on purpose leaves after its lease, and its alert ends; one that was lost stays."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

import evald
from evald.plugin.v1 import registry_service_pb2 as pb
from evald_server.config import Settings
from evald_server.engine.registry import Registry, State
from evald_server.remote.instance import Instance, InstanceState, Mode
from evald_server.remote.instances import InstanceRegistry
from evald_server.remote.plugin_type import read_plugin

from ..rpc.live import Live, refusal, request, serving, spec, until
from ..worker.evaluators import polite
from .scripted import WORD, Worker, listening, plugin_info, register, worker

LEASE = 30.0
POLITE = spec("acme.polite")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Fake(Instance):
    """An instance that is there."""

    mode = Mode.CONNECTED

    def __init__(self, name: str, changed: Callable[[Instance], None], *types: str) -> None:
        super().__init__(name, name, read_plugin(plugin_info(*types)), changed)
        self.state = InstanceState.ACTIVE


class Known:
    """A registry with a clock of its own, and the catalogue that it keeps."""

    def __init__(self) -> None:
        self.clock, self.catalogue = Clock(), Registry()
        self.registry = InstanceRegistry(
            self.catalogue, Settings(remote_lease_seconds=LEASE), lambda _: Tally(), self.clock
        )

    def add(self, name: str, *types: str) -> Fake:
        instance = Fake(name, self.registry.changed, *types)
        self.registry.add(instance)
        return instance

    def remove(self, instance: Fake, *, goodbye: bool) -> None:
        self.registry.remove(instance)
        if goodbye:
            self.registry.remove_types_after(instance, LEASE)

    def after(self, seconds: float) -> dict[str, State]:
        """The types that are listed so much later."""
        self.clock.now += seconds
        self.registry.remove_due_types()
        return {entry.definition.type: entry.state for entry in self.catalogue.types()}

    @property
    def series(self) -> set[str]:
        return {evaluator for evaluator, _, _ in self.registry.counts()}


class Tally:
    def observe(self, seconds: float) -> None: ...


def test_the_type_is_unavailable_for_its_lease_and_then_leaves_with_its_series() -> None:
    known = Known()
    known.remove(known.add("a", "acme.word"), goodbye=True)
    assert known.after(LEASE - 0.1) == {"acme.word": State.UNAVAILABLE}
    assert known.series == {"acme.word"}
    assert known.after(0.1) == {}
    assert known.series == set()


def test_one_that_was_lost_stays_for_the_alert() -> None:
    known = Known()
    known.remove(known.add("a", "acme.word"), goodbye=False)
    assert known.after(100 * LEASE) == {"acme.word": State.UNAVAILABLE}
    assert known.registry.counts() == {("acme.word", "connected", "active"): 0}


def test_a_goodbye_counts_only_when_it_is_the_last() -> None:
    known = Known()
    first, second = known.add("a", "acme.word"), known.add("b", "acme.word")
    known.remove(first, goodbye=True)
    assert known.after(2 * LEASE) == {"acme.word": State.ACTIVE}
    known.remove(second, goodbye=False)
    assert known.after(2 * LEASE) == {"acme.word": State.UNAVAILABLE}


def test_one_that_comes_back_in_time_stays_and_later_is_as_new() -> None:
    known = Known()
    known.remove(known.add("a", "acme.word", "acme.more"), goodbye=True)
    known.after(LEASE / 2)
    back = known.add("b", "acme.word")
    assert known.after(LEASE) == {"acme.word": State.ACTIVE}
    kept = known.registry.pools["acme.word", "1.0.0"]
    known.remove(back, goodbye=True)
    assert known.after(LEASE) == {}
    known.add("c", "acme.word")
    # Plans that have it from before go on.
    assert known.registry.pools["acme.word", "1.0.0"] is kept
    assert known.after(0) == {"acme.word": State.ACTIVE}


async def _half_close(remote: Worker) -> None:
    await remote.finish()


async def _drain(remote: Worker) -> None:
    await remote.send(draining=pb.WorkerDraining(reason="done"))
    await remote.finish()


async def _break(remote: Worker) -> None:
    remote.kill()


async def _stays(live: Live, name: str) -> bool:
    with suppress(TimeoutError):
        await until(lambda: live.app.registry.get(name) is None, 1.5)
    return live.app.registry.get(name) is not None


@pytest.mark.parametrize(
    ("leave", "stays"),
    [(_half_close, False), (_drain, False), (_break, True)],
    ids=["half-close", "drain", "break"],
)
async def test_a_worker_that_leaves_in_order_takes_its_type_along(leave: Any, stays: bool) -> None:
    async with serving(remote_lease_seconds=0.3) as live, worker(live, "acme.word") as remote:
        assert (await live.unary(request(WORD))).summary.success
        await leave(remote)
        await until(lambda: not live.app.remotes.instances.by_id)
        if stays:
            assert await _stays(live, "acme.word")
        else:
            await until(lambda: live.app.registry.get("acme.word") is None)
            refused = await refusal(live.unary(request(WORD)))
            assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TYPE")


async def test_a_worker_of_the_sdk_and_a_plugin_that_deregisters_leave_in_order() -> None:
    async with serving(remote_lease_seconds=0.3, remote_allowed=["127.0.0.1"]) as live:
        async with evald.DiallingWorker(polite, server=live.app.address) as sdk:
            await sdk.connected()
            assert live.app.registry.get("acme.polite")
        async with listening("acme.word") as plugin:
            granted = await register(live, plugin)
            assert live.app.registry.get("acme.word")
            request = pb.DeregisterRequest(lease_id=granted.lease_id, drain=True)
            await live.raw("/evald.plugin.v1.RegistryService/Deregister", request.SerializeToString())
        await until(lambda: not live.app.registry.get("acme.polite"), 20)
        await until(lambda: not live.app.registry.get("acme.word"), 20)
