"""Refusals of plugins, and failures of a task of a remote evaluator."""

from typing import Final

from evald_server.call_errors import BadField, CallError, with_field

_MAX_SHOWN: Final = 300


class Refusal(CallError):
    """A plugin or its request is refused.

    problem: with the value got and the value wanted. field: path of the wrong field, such as
    `plugin.evaluator_types[0].type`, or "".
    """

    def __init__(self, reason: str, problem: str, field: str = "") -> None:
        if field:
            super().__init__(reason, with_field(field, problem), [BadField(field, problem)], field=field)
        else:
            super().__init__(reason, problem)


def invalid(field: str, message: str) -> Refusal:
    """Return the refusal of a request because of one field."""
    return Refusal("INVALID_FIELD", message, field)


class NoCapacity(Exception):
    """No instance can accept the task. code: one of evald.errorcodes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class PluginUnavailable(Exception):
    """The instance cannot be reached, or disconnected during the task. Another instance may be tried."""


class PluginTimeout(Exception):
    """The instance did not answer in time."""


class PluginBusy(Exception):
    """The instance refused the task for lack of capacity, although it should have a free slot."""


class PluginFailed(Exception):
    """The instance answered with an error. The text is only for the plugin's author and the operator."""


class ContractError(Exception):
    """The answer violates the contract. The text names the field."""


def printable(text: str) -> str:
    """Clean a peer's text for one line of a log or table: no control characters, at most 300 characters."""
    shown = "".join(character if character.isprintable() else " " for character in text[:_MAX_SHOWN])
    return shown if len(text) <= _MAX_SHOWN else f"{shown}…"
