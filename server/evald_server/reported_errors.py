"""Errors that answers of agents report instead of an answer."""

from collections.abc import Mapping
from typing import Any, Final

_FAILED: Final = (
    *("error", "errored", "failed", "failure", "fail", "exception", "crashed", "aborted"),
    *("timeout", "timed_out", "timed out", "timedout"),
)
_ERRORS: Final = ("errors", "exception", "traceback")
_HTTP_ERRORS: Final = frozenset(map(str, range(400, 600)))


def reported_error(data: Mapping[str, Any]) -> Any:
    """Return the error that an answer of an agent, or a record of it, reports in one of the usual ways; None without."""
    choices = data.get("choices")
    for one in (data, *(choices if isinstance(choices, list) else ())):
        if isinstance(one, Mapping) and (one.get("error") or one.get("finish_reason") == "error"):
            return one.get("error") or one
    for key in _ERRORS:
        if data.get(key):
            return data[key]
    # The message of a failed tool has the same keys, but is no error of the agent.
    is_message = "role" in data or data.get("type") == "tool"
    failed = (
        _word(data, "status") in _FAILED
        or any(_word(data, key) == "false" for key in ("success", "ok"))
        or any(_word(data, key) == "true" for key in ("is_error", "isError"))
        or any(_word(data, key) in _HTTP_ERRORS for key in ("status", "statusCode", "status_code", "code"))
    )
    return data if data.get("type") == "error" or (failed and not is_message) else None


def _word(data: Mapping[str, Any], key: str) -> str:
    """Return a text, a number or a boolean as a word in lower case."""
    value = data.get(key)
    return str(value).strip().lower() if isinstance(value, str | int) else ""
