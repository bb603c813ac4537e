"""Files that a running server reads again when they change, such as those of keys and certificates."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Generic, TypeVar

_log = logging.getLogger("evald.files")

_WRITING_SECONDS: Final = 0.1

# Separate threads, because evaluators may use all of asyncio's, and a revoked key would then stay valid for that time.
# One thread for each kind of file: keys, clients, key sets, certificates.
_READERS: Final = ThreadPoolExecutor(4, "evald-files")

_T = TypeVar("_T")


async def in_reader(read: Callable[[], _T]) -> _T:
    """Call a function that reads credentials in a thread of its own pool, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, read)


class FileProblem(Exception):
    """A file cannot be used. The text names the file and the place in it.

    Its cause is an OSError if the file may become usable without a change of it, as after "too many open files".
    """


class WatchedFiles(Generic[_T]):
    """What files contain, read again when one of them changes. content: of the last valid files.

    name: of the files in the log, such as a setting. read: returns the content, and raises FileProblem. count: called
    with "ok" or "failed" when changed files were read. The constructor raises FileProblem.
    """

    def __init__(
        self,
        name: str,
        paths: tuple[Path, ...],
        read: Callable[[], _T],
        count: Callable[[str], None] = lambda _outcome: None,
    ) -> None:
        self._name, self._paths, self._read, self._count = name, paths, read, count
        self._states = tuple(self._current())
        self._may_mend = False
        self.content = read()

    async def poll(self) -> bool:
        """Read the files in another thread if they have changed. Returns whether there is new content.

        Files that cannot be used are logged, once per change, and leave the content as it is.
        """
        try:
            changed = await in_reader(self._settled)
        except FileProblem as problem:
            self._count("failed")
            _log.error("%s: %s; the last valid content of the file stays in use", self._name, problem)
            return False
        if changed:
            self._count("ok")
        return changed

    def reload(self) -> bool:
        """Read the files if they have changed. Returns whether there is new content.

        Raises FileProblem, once per change, if they cannot be used; the content stays.
        """
        states = tuple(self._current())
        is_known = states == self._states
        if is_known and not self._may_mend:
            return False
        try:
            self.content = self._read()
        except FileProblem as problem:
            self._states, self._may_mend = states, isinstance(problem.__cause__, OSError)
            if is_known and self._may_mend:
                return False
            raise
        self._states, self._may_mend = states, False  # not after another exception: the file is read again
        return True

    def _settled(self) -> bool:
        """Reload, unless a file may be being written in place: a part of a file of keys is valid, too, and would revoke
        the other keys."""
        for before, now in zip(self._states, self._current(), strict=True):
            is_same = before is not None and now is not None and before[:2] == now[:2]
            if is_same and now is not None and 0 <= time.time() - now[2] / 1e9 < _WRITING_SECONDS:
                return False
        return self.reload()

    def _current(self) -> Iterator[tuple[int, ...] | None]:
        """Yield values that change with a file, also if it is a link that is replaced; None without a file."""
        for path in self._paths:
            try:
                found = path.stat()
            except OSError:
                yield None
            else:
                yield found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
