"""How a command ends: the exit code, and what is told to the user when it is not 0."""

import os
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command. Scripts rely on them."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    UNREACHABLE = 4


class Stop(Exception):
    """Ends the command with a message for the user.

    message: what is wrong and where. hint: what to do about it, or "".
    """

    def __init__(self, code: Exit, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def usage_error(message: str, hint: str = "") -> Stop:
    """The command line, a file or a config is wrong."""
    return Stop(Exit.USAGE, message, hint)


def is_debugging() -> bool:
    """The user wants stack traces."""
    return os.environ.get("EVALD_DEBUG", "") not in ("", "0")
