"""Bedrock's Converse API, and Strands, which uses its messages. `role_messages` reads the messages."""

from collections.abc import Mapping
from typing import Any

from ..errors import errors_below
from .reading import Reading, finish_reason, mapping
from .role_messages import read_role_message


def read(value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read the response of `converse`, or Strands' `AgentResult`."""
    output = data.get("output")
    if isinstance(output, Mapping) and "message" in output:
        latency = mapping(data.get("metrics")).get("latencyMs")
        return _answer(
            output["message"],
            "output.message",
            data.get("usage"),
            data.get("stopReason"),
            latency / 1000 if isinstance(latency, int | float) and not isinstance(latency, bool) else None,
        )
    if isinstance(getattr(value, "message", None), Mapping) and hasattr(value, "stop_reason"):
        usage = getattr(getattr(value, "metrics", None), "accumulated_usage", None)
        return _answer(value.message, "message", usage, value.stop_reason, None)
    return None


def _answer(message: Any, path: str, usage: Any, reason: Any, latency: float | None) -> Reading:
    data = mapping(message)
    with errors_below(path):
        messages = read_role_message(str(data.get("role") or "assistant"), {"content": data.get("content")})
    return Reading(messages, usage=usage, finish_reason=finish_reason(reason), latency_seconds=latency)
