"""The event loop of commands: the fastest one that is installed, and for a server one that is woken less often.

A thread of gRPC's sends the loop a byte for each thing that has happened, and the loop, woken by the first
byte, hands out everything that has happened so far, but takes just that byte. So a busy server is woken
again and again for nothing: seven times in eight with 16 sessions, which is 5 % of all it does.
Source: src/python/grpcio/grpc/_cython/_cygrpc/aio/completion_queue.pyx.pxi of grpc/grpc.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Any, Final

# More than the kernel keeps before it lets gRPC's thread wait, which is 278 on Linux.
_ALL: Final = 4096

# To look for bytes and to take them costs as much as being woken for nothing a few times.
_FEW: Final = 6

# After a look that found few, so many bytes are taken without one: where one call is made at a time there
# is nothing to find.
_UNSEEN: Final = 8


def event_loop(*, only: bool = False) -> asyncio.Runner:
    """A runner on such a loop.

    only: gRPC is used in no other loop of the process, for all loops share the bytes. Who is not alone with
    them cannot take several without perhaps taking one too many, whose event would wait for the next one.
    """
    loop = _fastest_loop()
    if only:
        loop = type("WokenOnce", (_WokenOnce, loop), {})
    return asyncio.Runner(loop_factory=loop)


def _fastest_loop() -> type[asyncio.AbstractEventLoop]:
    found: type[asyncio.AbstractEventLoop]
    try:
        import uvloop
    except ImportError:
        # On Windows the first, which has no readers: gRPC does without them.
        found = getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)
    else:
        found = uvloop.Loop
    return found


class _WokenOnce:
    """What is added to a loop. A gRPC that wakes in another way is left alone."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        if isinstance(fd, socket.socket) and _is_of_grpc(callback):
            callback = once_for_all(fd, callback)
        super().add_reader(fd, callback, *args)  # type: ignore[misc]


def _is_of_grpc(callback: Callable[..., Any]) -> bool:
    if not isinstance(callback, functools.partial):
        return False
    return type(getattr(callback.func, "__self__", None)).__name__ == "PollerCompletionQueue"


def once_for_all(wakeups: socket.socket, handle: Callable[[], object]) -> Callable[[], None]:
    """A reader that, where there are many, takes all bytes but one and leaves that one to handle.

    wakeups: does not block. handle: takes a byte, and then does everything whose byte was sent before.
    """
    receive = wakeups.recv
    unseen = 0

    def read() -> None:
        nonlocal unseen
        if unseen:
            unseen -= 1
        elif (waiting := len(receive(_ALL, socket.MSG_PEEK))) > _FEW:
            # What they stand for has happened, so that the one that is left will do for it.
            receive(waiting - 1)
        else:
            unseen = _UNSEEN
        handle()

    return read
