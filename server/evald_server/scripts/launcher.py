"""The process between the server and a script: it prepares the script's process and kills its whole tree.

The server cannot do that itself: code that runs between fork and exec in a process with threads may hang, and a
script's orphans would become children of the machine's init. The launcher lives as long as the script. Its control
socket closes when the time is over, the caller is gone, or the server was killed. Then it kills every process that
the script has started, whatever its session.

`process` starts it. It has few imports, because imports take most of the time to start a script.
"""

import marshal
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

from evald_server import kernel

TYPE_CHECKING = False  # importing typing takes as long as starting Python
if TYPE_CHECKING:
    from typing import Any, Final


_LIMITS: "Final" = {
    "processor_seconds": resource.RLIMIT_CPU,
    "data_bytes": resource.RLIMIT_DATA,
    "address_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "tasks": resource.RLIMIT_NPROC,
    "core_bytes": resource.RLIMIT_CORE,
}

# Lower priority than the server, so that scripts do not delay calls.
_NICENESS: "Final" = 5

_MAX_PROBLEM_BYTES: "Final" = 4096

# Each pass stops the processes that were started during the previous pass. Stopped processes count against the process
# limit, so a fork bomb cannot start more processes after a few passes.
_MAX_PASSES: "Final" = 100


def main(control: int, request_fd: int) -> None:
    """Run a script, and send its exit over the control socket. request_fd: a file with the LaunchRequest."""
    os.set_inheritable(control, False)
    with open(request_fd, "rb") as file:
        request = marshal.load(file)  # noqa: S302 - the server wrote it; json takes 9 ms to import
    kernel.adopt_orphans()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    # exec closes this pipe. If exec fails, the script's process writes the reason into it.
    error_reader, error_writer = os.pipe()
    script = os.fork()
    if not script:
        _exec_script(request, error_writer)
    os.close(error_writer)
    _close_pipes()

    status: int | None = None
    # Not select.select, which refuses descriptors from 1024 on: a server with many connections has such.
    poller = select.poll()
    for fd in (control, woken):
        poller.register(fd, select.POLLIN)
    while status is None:
        if control in dict(poller.poll()):
            break
        os.read(woken, 4096)
        status = (_reap() or {}).get(script)
    _kill_descendants()

    problem = os.read(error_reader, _MAX_PROBLEM_BYTES)
    code = b"" if status is None else str(os.waitstatus_to_exitcode(status)).encode()
    with suppress(OSError):  # the server has ended, or has closed the socket
        os.write(control, code + b"\n" + problem)
    # Skip the interpreter's cleanup, which would delay the answer.
    os._exit(0)


def _close_pipes() -> None:
    """Close this process's copies of the script's pipes, so that their readers see the end when the script ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _exec_script(request: "dict[str, Any]", error_writer: int) -> None:
    """Apply limits and execute the script, by bubblewrap if that isolates it. Does not return."""
    step = "its process cannot be prepared"
    try:
        os.setsid()
        # Python ignores these two signals, and ignored signals stay ignored after exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o077)
        # When memory runs out, the kernel should kill a script first.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        os.nice(_NICENESS)
        if request["user"] is not None:
            step = "its file cannot be opened"
            file_fd = os.open(request["file"], os.O_RDONLY)
            _change_user(request["user"])
            if not os.access(request["file"], os.X_OK):
                _exec_by_descriptor(file_fd, request)
        step = "its process cannot be prepared"
        kernel.die_with_parent(signal.SIGKILL)
        limits = dict(request["limits"])
        limits["tasks"] += _tasks_of(os.getuid())
        for name, kind in _LIMITS.items():
            _limit(kind, limits[name])
        step = "its working directory cannot be entered"
        os.chdir(request["cwd"])
        step = "its privileges cannot be dropped"
        kernel.forgo_privileges()
        step = "it cannot be executed"
        os.execve(request["argv"][0], request["argv"], request["environment"])  # noqa: S606 - no shell is the point
    except BaseException as problem:  # noqa: BLE001 - this process must end here, whatever happened
        why = problem.strerror if isinstance(problem, OSError) else type(problem).__name__
        os.write(error_writer, f"{step}: {why}".encode())
    finally:
        os._exit(127)


def _change_user(user: int) -> None:
    # A shell that writes to /dev/stderr opens the pipe again, as the new user.
    for fd in (0, 1, 2):
        os.fchown(fd, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _exec_by_descriptor(file_fd: int, request: "dict[str, Any]") -> None:
    """Execute the script by its open descriptor, because this user may not enter the file's directory."""
    name = f"/proc/self/fd/{file_fd}"
    os.set_inheritable(file_fd, True)
    if request["argv"][0] != request["file"]:
        # bubblewrap reads the file from the descriptor, and shows it under its own name.
        at = request["argv"].index(request["file"])
        request["argv"][at - 1 : at + 1] = ["--perms", "0555", "--ro-bind-data", str(file_fd)]
        return
    request["argv"][0] = name


def _limit(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(kind, (wanted, wanted))


def _tasks_of(user: int) -> int:
    """Return the number of the user's processes and threads, which count towards the kernel's limit too."""
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                with open(f"/proc/{name}/stat", "rb") as file:
                    count += int(file.read().rpartition(b")")[2].split()[17])
    return count


def _descendants(root: int) -> set[int]:
    """Return the ids of all living descendants of a process."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name, in parentheses, may contain any character, including parentheses.
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


def _kill_descendants() -> None:
    """Kill and reap every descendant of this process. Needs `kernel.adopt_orphans`."""
    me, pause = os.getpid(), 0.001
    while _reap() is not None:
        known: set[int] = set()
        for _ in range(_MAX_PASSES):
            new = _descendants(me) - known
            if not new:
                break
            known |= new
            _signal(new, signal.SIGSTOP)
        _signal(known, signal.SIGKILL)
        time.sleep(pause)
        # Processes blocked in the kernel (a hanging network file system) end when they wake up.
        pause = min(2 * pause, 0.1)


def _reap() -> dict[int, int] | None:
    """Reap children. Returns the wait status by id; None when no child is left."""
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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
