"""System calls without a function in Python. Imports little, because child processes load this module."""

import ctypes
import os
import signal
import sys

TYPE_CHECKING = False  # importing typing takes as long as starting Python
if TYPE_CHECKING:
    from typing import Final


_PR_SET_PDEATHSIG: "Final" = 1
_PR_SET_CHILD_SUBREAPER: "Final" = 36
_PR_SET_NO_NEW_PRIVS: "Final" = 38

_libc: "Final" = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *arguments: object) -> None:
    """Set an attribute of this process. Raises OSError."""
    if _libc.prctl(option, *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the parent ends (PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when the parent exits or crashes.

    Linux only. Elsewhere the process exits when it next reads its input, which has ended.
    """
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)


def forgo_privileges() -> None:
    """Keep programs from gaining privileges by set-user-ID (PR_SET_NO_NEW_PRIVS)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
