"""Exit codes of the commands, and the message for the user when a command cannot continue."""

import os
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evald.errors import EvaldError


class ExitCode(IntEnum):
    """Exit codes of every command. Scripts depend on them."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNREACHABLE = 4


class CommandError(Exception):
    """Ends the command with an exit code and a message for the user.

    message: what is wrong and where. hint: what to do about it, or "".
    """

    def __init__(self, code: ExitCode, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def usage_error(message: str, hint: str = "") -> CommandError:
    """Return the error for a wrong command line, file or config."""
    return CommandError(ExitCode.USAGE, message, hint)


def is_debugging() -> bool:
    """Return True if the user wants stack traces."""
    return os.environ.get("EVALD_DEBUG", "") not in ("", "0")


def report_error(problem: Exception) -> ExitCode:
    """Print what is wrong and what to do about it. Returns the exit code."""
    from evald import errors
    from evald_server.config import SettingsError

    from .console import err, warn
    from .sanitize import clean

    if is_debugging():
        err().print("".join(traceback.format_exception(problem)), soft_wrap=True)
    if isinstance(problem, CommandError):
        warn(clean(str(problem)), clean(problem.hint))
        return problem.code
    if isinstance(problem, errors.EvaldError):
        return _report_failed_call(problem)
    if isinstance(problem, SettingsError):
        warn(clean(str(problem)), "evald serve --settings lists all settings")
        return ExitCode.USAGE
    warn(
        f"internal error: {type(problem).__name__}: {clean(str(problem))}",
        "EVALD_DEBUG=1 shows where; please report it",
    )
    return ExitCode.INCONCLUSIVE


def _report_failed_call(problem: "EvaldError") -> ExitCode:
    from evald import errors

    from .console import err, warn
    from .sanitize import clean

    # The SDK's message ends with advice for programmers.
    warn(clean(problem.message.partition("; start one with")[0]), _hint(problem))
    if len(problem.violations) > 1:
        for violation in problem.violations:
            err().print(f"  - {clean(violation.field)}: {clean(violation.message)}", soft_wrap=True)
    if isinstance(problem, errors.Unavailable):
        return ExitCode.UNREACHABLE
    usage = (errors.InvalidRequest, errors.Unauthenticated, errors.PermissionDenied, errors.Unsupported)
    return ExitCode.USAGE if isinstance(problem, usage) else ExitCode.INCONCLUSIVE


def _hint(problem: "EvaldError") -> str:
    from evald import errors

    if isinstance(problem, errors.UnknownEvaluator):
        return "evald types lists all evaluators"
    if isinstance(problem, errors.Unavailable):
        return (
            "start one with evald serve, or leave --server and EVALD_SERVER out to use one inside the command"
        )
    if isinstance(problem, errors.DeadlineExceeded):
        return "allow more time with --timeout SECONDS"
    if isinstance(problem, errors.Overloaded) and problem.retry_after_seconds is not None:
        return f"the server is busy; try again in {problem.retry_after_seconds:g} s"
    return ""
