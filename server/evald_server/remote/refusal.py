"""Why a plugin, or what it asks for, is refused."""


class Refusal(Exception):
    """A plugin is refused.

    reason: stable code, a row of protos/README.md. message: says what is wrong, got and wanted.
    field: path of the field that is wrong, such as `plugin.evaluator_types[0].type`, or "".
    """

    def __init__(self, reason: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field


def invalid(field: str, message: str) -> Refusal:
    """A field of the request is wrong."""
    return Refusal("INVALID_FIELD", message, field)
