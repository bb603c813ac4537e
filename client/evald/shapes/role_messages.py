"""Messages with a role: OpenAI chat, Anthropic, AI SDK, OTel GenAI, Google contents, Bedrock and Strands.

They differ in their parts, which `parts` reads, and in the names of their roles.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..errors import InvalidInput
from ..fields import plain, shown
from .parts import Parts, read_parts, read_ui_invocations, result_content
from .reading import Reading, finish_reason

ROLES: Final = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""The contract's role by the role of another framework."""


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a message with `role`, or Google's Content without one."""
    role = data.get("role")
    if role is None and isinstance(data.get("parts"), list | tuple) and data.keys() <= {"parts", "role"}:
        role = "user"  # Google's API treats a Content without a role as the user's
    if not isinstance(role, str) or not role:
        return None
    reason = finish_reason(data.get("finish_reason")) if "parts" in data else None
    return Reading(read_role_message(role, data), finish_reason=reason)


def read_role_message(role: str, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the message together with the tool messages in its parts; see `assemble`. Raises InvalidInput."""
    role = ROLES.get(role, role)
    message = {key: value for key, value in data.items() if key not in ("parts", "content", "role")}
    message["role"] = role
    content, parts = plain(data.get("content")), data.get("parts")
    found = Parts()
    if isinstance(parts, list | tuple):
        message.pop("finish_reason", None)
        read_parts(parts, "parts", found)
        content = _with_repeated(content, found.blocks) or None
    elif isinstance(content, list | tuple):
        read_parts(content, "content", found)
        # Keep an empty list: it is not null.
        content = found.blocks if found.blocks or not content else None
    elif isinstance(content, Mapping) and role == "tool":
        content, failed = result_content(content, "content")
        if failed:
            message.setdefault("metadata", {"is_error": True})
    elif content is not None and not isinstance(content, str):
        if isinstance(content, bytes | Mapping) or not isinstance(content, Iterable):
            raise InvalidInput("content", shown(content), "text, a list of blocks or null")
        read_parts(content, "content", found)
        content = found.blocks
    if data.get("toolInvocations") is not None:
        read_ui_invocations(message.pop("toolInvocations"), found)
    if content is None:
        content = _audio_transcript(data)
    return assemble(message, content, found)


def _with_repeated(content: Any, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of a message's `parts`, of which a UI message of the AI SDK may repeat the text in `content`.

    A text that no part has is added. Raises InvalidInput if both have other texts.
    """
    if not content:
        return blocks
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    if isinstance(content, str):
        if not texts:
            return [*blocks, {"type": "text", "text": content}]
        if "".join(content.split()) in "".join("".join(texts).split()):
            return blocks
    raise InvalidInput(
        "content", f"{shown(content)}, which `parts` lacks", "the same text in both, or one of the two"
    )


def assemble(message: dict[str, Any], content: Any, found: Parts) -> list[dict[str, Any]]:
    """Build a message from its content and parts, with the tool messages that belong to it.

    A call that is in `tool_calls` or `function_call` and in a part is one call: matched by name, and id or position.
    """
    if content is not None:
        message["content"] = content
    given = plain(message.get("tool_calls"))
    if found.calls:
        if given is not None and not isinstance(given, list | tuple):
            raise InvalidInput("tool_calls", shown(given), "a list of tool calls")
        message["tool_calls"] = _merged(list(given or ()), found.calls)
        if _name(plain(message.get("function_call"))) in {call["name"] for call in found.calls}:
            del message["function_call"]
    if found.thoughts:
        metadata = message.get("metadata")
        if metadata is None or isinstance(metadata, Mapping):
            message["metadata"] = {"reasoning": "\n".join(found.thoughts), **(metadata or {})}
    if not found.results:
        return [message]
    if message["role"] == "assistant":
        return [message, *found.results]
    # Anthropic, Bedrock and Google put tool results into user messages. Drop such a message if it has no other content.
    if content is None and "tool_calls" not in message:
        if len(found.results) == 1 and "tool_call_id" in message:
            found.results[0].setdefault("tool_call_id", message["tool_call_id"])
        return found.results
    return [*found.results, message]


def _merged(given: list[Any], calls: list[dict[str, Any]]) -> list[Any]:
    if not given:
        return list({call.get("id", place): call for place, call in enumerate(calls)}.values())
    known = [plain(call) for call in given]
    identified = {(call.get("id"), _name(call)) for call in known if isinstance(call, Mapping)}
    return given + [
        call
        for place, call in enumerate(calls)
        if (
            (call["id"], call["name"]) not in identified
            if "id" in call
            else place >= len(known) or _name(known[place]) != call["name"]
        )
    ]


def _name(call: Any) -> str | None:
    """Return the name of a tool call in any form; None if it has none."""
    if not isinstance(call, Mapping):
        return None
    function = plain(call.get("function") or call.get("custom"))
    name = function.get("name") if isinstance(function, Mapping) else function
    name = name or call.get("name") or call.get("tool")
    return name if isinstance(name, str) else None


def _audio_transcript(data: Mapping[str, Any]) -> str | None:
    """Return the transcript of OpenAI's audio answer, or None."""
    audio = plain(data.get("audio"))
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    return transcript if isinstance(transcript, str) else None
