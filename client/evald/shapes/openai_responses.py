"""OpenAI Responses: the whole object, and the items of its input and output."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import InvalidInput, errors_below
from ..fields import plain, shown
from .parts import Parts, read_part, read_parts
from .reading import Reading, text_or_none
from .role_messages import assemble, read_role_message

# `incomplete_details.reason` of a Responses object, as a finish reason of chat completions.
_INCOMPLETE: Final = {"max_output_tokens": "length"}
# Items without text and tool calls.
_SILENT: Final = frozenset(
    ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "compaction", "context_compaction")
)


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a Responses object, or one item."""
    if "role" not in data and isinstance(data.get("output"), Sequence) and "type" not in data:
        return _whole(data)
    kind = data.get("type")
    if not isinstance(kind, str) or "parts" in data:
        return None
    if kind == "message" and isinstance(data.get("role"), str) and "model" not in data:
        kept = {key: value for key, value in data.items() if key not in ("type", "status", "phase")}
        return Reading(read_role_message(data["role"], kept))
    if "role" in data or "state" in data:
        return None
    if kind == "reasoning" or kind in _SILENT:
        return Reading([])
    if kind.endswith(("_call", "_call_output")):
        return Reading(_items([data]))
    return None


def _whole(data: Mapping[str, Any]) -> Reading:
    output = data["output"]
    if isinstance(output, str):
        raise InvalidInput("output", shown(output), "a list of output items")
    # One response of the model becomes one message, regardless of the number of items.
    found = Parts()
    for index, written in enumerate(output):
        item = plain(written)
        with errors_below(f"output[{index}]"):
            if not isinstance(item, Mapping):
                raise InvalidInput("", shown(item), "an output item")
            if item.get("type") == "message":
                read_parts(item.get("content") or (), "content", found)
            elif str(item.get("type")) not in _SILENT:
                read_part(item, found)
    message: dict[str, Any] = {"role": "assistant"}
    return Reading(
        assemble(message, found.blocks or None, found),
        usage=data.get("usage"),
        model=text_or_none(data.get("model")),
        finish_reason=_finish_reason(data, called=bool(found.calls)),
        response_id=text_or_none(data.get("id")) or text_or_none(data.get("response_id")),
    )


def _items(items: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = Parts()
    for item in items:
        read_part(item, found)
    messages = assemble({"role": "assistant"}, None, found) if found.calls else list(found.results)
    if not messages:
        raise InvalidInput(
            "type", f"{items[0].get('type')!r:.80}", "a message, a call, or the output of a call"
        )
    return messages


def _finish_reason(response: Mapping[str, Any], *, called: bool) -> str | None:
    status = response.get("status")
    if status == "completed":
        return "tool_calls" if called else "stop"
    details = plain(response.get("incomplete_details"))
    reason = details.get("reason") if isinstance(details, Mapping) else None
    return _INCOMPLETE.get(str(reason), text_or_none(reason)) if reason else text_or_none(status)
