"""The data directory, locked by one server at a time. Its lock file also says whether it ever held a database."""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_log = logging.getLogger("evald.server")

LOCK: Final = "server.lock"

# The second line of the lock file, after the process id.
_USED: Final = "used"


class Taken(Exception):
    """Another server has locked the directory. The message names its process, if known, and the remedy."""


class DataDir:
    """A directory that this server has locked.

    The lock is a flock on a file in it, which the kernel releases when the process exits or crashes. The file stays
    and contains the id of the process that held the lock last.

    is_used: whether a server has stored something in the directory before.
    """

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self.is_used = _USED in os.pread(lock, 64, 0).decode("ascii", "replace").split()
        self._write()

    @classmethod
    def claim(cls, directory: Path) -> Self:
        """Create the directory if it does not exist, and lock it. Raises Taken, and OSError if it cannot be used."""
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(lock, directory)
            return cls(lock)
        except BaseException:
            os.close(lock)
            raise

    def mark_used(self) -> None:
        """Note in the directory that it holds a database."""
        if not self.is_used:
            self.is_used = True
            self._write()

    def _write(self) -> None:
        text = f"{os.getpid()}\n{_USED if self.is_used else ''}\n".encode()
        # In place, because a full disk has no room for a new page.
        with suppress(OSError):
            os.pwrite(self._lock, text, 0)
            os.ftruncate(self._lock, len(text))

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(file: int, directory: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = ""
        with suppress(OSError):
            owner = os.read(file, 32).decode("ascii", "replace").partition("\n")[0]
        who = f"another server (process {owner})" if owner.isdigit() else "another server"
        raise Taken(
            f"{who} uses it. Stop that server, or give each server its own directory: "
            "--data-dir PATH, EVALD_DATA_DIR or data_dir in the config file"
        ) from None
    except OSError as problem:  # a network file system without locks
        _log.warning(
            "cannot lock data_dir %s (%s); make sure that no other server uses it",
            directory,
            problem.strerror,
        )
