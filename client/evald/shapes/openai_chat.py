"""OpenAI chat completions, of OpenAI and compatible endpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, errors_below
from ..fields import plain, shown
from .reading import Reading, text_or_none
from .role_messages import read_role_message


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a complete chat completion: an object with `choices`."""
    if "choices" not in data:
        return None
    choices = data["choices"]
    if not isinstance(choices, Sequence) or len(choices) != 1:
        got = f"{len(choices)} alternatives" if isinstance(choices, Sequence) else shown(choices)
        raise InvalidInput(
            "choices", got, "one alternative; pass the message of the alternative that you used"
        )
    choice = plain(choices[0])
    message = plain(choice.get("message")) if isinstance(choice, Mapping) else None
    if message is None:
        raise InvalidInput(
            "choices[0].message",
            "missing",
            "a complete completion; combine the chunks of a stream first",
        )
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidInput("choices[0].message", shown(message), "a message with `role` and `content`")
    with errors_below("choices[0].message"):
        messages = read_role_message(message["role"], message)
    return Reading(
        messages,
        usage=data.get("usage"),
        model=text_or_none(data.get("model")),
        finish_reason=text_or_none(choice.get("finish_reason")),
        response_id=text_or_none(data.get("id")),
    )
