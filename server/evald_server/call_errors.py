"""The error that ends a call. All parts of the server raise it; rpc/errors.py has the status of each reason."""

from collections.abc import Sequence
from typing import NamedTuple


class BadField(NamedTuple):
    """One wrong field. field: path such as `evaluators[2].config.maxMs`."""

    field: str
    message: str
    reason: str = ""


class CallError(Exception):
    """The error of a refused call.

    reason: stable code, listed in protos/README.md. metadata: every variable part of the message, for programs.
    retry_seconds: delay before a retry; None: the default of the reason.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        violations: Sequence[BadField] = (),
        **metadata: str,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.violations = violations
        self.metadata = metadata
        self.retry_seconds: float | None = None


def invalid(field: str, message: str, reason: str = "INVALID_FIELD", **metadata: str) -> CallError:
    """Return the error of one wrong field. message: the received and the wanted value, in words."""
    return refusal([BadField(field, message)], reason, **metadata)


def refusal(found: Sequence[BadField], reason: str = "INVALID_FIELD", **metadata: str) -> CallError:
    """Return the error of one or more wrong fields. Its message is the first one's, prefixed with the field."""
    field, message, _ = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return CallError(reason, f"{with_field(field, message)}{more}", found, field=field, **metadata)


def with_field(field: str, message: str) -> str:
    """Return a message that begins with its field."""
    return message if message.startswith(f"{field}:") else f"{field}: {message}"
