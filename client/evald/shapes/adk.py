"""Google's Agent Development Kit: events of a session."""

from collections.abc import Mapping
from typing import Any

from ..errors import errors_below
from .reading import Reading, finish_reason, first, mapping, text_or_none
from .role_messages import read_role_message


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read an event. Ignores the content of a partial event, because a later event repeats it."""
    author = data.get("author")
    invocation = first(data, "invocation_id", "invocationId")
    if not isinstance(author, str) or "role" in data or (invocation is None and "actions" not in data):
        return None
    content = mapping(data.get("content"))
    messages: list[dict[str, Any]] = []
    if content and data.get("partial") is not True:
        role = "user" if author == "user" or content.get("role") == "user" else "model"
        with errors_below("content"):
            messages = read_role_message(role, {"parts": content.get("parts") or []})
    return Reading(
        messages,
        usage=first(data, "usage_metadata", "usageMetadata") if messages else None,
        model=text_or_none(first(data, "model_version", "modelVersion")),
        finish_reason=finish_reason(first(data, "finish_reason", "finishReason")),
        invocation=text_or_none(invocation),
    )
