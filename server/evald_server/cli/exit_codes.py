"""Exit codes of the commands, and error messages for the user."""

import errno
import os
import traceback
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from evald.errors import EvaldError


_STORAGE_HINTS: Final = {
    "STORAGE_FULL": "free some disk space, or choose another directory with --data-dir or EVALD_STORE",
    "STORAGE_UNAVAILABLE": "the server's log has the cause",
}

# Errors of a full or closed standard output. Python gives no file name in them.
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


_START_ONE: Final = "start a server with evald serve, or "


class ExitCode(IntEnum):
    """Exit codes of every command. Scripts depend on them."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNREACHABLE = 4


class CommandError(Exception):
    """An error that ends the command with an exit code and a message for the user.

    message: the problem and its place. hint: the remedy, or "".
    """

    def __init__(self, code: ExitCode, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def usage_error(message: str, hint: str = "") -> CommandError:
    """Return the error for an invalid command line, file or config."""
    return CommandError(ExitCode.USAGE, message, hint)


def unreachable(problem: "EvaldError") -> CommandError:
    """Return the error of a command that cannot start a server itself, if no server answers."""
    return CommandError(
        ExitCode.UNREACHABLE, problem.message, f"{_START_ONE}name another server with --server"
    )


def is_debugging() -> bool:
    """Return True if the user wants stack traces."""
    return os.environ.get("EVALD_DEBUG", "") not in ("", "0")


def report_error(problem: Exception) -> ExitCode:
    """Print the problem and its remedy. Returns the exit code, even if nothing can be printed."""
    from evald_server.redaction import without_keys

    from .console import err, warn
    from .sanitize import clean

    def printable(text: str) -> str:
        # A key that is given where its file is wanted, for example, would be quoted, and then be in the log of a CI job.
        return clean(without_keys(text))

    code, message, hint, details = _explain(problem)
    with suppress(OSError):  # standard error is full or closed
        if is_debugging():
            err().print(without_keys("".join(traceback.format_exception(problem))), soft_wrap=True)
        warn(printable(message), printable(hint))
        for detail in details:
            err().print(f"  - {printable(detail)}", soft_wrap=True)
    return code


def _explain(problem: Exception) -> tuple[ExitCode, str, str, list[str]]:
    """Return the exit code, the message, the hint, and the violations if there are several."""
    from evald import errors
    from evald_server.config import SettingsError

    if isinstance(problem, CommandError):
        return problem.code, str(problem), problem.hint, []
    if isinstance(problem, errors.EvaldError):
        found = problem.violations
        details = [f"{one.field}: {one.message}" for one in found] if len(found) > 1 else []
        return _code_of_failed_call(problem), problem.message, _hint(problem), details
    if isinstance(problem, SettingsError):
        return ExitCode.USAGE, str(problem), "evald serve --settings lists all settings", []
    if isinstance(problem, OSError) and problem.errno in _UNWRITABLE:
        what = problem.filename or "the output"
        return ExitCode.INCONCLUSIVE, f"{what} cannot be written: {problem.strerror}", "", []
    message = f"internal error: {type(problem).__name__}: {problem}"
    return ExitCode.INCONCLUSIVE, message, "EVALD_DEBUG=1 shows the stack trace; please report it", []


def _code_of_failed_call(problem: "EvaldError") -> ExitCode:
    from evald import errors

    if isinstance(problem, errors.Unavailable) and problem.reason not in _STORAGE_HINTS:
        return ExitCode.UNREACHABLE
    usage = (errors.InvalidRequest, errors.Unauthenticated, errors.PermissionDenied, errors.Unsupported)
    return ExitCode.USAGE if isinstance(problem, usage) else ExitCode.INCONCLUSIVE


def _hint(problem: "EvaldError") -> str:
    from evald import errors

    if problem.hint:  # no server answers; the SDK's own hint is for programmers
        return f"{_START_ONE}remove --server and EVALD_SERVER, so that the command starts its own"
    if problem.reason in _STORAGE_HINTS:
        return _STORAGE_HINTS[problem.reason]
    if isinstance(problem, errors.UnknownEvaluator):
        return "evald types lists all evaluators"
    if isinstance(problem, errors.DeadlineExceeded):
        return "allow more time with --timeout SECONDS"
    if isinstance(problem, errors.Overloaded) and problem.retry_after_seconds is not None:
        return f"the server is busy; try again in {problem.retry_after_seconds:g} s"
    return ""
