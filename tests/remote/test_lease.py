"""The state machine of leases, on a clock of the test's own."""

from collections.abc import Callable

import pytest

from evald_server.remote.lease import Lease, Leases, LeaseState

ACTIVE, EXPIRED, REVOKED = LeaseState.ACTIVE, LeaseState.EXPIRED, LeaseState.REVOKED


class World:
    """Leases with one of them, and time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.leases = Leases(lambda: self.now)
        self.lease = self.leases.grant("instance", 10.0)
        self.over: list[Lease] = []

    def nothing(self) -> None:
        """Nothing happens."""

    def renew(self) -> None:
        self.leases.renew(self.lease.id)

    def wait(self) -> None:
        """Its whole time passes."""
        self.now += 10.0
        self.over += self.leases.expire()

    def wait_unseen(self) -> None:
        """Its time passes, and nobody has looked yet."""
        self.now += 10.0

    def half(self) -> None:
        self.now += 5.0
        self.over += self.leases.expire()

    def end(self) -> None:
        self.leases.end(self.lease.id)

    def revoke(self) -> None:
        self.leases.revoke(self.lease.id)


def test_every_lease_has_an_id_of_its_own_unless_it_is_restored() -> None:
    leases = Leases()
    assert len({leases.grant("instance", 10.0).id for _ in range(3)} - {""}) == 3
    assert leases.grant("instance", 10.0, "stored").id == "stored"


def test_a_lease_leads_to_its_instance_until_it_ends() -> None:
    world = World()
    leases, lease = world.leases, world.lease
    assert leases.instance_id(lease.id) == "instance"
    world.half()
    assert leases.left(lease) == 5.0
    world.wait_unseen()
    assert leases.left(lease) == 0.0
    leases.end(lease.id)
    assert leases.instance_id(lease.id) == leases.instance_id("unknown") == ""


def test_revoked_ids_are_remembered_but_not_without_end() -> None:
    leases = Leases()
    for number in range(20_000):
        leases.revoke(str(number))
    states = [leases.renew(str(number))[0] for number in (0, 10_001, 19_999)]
    assert states == [EXPIRED, REVOKED, REVOKED]


W = World


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ([W.nothing], ACTIVE),
        ([W.renew], ACTIVE),
        ([W.half, W.renew, W.half, W.renew, W.half], ACTIVE),
        ([W.half, W.half], EXPIRED),
        ([W.wait], EXPIRED),
        ([W.wait_unseen], EXPIRED),
        ([W.wait, W.renew], EXPIRED),
        ([W.wait_unseen, W.renew, W.renew], EXPIRED),
        ([W.wait, W.end], EXPIRED),
        ([W.end], EXPIRED),
        ([W.end, W.renew], EXPIRED),
        ([W.revoke], REVOKED),
        ([W.revoke, W.renew], REVOKED),
        ([W.revoke, W.wait], REVOKED),
        ([W.revoke, W.end], REVOKED),
        ([W.end, W.revoke], REVOKED),
        ([W.wait, W.revoke], REVOKED),
    ],
    ids=lambda value: "-".join(step.__name__ for step in value) if isinstance(value, list) else value.name,
)
def test_a_renewal_tells_the_state_and_wakes_no_dead_lease(
    steps: list[Callable[[World], None]], state: LeaseState
) -> None:
    world = World()
    for step in steps:
        step(world)
    found, lease = world.leases.renew(world.lease.id)
    assert found is state
    assert (lease is world.lease) == (state is ACTIVE)


def test_an_expired_lease_is_told_once() -> None:
    world = World()
    world.half()
    world.renew()
    world.half()
    assert not world.over
    world.half()
    assert world.over == [world.lease]
    world.wait()
    assert world.over == [world.lease]


def test_an_id_that_was_never_granted_is_expired() -> None:
    assert Leases().renew("?") == (EXPIRED, None)
