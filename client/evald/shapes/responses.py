"""Complete responses of model APIs, agents and tools. `role_messages` reads the messages in them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, errors_below
from ..fields import plain, shown
from .parts import mcp_content
from .reading import Reading, finish_reason, first, mapping, text_or_none
from .role_messages import read_role_message


def read_openai_chat(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a chat completion of OpenAI or a compatible endpoint: an object with `choices`."""
    if "choices" not in data:
        return None
    choice = plain(_only_alternative(data["choices"], "choices", "message"))
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


def read_anthropic(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read Anthropic's `Message`, which `messages.create` returns."""
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


def read_google(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read Google GenAI's `GenerateContentResponse`: `candidates`, or the feedback on a blocked prompt."""
    candidates = data.get("candidates")
    if candidates is None:
        blocked = bool(mapping(first(data, "prompt_feedback", "promptFeedback")))
        return _google_reading(data, [], "content_filter") if blocked else None
    candidate = mapping(_only_alternative(candidates, "candidates", "content"))
    content = mapping(candidate.get("content"))
    reason = first(candidate, "finish_reason", "finishReason")
    messages = []
    if content:
        with errors_below("candidates[0].content"):
            messages = read_role_message(str(content.get("role") or "model"), content)
    return _google_reading(data, messages, finish_reason(reason))


def _google_reading(data: Mapping[str, Any], messages: list[dict[str, Any]], reason: str | None) -> Reading:
    return Reading(
        messages,
        usage=first(data, "usage_metadata", "usageMetadata"),
        model=text_or_none(first(data, "model_version", "modelVersion")),
        finish_reason=reason,
        response_id=text_or_none(first(data, "response_id", "responseId")),
    )


def read_google_adk(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read an event of Google's Agent Development Kit.

    Ignores the content of a partial event, because a later event repeats it.
    """
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


def read_bedrock(value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read the response of Bedrock's `converse`, or the `AgentResult` of Strands, which uses its messages."""
    output = data.get("output")
    if isinstance(output, Mapping) and "message" in output:
        latency = mapping(data.get("metrics")).get("latencyMs")
        return _bedrock_reading(
            output["message"],
            "output.message",
            data.get("usage"),
            data.get("stopReason"),
            latency / 1000 if isinstance(latency, int | float) and not isinstance(latency, bool) else None,
        )
    if isinstance(getattr(value, "message", None), Mapping) and hasattr(value, "stop_reason"):
        usage = getattr(getattr(value, "metrics", None), "accumulated_usage", None)
        return _bedrock_reading(value.message, "message", usage, value.stop_reason, None)
    return None


def _bedrock_reading(message: Any, path: str, usage: Any, reason: Any, latency: float | None) -> Reading:
    data = mapping(message)
    with errors_below(path):
        messages = read_role_message(str(data.get("role") or "assistant"), {"content": data.get("content")})
    return Reading(messages, usage=usage, finish_reason=finish_reason(reason), latency_seconds=latency)


def read_mcp(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read MCP's `CallToolResult` as a tool message."""
    if "role" in data or "type" in data or not isinstance(data.get("content"), list):
        return None
    if not {"isError", "is_error", "structuredContent", "structured_content"} & data.keys():
        return None
    message: dict[str, Any] = {"role": "tool", "content": mcp_content(data, "")}
    if first(data, "is_error", "isError") is True:
        message["metadata"] = {"is_error": True}
    return Reading([message])


def _only_alternative(values: Any, path: str, part: str) -> Any:
    """Return the only element of a list of alternative answers. Raises InvalidInput."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        got = shown(values)
    elif len(values) == 1:
        return values[0]
    else:
        got = f"{len(values)} alternatives"
    raise InvalidInput(path, got, f"one alternative; pass the {part} of the alternative that you used")
