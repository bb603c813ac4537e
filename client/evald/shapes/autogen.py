"""AutoGen: chat messages and events, `TaskResult`, `Response`, and the messages of autogen-core."""

from collections.abc import Mapping
from typing import Any, Final

from ..fields import plain
from .parts import Parts, read_parts
from .reading import Reading, finish_reason, items, json_text, mapping, text_or_none
from .role_messages import assemble

_TEXTS: Final = frozenset(
    (
        "TextMessage",
        "StopMessage",
        "HandoffMessage",
        "ToolCallSummaryMessage",
        "MultiModalMessage",
        "UserMessage",
        "AssistantMessage",
        "SystemMessage",
    )
)
_CALLS: Final = "ToolCallRequestEvent"
_RESULTS: Final = frozenset(("ToolCallExecutionEvent", "FunctionExecutionResultMessage"))
# Internal events, and streaming chunks, which the complete message repeats.
_SILENT: Final = frozenset(
    (
        "ThoughtEvent",
        "SelectSpeakerEvent",
        "SelectorEvent",
        "MemoryQueryEvent",
        "UserInputRequestedEvent",
        "ModelClientStreamingChunkEvent",
        "CodeGenerationEvent",
        "CodeExecutionEvent",
    )
)


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a message, an event, or the result of a task."""
    kind = data.get("type")
    if isinstance(kind, str) and ("content" in data or kind in _SILENT) and "role" not in data:
        if kind in _SILENT:
            return Reading([], usage=data.get("models_usage"))
        if kind in _TEXTS or kind == _CALLS or kind in _RESULTS or kind.startswith("StructuredMessage"):
            return _message(kind, data)
    return _whole(data)


def _whole(data: Mapping[str, Any]) -> Reading | None:
    from . import read_all

    if isinstance(data.get("messages"), list | tuple) and "stop_reason" in data:  # TaskResult
        return read_all(data["messages"], "messages")
    if "chat_message" in data and "inner_messages" in data:  # Response of one agent
        return read_all(
            [*items(data["inner_messages"], "inner_messages"), data["chat_message"]], "inner_messages"
        )
    if "finish_reason" in data and "cached" in data and "content" in data:  # CreateResult of a model client
        reading = _message("AssistantMessage", data)
        return reading._replace(usage=data.get("usage"), finish_reason=finish_reason(data["finish_reason"]))
    return None


def _message(kind: str, data: Mapping[str, Any]) -> Reading:
    content, source = plain(data.get("content")), data.get("source")
    usage = data.get("models_usage")
    if kind in _RESULTS:
        results = [_result(mapping(result)) for result in items(content, "content")]
        return Reading(results, usage=usage)
    found = Parts()
    role = _role(kind, source)
    if isinstance(content, list | tuple):
        read_parts([_part(item) for item in content], "content", found)
        content = found.blocks or None
    elif isinstance(content, Mapping):  # StructuredMessage
        content = json_text(content, "content")
    message: dict[str, Any] = {"role": role}
    if text_or_none(source) and source != role:
        message["name"] = source
    if text_or_none(data.get("id")):
        message["id"] = data["id"]
    if text_or_none(data.get("thought")):
        found.thoughts.append(data["thought"])
    return Reading(assemble(message, content, found), usage=usage)


def _role(kind: str, source: Any) -> str:
    if kind == "SystemMessage":
        return "system"
    return (
        "user" if kind == "UserMessage" or (source == "user" and kind != "AssistantMessage") else "assistant"
    )


def _part(item: Any) -> Any:
    """Add the missing type: `FunctionCall` is serialised without one, and an image as its bytes."""
    data = plain(item)
    if isinstance(data, Mapping) and "type" not in data:
        if "name" in data and "arguments" in data:
            return {"type": "function_call", **data}
        if "data" in data:
            return {"type": "image"}
    return data if isinstance(data, str | Mapping) else {"type": "image"}


def _result(data: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "content": json_text(data.get("content"), "content")}
    if text_or_none(data.get("call_id")):
        message["tool_call_id"] = data["call_id"]
    if text_or_none(data.get("name")):
        message["name"] = data["name"]
    if data.get("is_error") is True:
        message["metadata"] = {"is_error": True}
    return message
