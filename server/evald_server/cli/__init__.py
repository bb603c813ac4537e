"""The command line of evald. Each command is a module with `run(args) -> int`, imported on first use."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from evald_server.memory import collect_rarely

from .parser import parse

# The conventional exit codes 128 + SIGINT and 128 + SIGPIPE.
_INTERRUPTED = 130
_PIPE_CLOSED = 141

_MODULES = {
    "types": "catalog",
    "import": "stored_import",
    "convert": "convert_suites",
    **dict.fromkeys(("scenarios", "personas", "connectors", "experiments"), "resources"),
}

# What `evald[server]` installs beside the SDK, by the names that Python imports. All optional there, so that
# this module must not import them.
_SERVER_PACKAGES = (
    "alembic",
    "grpc_reflection",
    "h11",
    "openai",
    "prometheus_client",
    "pydantic_settings",
    "rapidfuzz",
    "re2",
    "rich",
    "ruamel",
    "sqlalchemy",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = parse(argv)
    if args.command is None:
        sys.stdout.write(args.help_text)
        return 0
    if args.command == "version":
        from importlib.metadata import version

        sys.stdout.write(f"evald {version('evald')}\n")
        return 0
    if not all(map(find_spec, _SERVER_PACKAGES)):
        sys.stderr.write(f"evald {args.command} needs the server: pip install 'evald[server]'\n")
        return 2
    collect_rarely()
    try:
        code = _run(args.command, args)
        sys.stdout.flush()  # raises for a closed pipe here rather than at exit
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output at exit and would print another error about the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except Exception as problem:  # noqa: BLE001 - reported to the user
        from .exit_codes import report_error

        return report_error(problem)
    # The interpreter's last collection would take a tenth of a second to take apart what ends with the process.
    gc.freeze()
    return code


def _run(command: str, args: object) -> int:
    module = import_module(f".{_MODULES.get(command, command)}", __package__)
    code: int = module.run(args)
    return code
