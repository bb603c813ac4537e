"""System calls that Python has no function for. Loaded by child processes, so it imports next to nothing."""

import ctypes
import os
import signal
import sys

TYPE_CHECKING = False  # typing takes as long to import as Python to start
if TYPE_CHECKING:
    from typing import Final


_PR_SET_PDEATHSIG: "Final" = 1
_PR_SET_CHILD_SUBREAPER: "Final" = 36
_PR_SET_NO_NEW_PRIVS: "Final" = 38

_libc: "Final" = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """The system call of that number. Raises OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: object) -> None:
    """Change how the kernel treats this process, as the manual of prctl says. Raises OSError."""
    _checked(_libc.prctl(option, *arguments))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of the machine's init."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this signal when the parent ends."""
    prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def end_with_parent() -> None:
    """Have this process killed when its parent ends, even in the middle of work and however the parent ends.

    Only Linux can do that. Elsewhere nothing happens, and the process finds the end of its input when it reads on.
    """
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)


def forgo_privileges() -> None:
    """No program that is run from here on gets more rights than this process has, set-user-ID or not."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer
