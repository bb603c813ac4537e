"""What an endpoint answers: a chat completion, whole or as a stream of events, or something else."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald.result import TokenUsage

from .forms import Problem


class Reply(NamedTuple):
    """A chat completion.

    text: what the model said, None when it said nothing. finish: why it stopped, "" when the endpoint does
    not say. refusal: why it would not answer, "" when it did. usage: None when not reported.
    """

    text: str | None
    finish: str
    refusal: str
    model: str
    usage: TokenUsage | None
    calls_tools: bool = False
    choices: int = 1


class NotACompletion(ValueError):
    """The endpoint speaks another protocol. The message says what came instead."""


class BrokeOff(ValueError):
    """The answer ends before its end."""


class Reported(Exception):
    """The endpoint reports a fault in an answer whose status says that all went well."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_reply(content: bytes, content_type: str) -> Reply:
    """The completion of a body. Raises NotACompletion, BrokeOff and Reported."""
    media = content_type.partition(";")[0].strip().lower()
    if media == "text/event-stream" or content.startswith((b"data:", b"event:", b":")):
        return _from_events(content)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        if media in ("", "application/json") and content.lstrip()[:1] in (b"", b"{"):
            raise BrokeOff(f"the JSON of its answer ends after {len(content)} bytes") from None
        raise NotACompletion(f"{media or 'a body'} that is not JSON") from None
    return _from_data(data)


def read_problem(status: int, content: bytes) -> Problem:
    """What an error's body says. Every server writes it somewhere else."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return Problem(status)
    return _problem(status, data)


def _problem(status: int, data: Any) -> Problem:
    if isinstance(data, list):
        data = data[0] if data else None
    error = data.get("error", data) if isinstance(data, Mapping) else data
    if isinstance(error, str):
        return Problem(status, message=error)
    if not isinstance(error, Mapping):
        return Problem(status)
    detail = error.get("message") or error.get("detail") or ""
    if isinstance(detail, Sequence) and not isinstance(detail, str):
        # pydantic's list of what is wrong; it also repeats the input, which is nobody's business.
        detail = "; ".join(
            f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg', '')}"
            for one in detail
            if isinstance(one, Mapping)
        )
    code = error.get("code") or error.get("type") or ""
    return Problem(
        status, str(code), str(error.get("param") or ""), detail if isinstance(detail, str) else ""
    )


def _from_data(data: Any) -> Reply:
    if not isinstance(data, Mapping):
        raise NotACompletion("JSON that is no object")
    choices = data.get("choices")
    if not isinstance(choices, list):
        if data.get("error"):
            raise Reported(_reported(data))
        raise NotACompletion(f'an object "{_word(data.get("object"))}" without choices')
    model, usage = str(data.get("model") or ""), _usage(data.get("usage"))
    if not choices or not isinstance(choices[0], Mapping):
        return Reply(None, "", "", model, usage, choices=0)
    choice = choices[0]
    if choice.get("error"):
        raise Reported(_reported(choice))
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise NotACompletion("a choice without a message")
    return Reply(
        _text(message.get("content")),
        str(choice.get("finish_reason") or ""),
        _text(message.get("refusal")) or "",
        model,
        usage,
        calls_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _from_events(content: bytes) -> Reply:
    text: list[str] = []
    refusal: list[str] = []
    finish, model, usage = "", "", None
    calls_tools = spoke = False
    for data in _events(content):
        if data is None:
            break
        if not isinstance(data, Mapping):
            raise NotACompletion("events that are no objects")
        if data.get("error"):
            raise Reported(_reported(data))
        choices = data.get("choices")
        if not isinstance(choices, list):
            kind = data.get("type") or data.get("object")
            raise NotACompletion(f'events "{_word(kind)}" without choices')
        model = str(data.get("model") or model)
        usage = _usage(data.get("usage")) or usage
        for choice in choices[:1]:
            delta = choice.get("delta") if isinstance(choice, Mapping) else None
            if not isinstance(delta, Mapping):
                continue
            piece = _text(delta.get("content"))
            if piece is not None:
                spoke = True
                text.append(piece)
            refusal.append(_text(delta.get("refusal")) or "")
            calls_tools = calls_tools or bool(delta.get("tool_calls") or delta.get("function_call"))
            finish = str(choice.get("finish_reason") or finish)
    else:
        if not finish:
            raise BrokeOff("its stream ends without a finish reason")
    return Reply("".join(text) if spoke else None, finish, "".join(refusal), model, usage, calls_tools)


def _events(content: bytes) -> Iterator[Any]:
    """The data of the events; None for the mark at their end."""
    for line in content.splitlines():
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            yield None
            continue
        try:
            yield json.loads(data)
        except (ValueError, RecursionError):
            raise BrokeOff("an event of its stream is not JSON") from None


def _reported(data: Mapping[str, Any]) -> Problem:
    error = data["error"]
    code = error.get("code") if isinstance(error, Mapping) else None
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return _problem(status, data)


def _text(content: Any) -> str | None:
    """A message's text: the string, or what of its parts is text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        )
    return None


def _usage(usage: Any) -> TokenUsage | None:
    if not isinstance(usage, Mapping):
        return None
    found = TokenUsage(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(usage.get("total_tokens")),
    )
    return None if found == TokenUsage() else found


# More than any model has ever written or read; above it somebody lies, and sums would overflow the wire's int64.
_MOST_TOKENS: Final = 1 << 40


def _count(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
        return value
    return None


def _word(text: Any) -> str:
    """A name of the protocol's, as short as those are."""
    return str(text)[:40] if isinstance(text, str) else "?"
