"""Leases of listening plugins: granted, renewed, expired, revoked."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class LeaseState(IntEnum):
    """State of a lease. Equal to LeaseState of the contract."""

    ACTIVE = 1
    EXPIRED = 2
    REVOKED = 3


# Number of revoked ids to remember, so that their plugins get the state revoked and do not register again.
_MAX_REVOKED: Final = 10_000


@dataclass(slots=True, eq=False)
class Lease:
    """A lease. ttl: in seconds. expires: time on the clock of its Leases."""

    id: str
    instance_id: str
    ttl: float
    expires: float


class Leases:
    """All leases by id. A lease that has ended never becomes active again; its plugin must register again.

    | state | renew | timeout | end | revoke |
    |---|---|---|---|---|
    | active | active, for a whole ttl | expired | expired | revoked |
    | expired, or never known | expired | | expired | |
    | revoked | revoked | | revoked | revoked |
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._live: dict[str, Lease] = {}
        self._revoked: dict[str, None] = {}

    def grant(self, instance_id: str, ttl: float, id: str = "") -> Lease:  # noqa: A002 - the word of the contract
        """Grant a lease. id: id of a restored lease; "" for a new id."""
        lease = Lease(id or secrets.token_hex(16), instance_id, ttl, self._clock() + ttl)
        self._live[lease.id] = lease
        return lease

    def instance_id(self, lease_id: str) -> str:
        """Return the id of a lease's instance; "" if the lease has ended."""
        lease = self._live.get(lease_id)
        return lease.instance_id if lease else ""

    def renew(self, lease_id: str) -> tuple[LeaseState, Lease | None]:
        """Renew a lease. Returns its state, and the lease if it is active."""
        lease = self._live.get(lease_id)
        if lease is None or lease.expires <= self._clock():
            return (LeaseState.REVOKED if lease_id in self._revoked else LeaseState.EXPIRED), None
        lease.expires = self._clock() + lease.ttl
        return LeaseState.ACTIVE, lease

    def end(self, lease_id: str) -> Lease | None:
        """End a lease. Returns None if it had ended already."""
        return self._live.pop(lease_id, None)

    def revoke(self, lease_id: str) -> Lease | None:
        """End a lease and remember its id as revoked. Returns None if it had ended already."""
        self._revoked[lease_id] = None
        while len(self._revoked) > _MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        return self._live.pop(lease_id, None)

    def expire(self) -> list[Lease]:
        """Remove and return the expired leases."""
        now = self._clock()
        over = [lease for lease in self._live.values() if lease.expires <= now]
        for lease in over:
            del self._live[lease.id]
        return over

    def left(self, lease: Lease) -> float:
        """Return the seconds until a lease expires; 0 if it has expired."""
        return max(0.0, lease.expires - self._clock())
