"""A command that could not find out whether the agent is good never ends as if it had."""

import errno

import pytest

from evald import errors
from evald_server.cli.exit_codes import CommandError, ExitCode, report_error
from evald_server.config import SettingsError


@pytest.mark.parametrize(
    ("problem", "code", "shown"),
    [
        pytest.param(CommandError(ExitCode.UNREACHABLE, "gone", "start it"), 4, "start it", id="command"),
        pytest.param(errors.InvalidRequest("bad field"), 2, "bad field", id="request"),
        pytest.param(
            errors.InvalidRequest("bad", violations=[errors.FieldViolation(*one) for one in ("ax", "by")]),
            2,
            "- a: x - b: y",
            id="two fields",
        ),
        pytest.param(errors.UnknownEvaluator("regx"), 2, "evald types", id="unknown evaluator"),
        pytest.param(errors.Unauthenticated("no key"), 2, "no key", id="no credentials"),
        pytest.param(errors.PermissionDenied("not yours"), 2, "not yours", id="no permission"),
        pytest.param(errors.Unsupported("too old"), 2, "too old", id="an old server"),
        pytest.param(errors.Unavailable("no answer", hint="serve()"), 4, "evald serve", id="no server"),
        pytest.param(errors.Unavailable("it stops"), 4, "it stops", id="stopping"),
        pytest.param(errors.Unavailable("db", reason="STORAGE_UNAVAILABLE"), 3, "server's log", id="storage"),
        pytest.param(errors.Overloaded("disk", reason="STORAGE_FULL"), 3, "free some disk space", id="full"),
        pytest.param(errors.Overloaded("busy", retry_after_seconds=0.0), 3, "again in 0 s", id="overload"),
        pytest.param(errors.DeadlineExceeded("too slow"), 3, "--timeout", id="deadline"),
        pytest.param(errors.Cancelled("cancelled"), 3, "cancelled", id="cancelled"),
        pytest.param(errors.ServerError("incident"), 3, "incident", id="a fault of the server"),
        pytest.param(SettingsError("EVALD_X"), 2, "--settings", id="settings"),
        pytest.param(OSError(errno.ENOSPC, "No space"), 3, "the output cannot be written", id="output"),
        pytest.param(OSError(errno.ENOENT, "No file"), 3, "internal error", id="another fault of a file"),
        pytest.param(AssertionError("why"), 3, "internal error: AssertionError: why", id="a bug"),
    ],
)
def test_the_exit_code_says_who_must_act(
    problem: Exception, code: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(problem) == code
    said = capsys.readouterr().err
    assert shown in " ".join(said.split())
    assert "Traceback" not in said
