"""Read the parts of a message, also called content blocks, in the spellings of all frameworks.

A part is text, a tool call, a tool result, reasoning, or other content (an image, a file, a part of an unknown
type), which remains an unchanged block of the message: `blocks` says which of those evaluators do not understand.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..blocks import KNOWN_BLOCKS, MAX_BLOCKS, TEXT_BLOCKS, TooMany
from ..errors import InvalidInput, errors_below
from ..fields import plain, shown, snake, text
from .reading import first, json_text, mapping

CALL_PARTS: Final = frozenset(
    (
        "tool_call",  # OTel, AI SDK, LangChain, Pydantic AI
        "tool_use",  # Anthropic, Bedrock
        "function_call",  # Google, Responses
        "server_tool_use",
        "server_tool_call",
        "mcp_tool_use",
        "mcp_call",
        "custom_tool_call",
        "builtin_tool_call",
        "native_tool_call",
        "invalid_tool_call",  # LangChain: the arguments are not JSON
    )
)
RESULT_PARTS: Final = frozenset(
    (
        "tool_result",  # Anthropic, AI SDK, Bedrock
        "tool_error",  # AI SDK
        "tool_call_response",  # OTel
        "server_tool_call_response",
        "function_response",  # Google
        "tool_return",  # Pydantic AI
        "builtin_tool_return",
        "native_tool_return",
        "server_tool_result",
        "server_tool_call_result",
    )
)
# For example `function_call_output` and `web_search_tool_result`.
_RESULT_ENDINGS: Final = ("_call_output", "_tool_result")
_THOUGHTS: Final = frozenset(("reasoning", "thinking", "thought", "redacted_thinking", "reasoning_content"))
# Parts of Google and Bedrock have one of these keys instead of `type`.
_BY_KEY: Final = (
    "function_call",
    "function_response",
    "tool_use",
    "tool_result",
    "reasoning_content",
    "executable_code",
    "code_execution_result",
    "inline_data",
    "file_data",
    "image",
    "document",
    "video",
    "audio",
    "cache_point",
    "guard_content",
    "citations_content",
    "json",
)
# Keys of media to keep. Never the bytes.
_MEDIA_FACTS: Final = frozenset(("mime_type", "display_name", "file_uri", "format", "name", "uri"))


class Parts:
    """The parts of one message.

    blocks: text and other content blocks, in order. calls: tool calls.
    results: tool messages. thoughts: the model's reasoning.
    """

    __slots__ = ("blocks", "calls", "results", "thoughts")

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.thoughts: list[str] = []


def read_parts(parts: Any, path: str, into: Parts | None = None) -> Parts:
    """Read the parts of a message. path: the key of the parts. into: extended and returned. Raises InvalidInput."""
    found = Parts() if into is None else into
    if isinstance(parts, str):
        parts = [parts]
    elif isinstance(parts, bytes | Mapping) or not isinstance(parts, Iterable):
        raise InvalidInput(path, shown(parts), "a list of parts")
    for index, part in enumerate(parts):
        if index >= MAX_BLOCKS:
            raise TooMany(
                path, "content blocks", len(parts) if isinstance(parts, list) else index + 1, MAX_BLOCKS
            )
        with errors_below(f"{path}[{index}]"):
            read_part(part, found)
    return found


def read_part(part: Any, found: Parts) -> None:
    """Read one part and add it to `found`. Raises InvalidInput."""
    part = plain(part)
    if isinstance(part, str):
        found.blocks.append({"type": "text", "text": part})
        return
    if not isinstance(part, Mapping):
        raise InvalidInput("", shown(part), "text, or an object with `type`")
    written = first(part, "type", "part_kind", "kind")
    if written is None:
        _read_untyped(part, found)
        return
    if not isinstance(written, str):
        raise InvalidInput("type", shown(written), 'text such as "text" or "image_url"')
    kind = snake(written)
    if _is_ui_tool(part, kind):
        _read_ui_tool(part, kind, found)
    elif kind in TEXT_BLOCKS:
        _read_text(part, kind, found)
    elif kind in CALL_PARTS:
        found.calls.append(_call(part))
        _read_own_result(part, found)
    elif kind in RESULT_PARTS or kind.endswith(_RESULT_ENDINGS):
        found.results.append(_result(part))
    elif kind in _THOUGHTS:
        found.thoughts.extend(_thoughts(part))
    elif kind == "non_standard":  # LangChain's wrapper of a provider-specific part
        read_part(part.get("value"), found)
    elif kind.endswith("_call") and kind not in KNOWN_BLOCKS:
        found.calls.append(_hosted_call(part, kind))
    else:
        _keep(part, written, kind, found)


def _read_text(part: Mapping[str, Any], kind: str, found: Parts) -> None:
    key = next((key for key in ("text", "content") if part.get(key) is not None), None)
    value = None if key is None else part[key]
    if isinstance(value, Mapping):  # Assistants API: {"value", "annotations"}
        value = value.get("value")
    if not isinstance(value, str):
        got = "missing" if value is None else shown(value)
        raise InvalidInput(key or "text", got, "the text of a part whose type is text")
    if part.get("thought") is True:
        found.thoughts.append(value)
        return
    others = {name: other for name, other in part.items() if name not in (key, "type", "part_kind", "kind")}
    found.blocks.append({"type": part.get("type") or kind, "text": value, **others})


def _read_untyped(part: Mapping[str, Any], found: Parts) -> None:
    if isinstance(part.get("text"), str):
        _read_text(part, "text", found)
        return
    named = {snake(str(key)): key for key in part}
    kind = next((name for name in _BY_KEY if name in named and part[named[name]] is not None), None)
    if kind is None:
        if part.keys() <= {"thought", "thought_signature", "thoughtSignature"}:
            return
        raise InvalidInput("type", "missing", 'text such as "text" or "image_url"')
    key = named[kind]
    inner = plain(part[key])
    with errors_below(key):
        if kind in ("function_call", "tool_use"):
            found.calls.append(_call(_object(inner)))
        elif kind in ("function_response", "tool_result"):
            found.results.append(_result(_object(inner)))
        elif kind == "reasoning_content":
            found.thoughts.extend(_thoughts(_object(inner)))
        elif kind == "json":
            found.blocks.append({"type": "text", "text": json_text(inner, "")})
        elif kind == "executable_code":  # Google runs it: a call without an id
            found.calls.append({"name": "code_execution", "arguments": json_text(inner, "")})
        elif kind == "code_execution_result":
            found.results.append(
                {"role": "tool", "content": json_text(mapping(inner).get("output", ""), "output")}
            )
        elif kind == "citations_content":
            read_parts(_object(inner).get("content") or (), "content", found)
        elif kind == "guard_content":
            read_part(_object(inner).get("text"), found)
        else:
            facts = {name: value for name, value in mapping(inner).items() if snake(name) in _MEDIA_FACTS}
            found.blocks.append({"type": kind, **facts})


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput("", shown(value), "an object")
    return value


def _keep(part: Mapping[str, Any], written: str, kind: str, found: Parts) -> None:
    """Keep images, files and unknown parts as blocks. Evaluators see whether those hold text or a tool call."""
    transcript = (
        first(part, "transcript", "refusal") if kind in ("audio", "output_audio", "input_audio") else None
    )
    if isinstance(transcript, str):
        found.blocks.append({"type": "text", "text": transcript})
        return
    found.blocks.append({"type": written, **{key: value for key, value in part.items() if key != "type"}})


def _thoughts(part: Mapping[str, Any]) -> list[str]:
    """Return the readable reasoning, without encrypted and redacted reasoning."""
    inner = first(part, "reasoning_text", "reasoningText")
    value = first(mapping(inner) if inner is not None else part, "text", "thinking", "reasoning", "content")
    if isinstance(value, str):
        return [value]
    texts: list[str] = []
    for key in ("summary", "content"):  # Responses
        items = part.get(key)
        if isinstance(items, list):
            texts.extend(words for item in items if isinstance(words := mapping(item).get("text"), str))
    return texts


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call in the contract's JSON form. Raises InvalidInput."""
    name = first(part, "name", "tool_name", "toolName", "tool")
    if not isinstance(name, str) or not name:
        got = "missing" if name is None else shown(name)
        raise InvalidInput("name", got, "the name of the tool that is called")
    call: dict[str, Any] = {"name": name}
    call_id = first(part, "tool_call_id", "toolCallId", "call_id", "tool_use_id", "toolUseId", "id")
    if call_id is not None:
        call["id"] = text(call_id, "id")
    for key in ("arguments", "args", "input", "server_tool_call"):
        if part.get(key) is not None:
            call["arguments"] = json_text(part[key], key)
            break
    return call


def _hosted_call(part: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the call of a tool that the model's provider runs, such as Responses' `web_search_call`."""
    if isinstance(part.get("name"), str):
        return _call(part)
    call: dict[str, Any] = {"name": kind.removesuffix("_call")}
    call_id = first(part, "call_id", "id")
    if call_id is not None:
        call["id"] = text(call_id, "id")
    arguments = {
        key: part[key]
        for key in ("action", "actions", "queries", "code", "operation", "arguments", "input")
        if part.get(key) is not None
    }
    if arguments:
        call["arguments"] = json_text(arguments, "")
    return call


def _read_own_result(part: Mapping[str, Any], found: Parts) -> None:
    """Read the result within a call, as in Responses' `mcp_call`."""
    if part.get("output") is not None or part.get("error") is not None:
        found.results.append(_result({**part, "is_error": part.get("error") is not None}))


def _result(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool message in the contract's JSON form. Raises InvalidInput."""
    message: dict[str, Any] = {"role": "tool"}
    call_id = first(part, "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "call_id", "id")
    if call_id is not None:
        message["tool_call_id"] = call_id
    name = first(part, "tool_name", "toolName", "name")
    if isinstance(name, str):
        message["name"] = name
    for key in (
        "content",
        "response",
        "result",
        "output",
        "error",
        "errorText",
        "server_tool_call_response",
        "tools",
    ):
        if part.get(key) is not None:
            message["content"], failed = result_content(part[key], key)
            break
    else:
        failed = False
    failed = failed or part.get("type") == "tool-error" or "errorText" in part
    if failed or part.get("is_error") is True or part.get("isError") is True or part.get("status") == "error":
        message["metadata"] = {"is_error": True}
    return message


def result_content(value: Any, path: str) -> tuple[Any, bool]:
    """Return a tool's result as the content of a message, and whether it is an error."""
    value = plain(value)
    if isinstance(value, str):
        return value, False
    if isinstance(value, Mapping):
        kind = value.get("type")
        if (
            isinstance(kind, str)
            and "value" in value
            and value.keys() <= {"type", "value", "providerOptions"}
        ):
            # AI SDK: {"type": "text" | "json" | "content" | "error-text" | "error-json", "value"}
            content, failed = result_content(value["value"], f"{path}.value")
            return content, failed or kind.startswith("error")
        if isinstance(value.get("content"), list) and _is_mcp(value):
            return mcp_content(value, path), first(value, "isError", "is_error") is True
    elif isinstance(value, list | tuple) and value and all(map(_is_part, value)):
        inner = read_parts(value, path)
        if not inner.calls and not inner.results:
            return inner.blocks, False
    return json_text(value, path), False


def _is_mcp(value: Mapping[str, Any]) -> bool:
    return any(key in value for key in ("isError", "is_error", "structuredContent", "structured_content"))


def mcp_content(data: Mapping[str, Any], path: str) -> Any:
    """Return the content blocks of an MCP tool result; without blocks, its structured content as JSON."""
    blocks = read_parts(data["content"], f"{path}.content" if path else "content").blocks
    structured = first(data, "structured_content", "structuredContent")
    if blocks or structured is None:
        return blocks
    return json_text(structured, f"{path}.structured_content" if path else "structured_content")


def _is_part(value: Any) -> bool:
    """Return whether a value is a content block rather than data that a tool returned."""
    data = plain(value)
    if not isinstance(data, Mapping):
        return False
    kind = data.get("type")
    if isinstance(kind, str):
        return snake(kind) in TEXT_BLOCKS or snake(kind) in KNOWN_BLOCKS
    return len(data) == 1 and snake(str(next(iter(data)))) in ("text", "json", "image", "document", "video")


def _is_ui_tool(part: Mapping[str, Any], kind: str) -> bool:
    """Return whether a part is a tool part of AI SDK UI. A `tool-NAME` part has a state and no name."""
    if kind in ("dynamic_tool", "tool_invocation"):
        return True
    return kind.startswith("tool_") and "state" in part and not part.keys() & {"toolName", "name"}


def _read_ui_tool(part: Mapping[str, Any], kind: str, found: Parts) -> None:
    """Read AI SDK UI parts: `tool-NAME`, `dynamic-tool` and, before version 5, `tool-invocation`."""
    if kind == "tool_invocation":
        part = _object(plain(part.get("toolInvocation")))
    elif kind != "dynamic_tool":
        part = {**part, "toolName": str(part["type"])[len("tool-") :]}
    found.calls.append(_call(part))
    if first(part, "output", "result", "errorText") is not None:
        found.results.append(_result({key: value for key, value in part.items() if key != "type"}))


def read_ui_invocations(invocations: Any, found: Parts) -> None:
    """Read the `toolInvocations` of AI SDK UI messages before version 5."""
    if not isinstance(invocations, list):
        raise InvalidInput("toolInvocations", shown(invocations), "a list of tool invocations")
    for index, invocation in enumerate(invocations):
        with errors_below(f"toolInvocations[{index}]"):
            _read_ui_tool({"toolInvocation": invocation}, "tool_invocation", found)
