"""Memory and the interpreter's lock, in processes that answer calls."""

import ctypes
import gc
import sys
from typing import Final

# Names and numbers of malloc.h of the GNU C library.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_KEPT_BYTES: Final = 16 << 20
_LARGE_BYTES: Final = 4 << 20

# Seconds after which a thread that computes gives the interpreter to one that waits. At Python's 5 ms a small
# call beside two such threads waits half a second, because it needs the interpreter again and again; at 1 ms a
# tenth of that.
_SWITCH_SECONDS: Final = 0.001


def prepare_for_calls() -> None:
    """For a process that has loaded what it needs and is about to answer calls."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    _spare_the_collector()
    _keep_what_is_freed()


def _spare_the_collector() -> None:
    """What is loaded by now stays: looking through it for garbage again and again would stop every call
    for milliseconds. Calls leave next to no cycles behind, so that it need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _keep_what_is_freed() -> None:
    """Of memory that is freed, the allocator keeps up to 16 MiB for the next call.

    By itself the GNU C library gives most of it back to the kernel, which has to find and clear it again
    for the next call: 12 times for a conversation of 1,000 messages, a quarter of what that call takes.
    Blocks of 4 MiB and more are given back as ever. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError, OSError):
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
