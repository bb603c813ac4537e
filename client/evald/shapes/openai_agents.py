"""OpenAI Agents SDK: the result of `Runner.run`, and its items."""

from collections.abc import Mapping
from typing import Any

from ..fields import plain
from .reading import Reading, json_text, text_or_none


def read(value: Any, _data: Mapping[str, Any]) -> Reading | None:
    """Read a `RunResult`, or one of its `new_items`."""
    if hasattr(value, "to_input_list") and hasattr(value, "new_items"):
        return _run(value)
    if hasattr(value, "raw_item") and hasattr(value, "agent"):
        from . import read_one

        return read_one(plain(value.raw_item))
    return None


def _run(value: Any) -> Reading:
    from . import read_all

    items = value.to_input_list()
    given = getattr(value, "input", ())
    before = read_all(items[: 1 if isinstance(given, str) else len(given)], "input").messages
    after = read_all(items[1 if isinstance(given, str) else len(given) :], "new_items").messages
    final = getattr(value, "final_output", None)
    if final is not None:
        # A tool's output may be the final output (tool_use_behavior), and then no message of the agent contains it.
        text = json_text(final, "final_output")
        if not after or after[-1]["role"] != "assistant" or not after[-1].get("content"):
            after.append({"role": "assistant", "content": text})
    agent = text_or_none(getattr(getattr(value, "last_agent", None), "name", None))
    return Reading(
        before + after,
        usage=getattr(getattr(value, "context_wrapper", None), "usage", None),
        response_id=text_or_none(getattr(value, "last_response_id", None)),
        new=len(before),
        metadata={"agent": agent} if agent else None,
    )
