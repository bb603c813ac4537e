"""Limits of remote evaluators: sizes, counts and times."""

from typing import NamedTuple


class RemoteLimits(NamedTuple):
    """Limits: sizes in bytes, times in seconds.

    inflight, queued, queue_seconds: per evaluator type: most concurrent tasks, most calls that wait for
    an instance, longest wait. instances, types: per server.
    task_bytes: largest task that is sent. gRPC's default limit is 4 MiB, and most plugins keep it.
    output_bytes: largest output that is accepted.
    lease_seconds: default lease time; min and max bound the time that a plugin may ask for.
    health_seconds: interval and timeout of the health checks of listening plugins.
    ping_seconds, ping_timeout: of worker sessions.
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
