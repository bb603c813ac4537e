"""Google GenAI: `GenerateContentResponse`. `role_messages` reads `Content`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidInput, errors_below
from ..fields import shown
from .reading import Reading, finish_reason, first, mapping, text_or_none
from .role_messages import read_role_message


def read(_value: Any, data: Mapping[str, Any]) -> Reading | None:
    """Read a complete response: an object with `candidates`, or the feedback on a blocked prompt."""
    candidates = data.get("candidates")
    feedback = mapping(first(data, "prompt_feedback", "promptFeedback"))
    if candidates is None and not feedback:
        return None
    if candidates is None:
        return _reading(data, [], "content_filter")
    if not isinstance(candidates, Sequence) or isinstance(candidates, str) or len(candidates) != 1:
        got = f"{len(candidates)} alternatives" if isinstance(candidates, list | tuple) else shown(candidates)
        raise InvalidInput(
            "candidates", got, "one alternative; pass the content of the alternative that you used"
        )
    candidate = mapping(candidates[0])
    content = mapping(candidate.get("content"))
    reason = first(candidate, "finish_reason", "finishReason")
    messages = []
    if content:
        with errors_below("candidates[0].content"):
            messages = read_role_message(str(content.get("role") or "model"), content)
    return _reading(data, messages, finish_reason(reason))


def _reading(data: Mapping[str, Any], messages: list[dict[str, Any]], reason: str | None) -> Reading:
    return Reading(
        messages,
        usage=first(data, "usage_metadata", "usageMetadata"),
        model=text_or_none(first(data, "model_version", "modelVersion")),
        finish_reason=reason,
        response_id=text_or_none(first(data, "response_id", "responseId")),
    )
