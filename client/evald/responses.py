"""What a model's API answered, in every shape that callers hold: OpenAI objects, dicts, text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .errors import InvalidInput
from .fields import join, shown, snake, whole

_WANTED: Final = (
    "text, a message, a list of messages, or a chat completion or Responses object of the OpenAI API"
)

# A Responses object says why it is incomplete; chat completions have shorter words for the same.
_INCOMPLETE: Final = {"max_output_tokens": "length"}
_CALL_ITEMS: Final = frozenset(("function_call", "custom_tool_call", "mcp_call"))

_USAGE_KEYS: Final = {
    "input": "input_tokens",
    "input_tokens": "input_tokens",
    "prompt_tokens": "input_tokens",
    "prompt": "input_tokens",
    "output": "output_tokens",
    "output_tokens": "output_tokens",
    "completion_tokens": "output_tokens",
    "completion": "output_tokens",
    "total": "total_tokens",
    "total_tokens": "total_tokens",
    "cached_input_tokens": "cached_input_tokens",
    "reasoning_tokens": "reasoning_tokens",
}
_USAGE_DETAILS: Final = {
    "input_tokens_details": ("cached_tokens", "cached_input_tokens"),
    "prompt_tokens_details": ("cached_tokens", "cached_input_tokens"),
    "output_tokens_details": ("reasoning_tokens", "reasoning_tokens"),
    "completion_tokens_details": ("reasoning_tokens", "reasoning_tokens"),
}


class ModelResponse(NamedTuple):
    """What a response says. None: it does not say."""

    messages: Sequence[Any]
    usage: Any = None
    model: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None


def plain(value: Any) -> Any:
    """An object of a client library as plain data; anything else as it is."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        return value
    # Without warnings: OpenAI's own parsed completions warn when they are dumped.
    return dump(mode="json", exclude_none=True, warnings=False)


def read_response(response: Any, path: str = "response") -> ModelResponse:
    """The messages that the agent added, and what else the response tells. Raises InvalidInput."""
    response = plain(response)
    if isinstance(response, str):
        return ModelResponse([{"role": "assistant", "content": response}])
    if isinstance(response, Mapping):
        if "choices" in response:
            return _chat_completion(response, path)
        if "output" in response:
            return _responses_object(response, path)
        if "role" in response:
            return ModelResponse([response])
    elif isinstance(response, Iterable) and not isinstance(response, bytes):
        return ModelResponse(list(response))
    raise InvalidInput(path, shown(response), _WANTED)


def _chat_completion(response: Mapping[str, Any], path: str) -> ModelResponse:
    choices = response["choices"]
    if not isinstance(choices, Sequence) or len(choices) != 1:
        got = f"{len(choices)} alternatives" if isinstance(choices, Sequence) else shown(choices)
        raise InvalidInput(join(path, "choices"), got, "one; pass the message of the one that you used")
    choice = plain(choices[0])
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if message is None:
        raise InvalidInput(
            join(path, "choices[0].message"),
            "missing",
            "a whole completion; put the chunks of a stream together first",
        )
    return ModelResponse(
        [message],
        response.get("usage"),
        response.get("model"),
        choice.get("finish_reason"),
        response.get("id"),
    )


def _responses_object(response: Mapping[str, Any], path: str) -> ModelResponse:
    items = response["output"]
    if not isinstance(items, Sequence) or isinstance(items, str):
        raise InvalidInput(join(path, "output"), shown(items), "a list of output items")
    blocks: list[Any] = []
    calls: list[dict[str, Any]] = []
    for item in map(plain, items):
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "message":
            blocks.extend(item.get("content") or ())
        elif kind in _CALL_ITEMS:
            calls.append(
                {
                    "id": item.get("call_id") or item.get("id") or "",
                    "name": item.get("name"),
                    "arguments": item.get("arguments", item.get("input")),
                }
            )
    message: dict[str, Any] = {"role": "assistant", "content": blocks or None}
    if calls:
        message["tool_calls"] = calls
    return ModelResponse(
        [message],
        response.get("usage"),
        response.get("model"),
        _finish_reason(response, called=bool(calls)),
        response.get("id"),
    )


def _finish_reason(response: Mapping[str, Any], *, called: bool) -> str | None:
    status = response.get("status")
    if status == "completed":
        return "tool_calls" if called else "stop"
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, Mapping) else None
    return _INCOMPLETE.get(reason, reason) if reason else status


def read_usage(usage: Any, path: str = "usage") -> dict[str, int]:
    """Token counts by the contract's names, whatever the caller calls them; absent ones are left out.

    Knows `input`/`output`/`total`, `input_tokens` and so on, `prompt_tokens`/`completion_tokens`,
    in camelCase too, and OpenAI's details of cached and reasoning tokens. Other keys are ignored.
    Raises InvalidInput.
    """
    usage = plain(usage)
    if not isinstance(usage, Mapping):
        raise InvalidInput(path, shown(usage), "an object with token counts")
    found: dict[str, int] = {}
    for key, value in usage.items():
        if value is None or not isinstance(key, str):
            continue
        name = snake(key)
        if name in _USAGE_KEYS:
            # A count as text: how protobuf writes 64-bit numbers in JSON.
            count = int(value) if isinstance(value, str) and value.isdecimal() else value
            found[_USAGE_KEYS[name]] = whole(count, join(path, key))
        elif name in _USAGE_DETAILS and isinstance(value, Mapping):
            detail, target = _USAGE_DETAILS[name]
            if value.get(detail) is not None:
                found.setdefault(target, whole(value[detail], f"{path}.{key}.{detail}"))
    return found
