"""File descriptors of this process: how many there may be, and who may have how many of them.

A connection takes one. When there are none left, nobody can connect any more, not even those who look
whether the server lives. So connections get a share, and the rest is left to everything else.
"""

from typing import Final

# Each connection takes memory as well, about 50 KB.
_MOST_GRPC: Final = 10_000
_MOST_HTTP: Final = 64

# Where there is no limit, as far as can be known.
_MANY: Final = 1 << 20


def raise_limit() -> None:
    """Allow this process as many as it may allow itself. Many systems begin with 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS says "unlimited" and means less
        return


def limit() -> int:
    """How many this process may have."""
    try:
        import resource
    except ImportError:
        return _MANY
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else soft


def grpc_connections() -> int:
    """Half of them, at most 10,000."""
    return min(_MOST_GRPC, limit() // 2)


def http_connections() -> int:
    """An eighth of them, at most 64: probes and scrapes are short."""
    return min(_MOST_HTTP, max(1, limit() // 8))
