"""LangChain and LangGraph: messages, `lc` dumps, and states with `messages`."""

from collections.abc import Mapping
from typing import Any, Final

from ..errors import InvalidInput
from ..fields import shown
from .reading import Reading, finish_reason, first, items, mapping, text_or_none
from .role_messages import read_role_message

_ROLES: Final = {
    "human": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessageChunk": "system",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "tool",
    "FunctionMessageChunk": "tool",
    "developer": "developer",
}
# Keys of a message that are not copied to the metadata.
_NOT_KEPT: Final = frozenset(
    (
        "type",
        "content",
        "additional_kwargs",
        "response_metadata",
        "usage_metadata",
        "example",
        "artifact",
        "invalid_tool_calls",
        "tool_call_chunks",
        "chunk_position",
        "status",
        "lc",
    )
)


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a message in any of LangChain's forms."""
    if data.get("lc") == 1 and "id" in data:
        kwargs = data.get("kwargs")
        if not isinstance(kwargs, Mapping) or "content" not in kwargs:
            raise InvalidInput("kwargs", shown(kwargs), "a message that LangChain wrote")
        return read(None, kwargs)
    kind = data.get("type")
    if not isinstance(kind, str) or "parts" in data or "source" in data:
        return None
    inner = data.get("data")
    if isinstance(inner, Mapping) and "content" in inner and data.keys() <= {"type", "data"}:
        return read(None, {"type": kind, **inner})
    if "content" not in data:
        return None
    if kind in ("chat", "ChatMessageChunk"):
        role = data.get("role")
        return _message(str(role), data) if isinstance(role, str) and role else None
    if "role" in data or kind not in _ROLES:
        return None
    return _message(_ROLES[kind], data)


def _message(role: str, data: Mapping[str, Any]) -> Reading:
    extra, response = mapping(data.get("additional_kwargs")), mapping(data.get("response_metadata"))
    message = {key: value for key, value in data.items() if key not in _NOT_KEPT}
    message["content"] = data["content"]
    calls = items(data.get("tool_calls"), "tool_calls") or items(extra.get("tool_calls"), "tool_calls")
    for call in items(data.get("invalid_tool_calls"), "invalid_tool_calls"):
        written = mapping(call)
        calls.append({"id": written.get("id"), "name": written.get("name"), "arguments": written.get("args")})
    if calls:
        message["tool_calls"] = calls
    elif extra.get("function_call") is not None:
        message["function_call"] = extra["function_call"]
    if isinstance(extra.get("refusal"), str):
        message["refusal"] = extra["refusal"]
    if data.get("status") == "error":
        message["metadata"] = {"is_error": True}
    usage = data.get("usage_metadata")
    if usage is None and role == "assistant" and response:
        usage = {}  # a model wrote this message: what it took is unknown, and so is the sum of the turn
    return Reading(
        read_role_message(role, message),
        usage=usage,
        model=text_or_none(first(response, "model_name", "model", "model_id")),
        finish_reason=finish_reason(
            first(response, "finish_reason", "stop_reason", "stopReason", "done_reason")
        ),
        response_id=text_or_none(response.get("id")),
    )
