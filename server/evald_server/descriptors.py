"""The limit of file descriptors, and its shares for connections.

Each connection needs a descriptor. Without a limit, connections leave none for health checks and files.
"""

from typing import Final

# A connection also takes about 50 KB of memory.
_MOST_GRPC: Final = 10_000
_MOST_WEB: Final = 256

# Assumed where the system has no limit.
_MANY: Final = 1 << 20


def raise_limit() -> None:
    """Raise the soft limit to the hard one. Many systems start processes with 1,024."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS reports "unlimited" but accepts less
        return


def limit() -> int:
    """Return the soft limit."""
    try:
        import resource
    except ImportError:
        return _MANY
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MANY if soft == resource.RLIM_INFINITY else soft


def grpc_connections() -> int:
    """Return the limit of gRPC connections: half of the descriptors, at most 10,000."""
    return min(_MOST_GRPC, limit() // 2)


def web_connections() -> int:
    """Return the limit of connections of the web port: an eighth of the descriptors, at most 256."""
    return min(_MOST_WEB, max(1, limit() // 8))


def web_streams() -> int:
    """Return the limit of streams of the web port: three quarters of its connections. Pages need the rest."""
    return max(1, web_connections() * 3 // 4)
