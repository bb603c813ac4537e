"""Selection of the isolation of scripts on this machine: bubblewrap, Landlock or none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from evald_server.config import Settings

from . import sandbox

# Directories of programs and libraries on Debian, Fedora, Alpine and Arch. No configuration, home or state.
SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
    # Node.js exits at once if this file exists and cannot be read.
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
)

# Files that runtimes read at startup. Other processes' entries in /proc stay unreadable.
_OWN_PROCESS: Final = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo")
_RANDOM: Final = ("/dev/random", "/dev/urandom", "/dev/zero")
_NULL: Final = ("/dev/null",)

# The user "nobody", on every Linux. A server that runs as root runs its scripts as this user.
NOBODY: Final = 65534

_PROBE_SECONDS: Final = 10
_CHANGE_USER: Final = (
    "import os, sys; user = int(sys.argv[1]); os.setgroups([]); os.setresgid(user, user, user); "
    "os.setresuid(user, user, user); os.execv(sys.argv[2], sys.argv[2:])"
)


class Confinement(NamedTuple):
    """The confinement of a script. name: as shown in results and the catalogue.

    prefix: arguments before the script's command.
    landlock: paths that the script may read and write; None for no restriction.
    """

    name: str
    prefix: Sequence[str] = ()
    landlock: Mapping[str, Sequence[str]] | None = None


NO_CONFINEMENT: Final = Confinement("none")


Confine: TypeAlias = Callable[[Sequence[str], str], Confinement]
"""Returns the confinement of a script that needs to read these files and runs in this directory."""

NONE: Final[tuple[str, Confine]] = (NO_CONFINEMENT.name, lambda _files, _cwd: NO_CONFINEMENT)


def script_user() -> int | None:
    """Return the user id for scripts; None for the server's own user."""
    return NOBODY if os.geteuid() == 0 else None


def find(settings: Settings) -> tuple[str, Confine]:
    """Return the best isolation that works on this machine: its name and its `Confine`."""
    if settings.code_isolation != "off":
        program = shutil.which("bwrap")
        if program is not None and _works(_bubblewrap(program, settings, (), "/")):
            return "bubblewrap", partial(_bubblewrap, program, settings)
        if sandbox.is_available():
            return "landlock", partial(_landlock, settings)
    return NONE


def _bubblewrap(program: str, settings: Settings, files: Sequence[str], cwd: str) -> Confinement:
    prefix = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    prefix += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for path in dict.fromkeys((*SYSTEM, *settings.code_read, *_working(settings), *files)):
        prefix += ["--ro-bind-try", path, path]
    prefix += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]
    return Confinement("bubblewrap", [*prefix, "--chdir", cwd, "--"])


def _landlock(settings: Settings, files: Sequence[str], _cwd: str) -> Confinement:
    read = [*SYSTEM, *_OWN_PROCESS, *_RANDOM, *settings.code_read, *_working(settings), *files]
    return Confinement("landlock", landlock={"read": read, "write": _NULL})


def _working(settings: Settings) -> Sequence[str]:
    """Return the working directory if the operator has set one: the default, "/", must not become readable."""
    directory = str(settings.code_directory)
    return () if directory == "/" else (directory,)


def _works(confinement: Confinement) -> bool:
    """Return whether a command runs with bubblewrap. Most containers do not allow it to create namespaces."""
    command = [*confinement.prefix, "/bin/sh", "-c", ":"]
    user = script_user()
    if user is not None:
        # subprocess could change the user too, but then it forks, and gRPC logs warnings about forks.
        command = [sys.executable, "-I", "-S", "-c", _CHANGE_USER, str(user), *command]
    try:
        run = subprocess.run(  # noqa: S603 - the operator's own program
            command,
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0
