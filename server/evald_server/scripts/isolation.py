"""Confinement of scripts in bubblewrap."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

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

# The user "nobody", on every Linux. A server that runs as root runs its scripts as this user.
NOBODY: Final = 65534

_PROBE_SECONDS: Final = 10
_CHANGE_USER: Final = (
    "import os, sys; user = int(sys.argv[1]); os.setgroups([]); os.setresgid(user, user, user); "
    "os.setresuid(user, user, user); os.execv(sys.argv[2], sys.argv[2:])"
)


def script_user() -> int | None:
    """Return the user id for scripts; None for the server's own user."""
    return NOBODY if os.geteuid() == 0 else None


def bubblewrap_problem() -> str:
    """Return why bubblewrap cannot run a command on this machine, and what to do about it; "" when it can."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed: install it (Debian: apt-get install bubblewrap)"
    command = [*bubblewrap((), "/"), "/bin/sh", "-c", ":"]
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
            stderr=subprocess.PIPE,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        why = str(problem)
    else:
        why = run.stderr.decode("utf-8", "replace").strip() or f"exit code {run.returncode}"
        if run.returncode == 0:
            return ""
    return f"bubblewrap does not work here ({why[:200]}): let this user create user namespaces"


def bubblewrap(readable: Sequence[str], cwd: str) -> list[str]:
    """Return the arguments before the command of a script that may read these paths and runs in this directory."""
    prefix = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-net"]
    prefix += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    prefix += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for path in dict.fromkeys((*SYSTEM, *readable)):
        prefix += ["--ro-bind-try", path, path]
    prefix += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*prefix, "--chdir", cwd, "--"]
