"""What the operator allows scripts: their commands and their environment."""

import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

BASE_ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""The environment of every script: interpreters are found and text is UTF-8."""


def added_variables(entries: Sequence[str]) -> dict[str, str]:
    """Return the variables that the operator adds to the environment of scripts. Their values are secrets.

    entries: "NAME=VALUE", or "NAME" for the value in the server's own environment.
    """
    found = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if given:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


_ENTRY: Final = re.compile(r"(?P<path>.+?)(?:@sha256:(?P<digest>[0-9a-fA-F]*))?")


class CommandNotAllowed(ValueError):
    """The operator does not allow the command. The message lists the allowed ones."""


class CommandChanged(Exception):
    """The file of a command is not the file that the operator allowed."""


class AllowedCommand:
    """An allowed command. path: absolute. name: the short name that callers may use."""

    def __init__(self, entry: str) -> None:
        """entry: an absolute path, optionally followed by "@sha256:" and the digest of the file.

        Raises ValueError if the file cannot be run, or if every user of the machine may change it.
        """
        match = _ENTRY.fullmatch(entry)
        self.path = os.path.normpath(match["path"]) if match else entry
        self.name = Path(self.path).name
        digest = match["digest"] if match else None
        self._digest = None if digest is None else digest.lower()
        self._verified: tuple[int, ...] = ()
        if not Path(self.path).is_absolute():
            raise ValueError(f"{entry}: not an absolute path")
        if self._digest is not None and len(self._digest) != 64:
            raise ValueError(f"{entry}: {len(self._digest)} digits after @sha256:, wanted 64")
        try:
            found = Path(self.path).stat()
        except OSError as problem:
            raise ValueError(f"{entry}: {problem.strerror}") from None
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{entry}: not a file")
        if not found.st_mode & 0o111:
            raise ValueError(f"{entry}: not executable; run chmod +x on it")
        if found.st_mode & stat.S_IWOTH and self._digest is None:
            raise ValueError(
                f"{entry}: every user of the machine can change it; run chmod o-w on it, or add its digest"
            )
        try:
            self.verify()
        except CommandChanged as problem:
            raise ValueError(f"{entry}: {problem}") from None

    def verify(self) -> None:
        """Check the digest of the file. Raises CommandChanged.

        Reads the file again only if its size, times or inode have changed.
        """
        if self._digest is None:
            return
        try:
            found = Path(self.path).stat()
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if seen == self._verified:
                return
            digest = hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        except OSError as problem:
            raise CommandChanged(f"it cannot be read: {problem.strerror}") from None
        if digest != self._digest:
            raise CommandChanged("its sha256 digest is not the one that the operator allowed")
        self._verified = seen


class AllowList:
    """The commands that the operator allows."""

    def __init__(self, allow: Sequence[str]) -> None:
        """Raises ValueError with every invalid entry."""
        self._by_path: dict[str, AllowedCommand] = {}
        problems = []
        for entry in allow:
            try:
                command = AllowedCommand(entry)
            except ValueError as problem:
                problems.append(str(problem))
            else:
                self._by_path[command.path] = command
        if problems:
            raise ValueError("; ".join(problems))

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def find(self, word: str) -> AllowedCommand:
        """Return the command with this path, or with this name if it is unique. Raises CommandNotAllowed."""
        if "/" in word:
            found = [self._by_path[path] for path in (os.path.normpath(word),) if path in self._by_path]
        else:
            found = [command for command in self._by_path.values() if command.name == word]
        if len(found) == 1:
            return found[0]
        if found:
            raise CommandNotAllowed(
                f"{len(found)} allowed commands have the name {word!r}; give the full path"
            )
        names = ", ".join(sorted({command.name for command in self._by_path.values()}))
        raise CommandNotAllowed(
            f"the operator does not allow {word[:200]!r}; allowed are {names}. "
            f"The setting code_allow lists absolute paths"
        )
