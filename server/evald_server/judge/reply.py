"""What an endpoint answers: a chat completion, whole or as a stream of events, or something else."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald.result import TokenUsage

from .forms import Problem


class Reply(NamedTuple):
    """A chat completion.

    text: what the model said, None when it said nothing. finish: why it stopped, "" when the endpoint does
    not say. refusal: why it would not answer, "" when it did. usage: None when not reported.
    choices: how many different answers the completion holds.
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
    found = []
    for choice in choices:
        if not isinstance(choice, Mapping):
            raise NotACompletion("a choice that is no object")
        if choice.get("error"):
            raise Reported(_reported(choice))
        message = choice.get("message")
        if not isinstance(message, Mapping):
            raise NotACompletion("a choice without a message")
        found.append(_Choice())
        found[-1].add(message, choice.get("finish_reason"))
    return _reply(found, model, usage)


def _from_events(content: bytes) -> Reply:
    found: dict[str, _Choice] = {}
    model, usage = "", None
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
        for choice in choices:
            if not isinstance(choice, Mapping):
                raise NotACompletion("a choice that is no object")
            delta = choice.get("delta")
            index = str(choice.get("index") or 0)
            found.setdefault(index, _Choice()).add(
                delta if isinstance(delta, Mapping) else {}, choice.get("finish_reason")
            )
    else:
        if not any(choice.finishes for choice in found.values()):
            raise BrokeOff("its stream ends without a finish reason")
    return _reply(found.values(), model, usage)


class _Choice:
    """One answer of a completion, put together from its message or from the pieces of a stream."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.finishes: set[str] = set()
        self.calls_tools = False

    def add(self, message: Mapping[str, Any], finish: Any) -> None:
        """Add a message, or what an event brings of it. finish: None where it goes on, or does not say."""
        text, refusal = _text(message.get("content")), _text(message.get("refusal"))
        if text is not None:
            self.texts.append(text)
        if refusal is not None:
            self.refusals.append(refusal)
        if finish is not None:
            self.finishes.add(str(finish))
        self.calls_tools |= bool(message.get("tool_calls") or message.get("function_call"))

    def whole(self) -> tuple[str | None, str, str, bool]:
        """Text, finish reason, refusal, and whether it calls tools.

        Two finish reasons become one that nobody knows, so that the answer is refused.
        """
        text = "".join(self.texts) if self.texts else None
        return text, " and ".join(sorted(self.finishes)), "".join(self.refusals), self.calls_tools


def _reply(choices: Iterable[_Choice], model: str, usage: TokenUsage | None) -> Reply:
    different = {choice.whole() for choice in choices}
    text, finish, refusal, calls_tools = next(iter(different), (None, "", "", False))
    return Reply(text, finish, refusal, model, usage, calls_tools, len(different))


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
