"""Leases: how long a listening plugin is believed to be there without a word from it."""

import heapq
import secrets
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final


class LeaseState(IntEnum):
    """Equal to the wire's LeaseState."""

    ACTIVE = 1
    EXPIRED = 2
    REVOKED = 3


# Ids of revoked leases that are remembered, so that their plugins are told not to come back.
_MOST_REVOKED: Final = 10_000


class Lease:
    """One lease. `expires`: on the clock of its Leases."""

    __slots__ = ("expires", "id", "instance_id", "ttl")

    def __init__(self, id: str, instance_id: str, ttl: float, expires: float) -> None:  # noqa: A002 - as it is
        self.id = id
        self.instance_id = instance_id
        self.ttl = ttl
        self.expires = expires


class Leases:
    """All leases. One that is over never lives again: whoever renews it is told to register anew.

    | state | renew | time runs out | end | revoke |
    |---|---|---|---|---|
    | active | active, for a whole ttl | expired | expired | revoked |
    | expired, or never known | expired | | expired | |
    | revoked | revoked | | revoked | revoked |
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._live: dict[str, Lease] = {}
        self._due: list[tuple[float, str]] = []
        self._revoked: dict[str, None] = {}

    def grant(self, instance_id: str, ttl: float, id: str = "") -> Lease:  # noqa: A002 - as it is
        """A new lease; id: that of a restored one."""
        lease = Lease(id or secrets.token_hex(16), instance_id, ttl, self._clock() + ttl)
        self._live[lease.id] = lease
        heapq.heappush(self._due, (lease.expires, lease.id))
        return lease

    def renew(self, lease_id: str) -> tuple[LeaseState, Lease | None]:
        """The state after a renewal, and the lease when it is active."""
        lease = self._live.get(lease_id)
        if lease is None or lease.expires <= self._clock():
            return (LeaseState.REVOKED if lease_id in self._revoked else LeaseState.EXPIRED), None
        lease.expires = self._clock() + lease.ttl
        return LeaseState.ACTIVE, lease

    def end(self, lease_id: str) -> Lease | None:
        """End a lease at once. None when it was over already."""
        return self._live.pop(lease_id, None)

    def revoke(self, lease_id: str) -> Lease | None:
        """End a lease, and tell its plugin not to come back. None when it was over already."""
        self._revoked[lease_id] = None
        while len(self._revoked) > _MOST_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        return self._live.pop(lease_id, None)

    def expire(self) -> list[Lease]:
        """Take out the leases whose time has run out."""
        now = self._clock()
        over: list[Lease] = []
        # A renewal leaves its old time in the heap: pushing anew once a ttl is enough.
        while self._due and self._due[0][0] <= now:
            _, lease_id = heapq.heappop(self._due)
            lease = self._live.get(lease_id)
            if lease is None:
                continue
            if lease.expires > now:
                heapq.heappush(self._due, (lease.expires, lease_id))
            else:
                over.append(self._live.pop(lease_id))
        return over

    def left(self, lease: Lease) -> float:
        """Seconds until it runs out; 0 when it is over."""
        return max(0.0, lease.expires - self._clock())
