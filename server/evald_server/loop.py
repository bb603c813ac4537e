"""The event loop: uvloop where it is installed, else asyncio's; and work that must not block it."""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Parsing and converting 16 KiB takes up to 5 ms.
_INLINE_BYTES: Final = 16 << 10


async def in_thread_if_large(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work whose time grows with the size of its data, in a thread if it would block the event loop.

    size: bytes of the data.
    """
    if size <= _INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def event_loop() -> asyncio.Runner:
    """Return a runner on the fastest event loop that is installed."""
    return asyncio.Runner(loop_factory=_fastest_loop())


def _fastest_loop() -> type[asyncio.AbstractEventLoop]:
    found: type[asyncio.AbstractEventLoop]
    try:
        import uvloop
    except ImportError:
        # On Windows the proactor loop. It has no add_reader, which gRPC does not need.
        found = getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)
    else:
        found = uvloop.Loop
    return found
