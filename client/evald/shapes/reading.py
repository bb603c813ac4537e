"""The intermediate form between a framework's values and the contract's messages."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..errors import InvalidInput
from ..fields import plain, shown
from ..structs import MAX_DEPTH, check_levels


class Reading(NamedTuple):
    """The messages in a value, and its data about the invocation. None means not stated.

    messages: in the contract's JSON form, oldest first.
    usage: token counts of exactly these messages, in any spelling.
    new: index of the first message that the agent's last run added; None: everything after the last user message.
    invocation: id of the run that a message belongs to, in frameworks that have one.
    metadata: further keys for the invocation's metadata.
    """

    messages: list[dict[str, Any]]
    usage: Any = None
    model: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    latency_seconds: float | None = None
    new: int | None = None
    invocation: str | None = None
    metadata: Mapping[str, Any] | None = None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return the value as plain data if it is an object, else an empty mapping."""
    data = plain(value)
    return data if isinstance(data, Mapping) else {}


def items(value: Any, path: str) -> list[Any]:
    """Return the elements of a list; an empty list for null. Raises InvalidInput for other values."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidInput(path, shown(value), "a list")
    return list(value)


def text_or_none(value: Any) -> str | None:
    """Return the value if it is non-empty text, else None."""
    return value if isinstance(value, str) and value else None


def first(data: Mapping[str, Any], *keys: str) -> Any:
    """Return the value of the first of these keys that is present and not None."""
    for key in keys:
        value = data.get(key)
        if value is not None:
            return value
    return None


def json_text(value: Any, path: str) -> str:
    """Return a tool's result or arguments as text: text unchanged, other data as JSON. Raises InvalidInput."""
    if isinstance(value, str):
        return value
    try:
        check_levels(value, MAX_DEPTH)
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_json_default)
    except InvalidInput as problem:
        raise problem.below(path) from None
    except RecursionError:
        raise InvalidInput(path, "nested too deep", f"at most {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as problem:
        raise InvalidInput(path, f"not JSON-like: {problem}", "JSON text, or JSON-like data") from None


def _json_default(value: Any) -> Any:
    """Convert library objects within a result; dates and ids become text. Raises TypeError for other objects."""
    data = plain(value)
    if data is not value:
        return data
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if type(value).__module__ in ("datetime", "uuid", "decimal", "pathlib"):
        return str(value)
    raise TypeError(f"{shown(value)}, which is not JSON data")


# Finish reasons of other frameworks, in the terms of OpenAI's chat completions.
_FINISH: Final = {
    "tool_call": "tool_calls",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "function_calls": "tool_calls",
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


def finish_reason(value: Any) -> str | None:
    """Return the finish reason in OpenAI's terms; unknown ones in lower case."""
    word = getattr(value, "value", value)  # `value` may be an enum
    if not isinstance(word, str) or not word:
        return None
    word = word.lower().replace("-", "_")
    return _FINISH.get(word, word)
