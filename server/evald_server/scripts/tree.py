"""Ends a process's descendants, all of them, whatever they do against it."""

import os
import signal
import time
from contextlib import suppress

# Each pass stops what the one before it let start. Stopped processes count against the limit of
# processes, so that a fork bomb runs dry after a few.
_MOST_PASSES = 100


def descendants(root: int) -> set[int]:
    """Ids of all processes below this one that still run."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name, in parentheses, may hold anything, parentheses too.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    found: set[int] = set()
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return found


def end() -> None:
    """Kill every descendant of this process, and reap it. `kernel.adopt_orphans` must have been called."""
    me, pause = os.getpid(), 0.001
    while reap() is not None:
        known: set[int] = set()
        for _ in range(_MOST_PASSES):
            new = descendants(me) - known
            if not new:
                break
            known |= new
            _signal(new, signal.SIGSTOP)
        _signal(known, signal.SIGKILL)
        time.sleep(pause)
        # What sleeps in the kernel (a network file system that hangs) ends when it wakes up.
        pause = min(2 * pause, 0.1)


def reap() -> dict[int, int] | None:
    """The children that have ended, with their wait status; None when there are no children left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended or None
        if not pid:
            return ended
        ended[pid] = status


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
