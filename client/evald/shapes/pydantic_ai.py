"""Pydantic AI: `ModelRequest`, `ModelResponse`, and the result of `Agent.run`."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInput, errors_below
from ..fields import plain, shown
from .parts import Parts, read_part, read_parts
from .reading import Reading, finish_reason, first, json_text, mapping, text_or_none
from .role_messages import assemble


def read(value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a message of a history, or the result of a run. The turn is the messages that the run added."""
    if callable(getattr(value, "all_messages", None)) and callable(getattr(value, "new_messages", None)):
        return _run(value)
    kind = data.get("kind")
    if kind not in ("request", "response") or not isinstance(data.get("parts"), list | tuple):
        return None
    return _request(data) if kind == "request" else _response(data)


def _run(value: Any) -> Reading:
    from . import read_all

    messages = list(value.all_messages())
    start = len(messages) - len(list(value.new_messages()))
    before = read_all(messages[:start], "all_messages")
    after = read_all(messages[start:], "new_messages")
    added = list(after.messages)
    output = getattr(value, "output", None)
    if output is not None and not any(
        message["role"] == "assistant" and message.get("content") for message in added[-1:]
    ):
        # Structured output arrives as the arguments of a tool call; the answer is their JSON.
        added.append({"role": "assistant", "content": json_text(output, "output")})
    return after._replace(messages=before.messages + added, new=len(before.messages))


def _request(data: Mapping[str, Any]) -> Reading:
    messages: list[dict[str, Any]] = []
    prompted = False
    for index, written in enumerate(data["parts"]):
        part = mapping(written)
        with errors_below(f"parts[{index}]"):
            kind = part.get("part_kind")
            if kind == "user-prompt":
                prompted = True
                messages.append({"role": "user", "content": _prompt(part.get("content"))})
            elif kind in ("system-prompt", "instruction"):
                messages.append({"role": "system", "content": json_text(part.get("content"), "content")})
            elif kind == "retry-prompt":
                messages.append(_retry(part))
            else:
                found = Parts()
                read_part(part, found)
                if not found.results:
                    raise InvalidInput("part_kind", shown(kind), "a prompt or the return of a tool")
                messages.extend(found.results)
    instructions = data.get("instructions")
    if isinstance(instructions, str) and instructions and prompted:
        # Every request repeats the instructions.
        messages.insert(0, {"role": "system", "content": instructions})
    return Reading(messages)


def _prompt(content: Any) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidInput("content", shown(content), "text, or a list of text and media")
    return read_parts([_medium(item) for item in content], "content").blocks


def _medium(item: Any) -> Any:
    """Return a medium such as `ImageUrl(url=..., kind="image-url")` as a block, without its bytes."""
    data = plain(item)
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        return data
    facts = {key: data[key] for key in ("url", "media_type", "identifier") if isinstance(data.get(key), str)}
    if isinstance(data.get("content"), str) and data["kind"] == "text-content":
        return {"type": "text", "text": data["content"]}
    return {"type": data["kind"], **facts}


def _retry(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a retry prompt as a message: the error of a tool, or else a user message."""
    content = json_text(part.get("content"), "content")
    if not part.get("tool_name"):
        return {"role": "user", "content": content}
    return {
        "role": "tool",
        "name": part["tool_name"],
        "tool_call_id": part.get("tool_call_id"),
        "content": content,
        "metadata": {"is_error": True},
    }


def _response(data: Mapping[str, Any]) -> Reading:
    found = read_parts([_written(part) for part in data["parts"]], "parts")
    messages = assemble({"role": "assistant"}, found.blocks or None, found)
    return Reading(
        messages,
        usage=data.get("usage"),
        model=text_or_none(data.get("model_name")),
        finish_reason=finish_reason(data.get("finish_reason")),
        response_id=text_or_none(first(data, "provider_response_id", "vendor_id")),
    )


def _written(part: Any) -> Any:
    """Return a generated file as a block without its bytes."""
    data = plain(part)
    if isinstance(data, Mapping) and data.get("part_kind") == "file":
        medium = mapping(data.get("content"))
        return {"type": "file", **{key: medium[key] for key in ("media_type", "url") if key in medium}}
    return data
