"""Runs `evald` commands in forks of this process, one per request on standard input.

Of the 1.6 s of processor time that a short command takes, 1.2 s are imports, and 0.25 s go to taking a process with
all of them apart. A fork has the first done and leaves out the second, and is still a process with an environment,
standard streams and an exit code of its own.

A request is a line of JSON: arguments, environment, directory, and the files of the three standard streams. The
answer is a line with the exit code.
"""

import gc
import json
import os
import signal
import sys
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

# With all modules in them, and what these import only when it is used.
PACKAGES = ("evald.v1", "evald_server.cli", "evald_server.conformance", "evald_server.suites")
LATE = ("alembic.command", "evald_server.app", "jinja2", "uvloop")
TIMEOUT_SECONDS = 120


def main() -> None:
    """Answer requests until standard input is closed."""
    for package in PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            import_module(module.name)
    for name in LATE:
        import_module(name)
    from evald_server.evaluators import BUILT_INS

    for evaluator in BUILT_INS.values():
        evaluator.definition()  # each class keeps its schema
    gc.collect()
    gc.freeze()  # so that no collection in a fork touches, and thereby copies, what all of them share
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(**json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def run(arguments: list[str], environment: dict[str, Any], directory: str, streams: list[str]) -> None:
    """Become the command: replace what a new process would get, and exit with its code."""
    signal.alarm(TIMEOUT_SECONDS)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    # The old object has buffered other requests.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["evald", *arguments]

    from evald_server.cli import main as evald

    try:
        code = evald()
    except SystemExit as end:  # of argparse
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


main()
