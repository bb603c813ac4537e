"""Convert token counts of all frameworks to the contract's names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..errors import InvalidInput
from ..fields import join, plain, shown, snake, whole

_KEYS: Final = {
    "input": "input_tokens",
    "input_tokens": "input_tokens",
    "prompt_tokens": "input_tokens",
    "prompt": "input_tokens",
    "prompt_token_count": "input_tokens",  # Google
    "output": "output_tokens",
    "output_tokens": "output_tokens",
    "completion_tokens": "output_tokens",
    "completion": "output_tokens",
    "candidates_token_count": "output_tokens",  # Google
    "total": "total_tokens",
    "total_tokens": "total_tokens",
    "total_token_count": "total_tokens",  # Google
    "cached_input_tokens": "cached_input_tokens",
    "cached_content_token_count": "cached_input_tokens",  # Google
    "cache_read_tokens": "cached_input_tokens",  # Pydantic AI
    "cache_read_input_tokens": "cached_input_tokens",  # Anthropic, Bedrock
    "reasoning_tokens": "reasoning_tokens",
    "output_reasoning_tokens": "reasoning_tokens",  # Pydantic AI
    "thoughts_token_count": "reasoning_tokens",  # Google
}
# Counts that a framework reports separately from its input or output; the contract's counts include them.
_BESIDE: Final = {
    "cache_read_input_tokens": "input_tokens",  # Anthropic, Bedrock
    "cache_creation_input_tokens": "input_tokens",  # Anthropic
    "cache_write_input_tokens": "input_tokens",  # Bedrock
    "tool_use_prompt_token_count": "input_tokens",  # Google
    "thoughts_token_count": "output_tokens",  # Google
}
# Parts of input or output, which frameworks leave out where they are 0.
_PARTS: Final = frozenset(("cached_input_tokens", "reasoning_tokens"))
_DETAILS: Final = {
    "input_tokens_details": ("cached_tokens", "cached_input_tokens"),
    "prompt_tokens_details": ("cached_tokens", "cached_input_tokens"),
    "input_token_details": ("cache_read", "cached_input_tokens"),  # LangChain
    "output_tokens_details": ("reasoning_tokens", "reasoning_tokens"),
    "completion_tokens_details": ("reasoning_tokens", "reasoning_tokens"),
    "output_token_details": ("reasoning", "reasoning_tokens"),  # LangChain
}


def read_usage(usage: Any, path: str = "usage") -> dict[str, int]:
    """Convert token counts to the contract's names, without absent ones.

    Accepts `input`/`output`/`total`, `input_tokens` and so on, `prompt_tokens`/`completion_tokens`, and the
    spellings of the frameworks in `shapes`, also in camelCase. Counts that a framework reports separately from its
    input or output (Anthropic's cached tokens, Google's thoughts) are added to it, because the contract's counts
    include them. Ignores other keys. Raises InvalidInput.
    """
    usage = plain(usage)
    if not isinstance(usage, Mapping):
        raise InvalidInput(path, shown(usage), "an object with token counts")
    found: dict[str, int] = {}
    beside: dict[str, int] = {}
    for key, value in usage.items():
        if value is None or not isinstance(key, str):
            continue
        name = snake(key)
        if name in _KEYS or name in _BESIDE:
            # protobuf writes 64-bit numbers, of up to 19 digits, as text in JSON.
            written = isinstance(value, str) and value.isdecimal() and len(value) < 20
            count = whole(int(value) if written else value, join(path, key))
            if name in _KEYS:
                found[_KEYS[name]] = count
            if name in _BESIDE:
                beside[_BESIDE[name]] = beside.get(_BESIDE[name], 0) + count
        elif name in _DETAILS:
            detail, target = _DETAILS[name]
            details = plain(value)
            if isinstance(details, Mapping) and details.get(detail) is not None:
                found.setdefault(target, whole(details[detail], f"{path}.{key}.{detail}"))
    for name, count in beside.items():
        if name in found:
            found[name] += count
    return found


def of_whole_turn(values: Sequence[Any]) -> list[Any]:
    """Return what the messages of one turn report together: all values, or the last one's for the whole turn.

    values: one per message of the agent; None where it reports nothing. Empty if it is unknown what the turn took: a
    part of it would pass a budget.
    """
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) or found == list(values[-1:]) else []


def add_usages(usages: Iterable[Any]) -> dict[str, int]:
    """Add up token counts. Uses input plus output for a missing total. Raises InvalidInput.

    Input, output or total that one of them lacks is left out, because a part of the tokens would pass a budget.
    """
    read = [read_usage(usage) for usage in usages]
    added: dict[str, int] = {}
    for name in dict.fromkeys(name for counts in read for name in counts):
        found = [_total(counts) if name == "total_tokens" else counts.get(name) for counts in read]
        known = [count for count in found if count is not None]
        if name in _PARTS or len(known) == len(found):
            added[name] = sum(known)
    return added


def _total(counts: Mapping[str, int]) -> int | None:
    if "total_tokens" in counts:
        return counts["total_tokens"]
    halves = counts.get("input_tokens"), counts.get("output_tokens")
    return None if halves[0] is None or halves[1] is None else halves[0] + halves[1]
