"""Anthropic: the `Message` that `messages.create` returns. `role_messages` reads message params."""

from collections.abc import Mapping
from typing import Any

from .reading import Reading, finish_reason, text_or_none
from .role_messages import read_role_message


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a complete response with its usage, model and stop reason."""
    if data.get("type") != "message" or not ({"model", "stop_reason"} & data.keys()) or "role" not in data:
        return None
    message = {key: data[key] for key in ("content",) if key in data}
    return Reading(
        read_role_message(str(data["role"]), message),
        usage=data.get("usage"),
        model=text_or_none(data.get("model")),
        finish_reason=finish_reason(data.get("stop_reason")),
        response_id=text_or_none(data.get("id")),
    )
