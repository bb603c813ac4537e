"""Files with credentials: TOML that only the owner may write, reloaded on change."""

import asyncio
import stat
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from evald_server.input_files import read_regular

from .principal import Role

# Enough for 5,000 keys; a larger file is a mistake.
_MAX_BYTES: Final = 4 << 20

_WRITING_SECONDS: Final = 0.1

# Separate threads, because evaluators may use all of asyncio's, and a revoked key would then stay valid for that time.
# One thread for each kind of file: keys, clients, key sets, certificates.
_READERS: Final = ThreadPoolExecutor(4, "evald-credentials")

_T = TypeVar("_T")


class FileProblem(Exception):
    """A file cannot be used. The text names the file and the place in it. Its cause is the OSError of a file that cannot
    be read."""


async def in_reader(read: Callable[[], _T]) -> _T:
    """Call a function that reads a file of credentials in a thread of its own pool, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, read)


class WatchedFile(Generic[_T]):
    """A file, parsed by `read` and reloaded on change. The constructor raises FileProblem."""

    def __init__(self, path: Path, read: Callable[[Path], _T]) -> None:
        self.path = path
        self._read = read
        self._seen = signature(path)
        self._is_unread = False
        self.content = read(path)

    def reload(self) -> bool:
        """Read the file if it has changed. Returns True if it has.

        Raises FileProblem, once per change, if the new file is not valid or cannot be read; `content` stays.
        """
        found = signature(self.path)
        is_known = found == self._seen
        if is_known and not self._is_unread:
            return False
        self._seen = found
        try:
            self.content = self._read(self.path)
        except FileProblem as problem:
            # The file may become readable without a change of it, as after "too many open files": the next call reads
            # it again.
            self._is_unread = isinstance(problem.__cause__, OSError)
            if is_known and self._is_unread:
                return False
            raise
        self._is_unread = False
        return True

    def poll(self) -> bool:
        """Call `reload`, unless the file may be being written in place: then its next call does.

        A part of a file of keys is valid, too, and would revoke the other keys.
        """
        found = signature(self.path)
        if found is not None and self._seen is not None and found[:2] == self._seen[:2]:
            age = time.time() - found.mtime_ns / 1e9
            if 0 <= age < _WRITING_SECONDS:
                return False
        return self.reload()


def read_toml(path: Path, *, missing: str, wanted: str) -> dict[str, Any]:
    """Return the content of a TOML file. Raises FileProblem.

    missing: text of the error if the file does not exist. wanted: text of the error if it is not valid TOML.
    """
    try:
        found = path.stat()
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FileProblem(f"{path}: other users can write this file; run chmod 600 on it")
        return tomllib.loads(read_regular(path, _MAX_BYTES).decode())
    except FileNotFoundError:
        raise FileProblem(f"{path}: there is no such file; {missing}") from None
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from problem
    except (ValueError, RecursionError):
        # Without the library's text, which may repeat the file's content. ValueError covers the library's own error,
        # text that is not UTF-8, and numbers with thousands of digits.
        raise FileProblem(f"{path}: {wanted}") from None


def read_text(name: str, value: Any) -> str:
    """Return a field's value if it is a text. Raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: wanted a string")
    return value


def read_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return a field's value if it is a list of texts. Raises TypeError."""
    if not isinstance(value, list):
        raise TypeError(f"{name}: wanted a list of strings")
    return tuple(read_text(name, one) for one in value)


def read_roles(value: Any) -> tuple[Role, ...]:
    """Parse the field `roles`. Raises TypeError and ValueError."""
    try:
        return tuple(Role(role) for role in read_texts("roles", value))
    except ValueError:
        raise ValueError(f"roles: wanted one or more of {', '.join(Role)}") from None


def place_problem(place: str, problem: Exception) -> FileProblem:
    """Convert a KeyError, TypeError or ValueError at a place in a file to a FileProblem."""
    what = f"{problem.args[0]} is missing" if isinstance(problem, KeyError) else str(problem)
    return FileProblem(f"{place}: {what}")


class _Signature(NamedTuple):
    """Values of a file that change with it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    mode: int


def signature(path: Path) -> _Signature | None:
    """Return values that change with the file, also if it is a link that is replaced; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return _Signature(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)
