"""What the user is told when a command cannot go on."""

import traceback

from .console import err, warn
from .exits import Exit, Stop, is_debugging
from .plain import clean


def report(problem: Exception) -> Exit:
    """Say what is wrong and what to do about it; gives the exit code."""
    if is_debugging():
        err().print("".join(traceback.format_exception(problem)), soft_wrap=True)
    if isinstance(problem, Stop):
        warn(clean(str(problem)), clean(problem.hint))
        return problem.code

    from evald import errors
    from evald_server.config import SettingsError

    if isinstance(problem, errors.EvaldError):
        return _report_call(problem)
    if isinstance(problem, SettingsError):
        warn(clean(str(problem)), "evald serve --settings lists all settings")
        return Exit.USAGE
    warn(
        f"internal error: {type(problem).__name__}: {clean(str(problem))}",
        "EVALD_DEBUG=1 shows where; please report it",
    )
    return Exit.INCONCLUSIVE


def _report_call(problem: Exception) -> Exit:
    from evald import errors

    assert isinstance(problem, errors.EvaldError)
    # The SDK ends this one message with advice for programmers.
    warn(clean(problem.message.partition("; start one with")[0]), _hint(problem))
    if len(problem.violations) > 1:
        for violation in problem.violations:
            err().print(f"  - {clean(violation.field)}: {clean(violation.message)}", soft_wrap=True)
    if isinstance(problem, errors.Unavailable):
        return Exit.UNREACHABLE
    usage = (errors.InvalidRequest, errors.Unauthenticated, errors.PermissionDenied, errors.Unsupported)
    return Exit.USAGE if isinstance(problem, usage) else Exit.INCONCLUSIVE


def _hint(problem: Exception) -> str:
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
