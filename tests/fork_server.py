"""Runs Python programs in forks of this process, which has imported evald.

Of the second of processor time that `evald serve` takes to start and end, nine tenths are imports; of 1.6 s of a short
command, another 0.25 s go to taking a process with all of them apart. A fork has the first done and leaves out the
second, and is still a process with an id, an environment, standard streams and an exit code of its own.

Each connection to the Unix socket that the argument names starts one program. It sends a byte with the three standard
streams, then a line of JSON: `arguments` as those of `python` ("-m", "-c" or a path first), `environment`, `directory`,
`descriptors`, the limits of open files or null. It is sent a line with the process's id, and one with its exit code.
"""

import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

# With all modules in them, and what these import only when it is used.
PACKAGES = (
    "evald",
    "evald.v1",
    "evald.plugin.v1",
    "evald_server.cli",
    "evald_server.conformance",
    "evald_server.suites",
)
LATE = (
    *("alembic.command", "encodings.utf_8_sig", "evald_server.app", "jinja2"),
    *("rich.progress", "uvicorn", "uvloop"),
)


def main() -> None:
    """Start programs until standard input is closed."""
    for package in PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    for name in LATE:
        import_module(name)
    from evald_server.evaluators import BUILT_INS

    for evaluator in BUILT_INS.values():
        evaluator.definition().config_schema()  # each class keeps its schema
    gc.collect()
    gc.freeze()  # so that no collection in a fork touches, and thereby copies, what all of them share

    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        while True:
            readable, _, _ = select.select([0, listener, ended], [], [])
            if listener in readable:
                connection, _ = listener.accept()
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                with connection.makefile() as lines:
                    request = json.loads(lines.readline())
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    for inherited in (*streams, *(s.detach() for s in (ended, wake, listener, connection))):
                        os.close(inherited)
                    for other in running.values():
                        other.close()
                    run(**request)
                for stream in streams:
                    os.close(stream)
                running[pid] = connection
                _tell(connection, pid)
            if ended in readable:
                ended.recv(4096)
                _report(running)
            if 0 in readable:
                return


def _report(running: dict[int, socket.socket]) -> None:
    """Report the exit codes of ended processes to the clients that started them."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection:
            _tell(connection, os.waitstatus_to_exitcode(status))


def _tell(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # who asked for it has gone
        connection.sendall(f"{number}\n".encode())


def run(
    arguments: list[str], environment: dict[str, str], directory: str, descriptors: tuple[int, int] | None
) -> None:
    """Run the program in this fork with its own arguments, environment and streams, and exit with its code."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)
    # The old objects know whether what they were made for is a terminal, and can be sought in.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1 if environment.get("PYTHONUNBUFFERED") else -1, "utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    code: Any = 0
    try:
        _program(*arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _program(kind: str, *arguments: str) -> None:
    """Run a program as `python ARGUMENTS` does."""
    if kind == "-m":
        name, *more = arguments
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = [name, *more]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, *more = arguments
        sys.path.insert(0, "")
        sys.argv = ["-c", *more]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(kind).parent))
        sys.argv = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")


main()
