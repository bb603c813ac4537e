"""What the operator allows scripts to do."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

Isolation = Literal["require", "prefer", "off"]


class Policy(NamedTuple):
    """What the operator allows, as the settings say it. Nothing by default.

    allow: commands, by absolute path, each perhaps followed by "@sha256:" and the file's digest.
    shell: whether a config may say `script` in the shell's language.
    isolation: whether scripts must, should or need not run isolated.
    read: paths that an isolated script may read, beside the system's programs and libraries.
    directory: the scripts' working directory.
    environment: "NAME=VALUE", or "NAME" for what the server's own environment says.
    timeout_seconds: most time of one script. concurrency: most scripts at a time.
    memory_bytes, processes, output_bytes: limits of one script.
    """

    allow: Sequence[str] = ()
    shell: bool = False
    isolation: Isolation = "prefer"
    read: Sequence[str] = ()
    directory: Path = Path("/")
    environment: Sequence[str] = ()
    timeout_seconds: float = 30.0
    concurrency: int = 4
    memory_bytes: int = 512 << 20
    processes: int = 64
    output_bytes: int = 1 << 20

    @property
    def variables(self) -> dict[str, str]:
        """What the operator adds to the scripts' environment. Whatever it is, nobody else is to see it."""
        found = {}
        for entry in self.environment:
            name, given, value = entry.partition("=")
            if given:
                found[name] = value
            elif name in os.environ:
                found[name] = os.environ[name]
        return found


BASE_ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
"""What every script is given, so that interpreters are found and text is UTF-8."""


class Confinement(NamedTuple):
    """What a script runs in. name: as results and the catalogue show it.

    prefix: words that come before the script's command.
    landlock: what the launcher leaves the script of the file system; None for all of it.
    """

    name: str
    prefix: Sequence[str] = ()
    landlock: Mapping[str, Sequence[str]] | None = None


NO_CONFINEMENT: Final = Confinement("none")
