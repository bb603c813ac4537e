"""The event loop of commands: uvloop where it is installed, else asyncio's."""

import asyncio


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
