"""The command line of evald. Each command is a module with `run(args) -> int`, imported on first use."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from .parser import parse

# The conventional exit code 128 + SIGPIPE.
_PIPE_CLOSED = 141

_MODULES = {
    "types": "catalog",
    "health": "serve",
    **dict.fromkeys(("keys", "certs"), "access"),
    "import": "stored_import",
    "convert": "convert_suites",
    **dict.fromkeys(("scenarios", "personas", "connectors", "experiments"), "resources"),
}

# The import names of the packages that `evald[server]` adds to the SDK. They are optional:
# this module must not import them.
_SERVER_PACKAGES = (
    "alembic",
    "grpc_reflection",
    "h11",
    "openai",
    "prometheus_client",
    "rapidfuzz",
    "re2",
    "rich",
    "ruamel",
    "sqlalchemy",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    argv: the arguments without the program's name; None: the arguments of the process.

    Raises SystemExit for help and for an invalid command line, and KeyboardInterrupt for SIGINT and SIGTERM.
    """
    _open_closed_streams()
    try:
        code = _run(parse(argv))
        sys.stdout.flush()  # raises write errors here and not at exit
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except Exception as problem:  # noqa: BLE001 - reported to the user
        from .exit_codes import report_error

        code = report_error(problem)
    finally:
        _discard_unwritten()
    return code


def _run(args: argparse.Namespace) -> int:
    command = args.command
    if command is None:
        sys.stdout.write(args.help_text)
        return 0
    if command == "version":
        from importlib.metadata import version

        sys.stdout.write(f"evald {version('evald')}\n")
        return 0
    if not all(map(find_spec, _SERVER_PACKAGES)):
        sys.stderr.write(f"evald {command} needs the server: pip install 'evald[server]'\n")
        return 2
    code: int = import_module(f".{_MODULES.get(command, command)}", __package__).run(args)
    return code


def _open_closed_streams() -> None:
    """Open standard streams that the parent has closed, so that no socket gets their numbers.

    A reopened standard input is empty; writing to a reopened standard output fails.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # os.open returns the lowest free number, which is this stream's.
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            setattr(sys, name, open(opened, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115 - a number


def _discard_unwritten() -> None:
    """Discard output that cannot be written. Python would try again at exit and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
