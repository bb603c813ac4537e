"""The process between the server and a script: it prepares the script's process and ends its whole tree.

The server cannot do that itself: code that runs between fork and exec in a process with threads may
hang, and a script's orphans would become children of the machine's init. The launcher lives as long as
the script. When its control socket closes, because the time is over, the caller is gone, or the server
has been killed, it kills everything that the script has started, in whatever session that is.

Run by `process`, alone in its process, with as few imports as it can do with: they are most of the
time that a script takes to start.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from . import kernel, landlock, seccomp, tree

_LIMITS: Final = {
    "processor_seconds": resource.RLIMIT_CPU,
    "data_bytes": resource.RLIMIT_DATA,
    "address_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "tasks": resource.RLIMIT_NPROC,
    "core_bytes": resource.RLIMIT_CORE,
}

# Below the server's own work: scripts that compute must not hold up calls.
_NICENESS: Final = 5

_MAX_PROBLEM_BYTES: Final = 4096


def main(control_fd: int, order_fd: int) -> None:
    """Run the script of the order, then answer how it ended over the control socket."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    with open(order_fd, "rb") as file:
        order = json.loads(file.read())
    kernel.adopt_orphans()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    # It closes when the script's program runs; what keeps that from happening is written into it.
    trouble, teller = os.pipe()
    script = os.fork()
    if not script:
        _become(order, teller)
    os.close(teller)
    _let_go_of_pipes()

    status: int | None = None
    while status is None:
        ready = select.select([control_fd, woken], [], [])[0]
        if control_fd in ready:
            break
        os.read(woken, 4096)
        status = (tree.reap() or {}).get(script)
    tree.end()

    answer: dict[str, Any] = {"problem": os.read(trouble, _MAX_PROBLEM_BYTES).decode("utf-8", "replace")}
    if status is not None:
        answer["code"] = os.waitstatus_to_exitcode(status)
    with suppress(OSError):  # the server is gone, or does not want to know
        control.sendall(json.dumps(answer).encode())


def _let_go_of_pipes() -> None:
    """Who reads the script's output must see its end when the script ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _become(order: dict[str, Any], teller: int) -> None:
    """Turn this process into the script. Does not return."""
    step = "its process cannot be prepared"
    try:
        os.setsid()
        # Python ignores these two, and what is ignored stays ignored in another program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o077)
        # Where memory runs out, the kernel takes a script's before anybody else's.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        os.nice(_NICENESS)
        if order["user"] is not None:
            _change_user(order["user"])
        kernel.die_with_parent(signal.SIGKILL)
        limits = dict(order["limits"])
        limits["tasks"] += _tasks_of(os.getuid())
        for name, kind in _LIMITS.items():
            _limit(kind, limits[name])
        step = "its working directory cannot be entered"
        os.chdir(order["cwd"])
        step = "it cannot be isolated"
        kernel.forgo_privileges()
        if order["landlock"] is not None:
            landlock.restrict(order["landlock"]["read"], order["landlock"]["write"])
            seccomp.deny_sockets()
        step = "it cannot be executed"
        os.execve(order["argv"][0], order["argv"], order["environment"])  # noqa: S606 - no shell is the point
    except BaseException as problem:  # noqa: BLE001 - this process must end here, whatever happened
        why = problem.strerror if isinstance(problem, OSError) else type(problem).__name__
        os.write(teller, f"{step}: {why}".encode())
    finally:
        os._exit(127)


def _change_user(user: int) -> None:
    # A shell that writes to /dev/stderr opens the pipe anew, as the user that it then is.
    for fd in (0, 1, 2):
        os.fchown(fd, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _limit(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(kind, (wanted, wanted))


def _tasks_of(user: int) -> int:
    """Processes and threads that the user has: the kernel's limit counts those that were there before."""
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                with open(f"/proc/{name}/stat", "rb") as file:
                    count += int(file.read().rpartition(b")")[2].split()[17])
    return count


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
