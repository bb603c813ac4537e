"""What remote evaluators may take of the server."""

from typing import NamedTuple


class Limits(NamedTuple):
    """Sizes in bytes, times in seconds.

    inflight, queued, queue_seconds: of one evaluator type: most tasks at a time, most calls that wait for
    a place, longest wait. instances, types: of the server.
    task_bytes: largest task that is sent. gRPC's default limit is 4 MiB, and most plugins keep it.
    output_bytes: largest output that is accepted.
    lease_seconds: of a plugin that does not say; min and max: what it may ask for.
    health_seconds: between two health checks of a listening plugin, and how long it may take to answer one.
    ping_seconds, ping_timeout: of sessions.
    """

    inflight: int = 64
    queued: int = 32
    queue_seconds: float = 1.0
    instances: int = 1000
    types: int = 1000
    task_bytes: int = 4_000_000
    output_bytes: int = 1 << 20
    lease_seconds: float = 30.0
    min_lease_seconds: float = 1.0
    max_lease_seconds: float = 300.0
    health_seconds: float = 2.0
    ping_seconds: float = 5.0
    ping_timeout: float = 5.0
