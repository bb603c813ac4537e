"""Parser of an endpoint's response: a chat completion, whole or as a stream of events, or an error.

The client's models are not used, because they are built without validation. A missing finish reason, a second choice
or a cut-off stream must be detected here, because each could turn a failure into a pass.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from evald.result import TokenUsage
from evald_server.untrusted import encodable

from .response_format import EndpointProblem

# No model reads or writes more tokens. Larger counts are wrong, and sums of them would overflow the wire's int64.
_MAX_TOKENS: Final = 1 << 40

# A request asks for one choice.
_MAX_CHOICES: Final = 100

# In characters.
_MAX_MODEL: Final = 200
_MAX_MESSAGE: Final = 4096


class ChatCompletion(NamedTuple):
    """A chat completion.

    text: None when the model returned no text. finish: the finish reason, "" when the endpoint gives none.
    refusal: "" when the model did not refuse. usage: None when not reported.
    choices: number of different choices.
    """

    text: str | None
    finish: str
    refusal: str
    model: str
    usage: TokenUsage | None
    calls_tools: bool = False
    choices: int = 1


class NotACompletion(ValueError):
    """The endpoint uses another protocol. The message describes the response that arrived instead."""


class CutOff(ValueError):
    """The body is incomplete."""


class ReportedProblem(Exception):
    """An error that the endpoint reports in a body with status 200. free: the model had not begun to answer."""

    def __init__(self, problem: EndpointProblem, *, free: bool) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.free = free


def parse_completion(content: bytes, content_type: str) -> ChatCompletion:
    """Parse a response body. Raises NotACompletion, CutOff and ReportedProblem."""
    media = content_type.partition(";")[0].strip().lower()
    if media == "text/event-stream" or content.startswith((b"data:", b"event:", b":")):
        return _from_events(content)
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        if media in ("", "application/json") and content.lstrip()[:1] in (b"", b"{"):
            raise CutOff(f"the JSON of its answer ends after {len(content)} bytes") from None
        raise NotACompletion(f"{media or 'a body'} that is not JSON") from None
    return _from_data(data)


def parse_problem(status: int, content: bytes) -> EndpointProblem:
    """Parse the body of an HTTP error."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return EndpointProblem(status)
    return _problem(status, data)


def _from_data(data: Any) -> ChatCompletion:
    if not isinstance(data, Mapping):
        raise NotACompletion("JSON that is not an object")
    found = []
    for item in _choices(data, f'an object "{_word(data.get("object"))}" without choices'):
        message = item.get("message")
        if not isinstance(message, Mapping):
            raise NotACompletion("a choice without a message")
        choice = _Choice()
        choice.add(message, item.get("finish_reason"))
        found.append(choice)
    return _completion(found, _model(data), _usage(data.get("usage")))


def _from_events(content: bytes) -> ChatCompletion:
    found: dict[str, _Choice] = {}
    model, usage = "", None
    for data in _events(content):
        if data is None:
            break
        if not isinstance(data, Mapping):
            raise NotACompletion("events that are not objects")
        kind = _word(data.get("type") or data.get("object"))
        for item in _choices(data, f'events "{kind}" without choices', begun=bool(found)):
            delta = item.get("delta")
            choice = found.setdefault(str(item.get("index") or 0), _Choice())
            choice.add(delta if isinstance(delta, Mapping) else {}, item.get("finish_reason"))
        model = _model(data) or model
        usage = _usage(data.get("usage")) or usage
    else:
        if not any(choice.finishes for choice in found.values()):
            raise CutOff("its stream ends without a finish reason")
    return _completion(found.values(), model, usage)


def _choices(data: Mapping[str, Any], otherwise: str, *, begun: bool = False) -> Iterator[Mapping[str, Any]]:
    choices = data.get("choices")
    if data.get("error"):  # even if there are choices as well
        raise _reported(data, free=not (begun or choices))
    if not isinstance(choices, list):
        raise NotACompletion(otherwise)
    if len(choices) > _MAX_CHOICES:
        raise NotACompletion(f"{len(choices)} choices")
    for choice in choices:
        if not isinstance(choice, Mapping):
            raise NotACompletion("a choice that is not an object")
        if choice.get("error"):
            raise _reported(choice, free=False)
        yield choice


class _Choice:
    """One choice of a completion, collected from its message or from the deltas of a stream."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.finishes: set[str] = set()
        self.calls_tools = False

    def add(self, message: Mapping[str, Any], finish: Any) -> None:
        """Add a message or a delta. finish: its finish reason, None when it has none."""
        text, refusal = _text(message.get("content")), _refusal(message)
        if text is not None:
            self.texts.append(text)
        if refusal is not None:
            self.refusals.append(refusal)
        if finish is not None:
            self.finishes.add(str(finish))
        self.calls_tools |= bool(message.get("tool_calls") or message.get("function_call"))

    def joined(self) -> tuple[str | None, str, str, bool]:
        """Return text, finish reason, refusal, and whether it calls tools.

        Several finish reasons are joined into an unknown one, so that the answer is rejected.
        """
        text = "".join(self.texts) if self.texts else None
        return text, " and ".join(sorted(self.finishes)), "".join(self.refusals), self.calls_tools


def _completion(choices: Iterable[_Choice], model: str, usage: TokenUsage | None) -> ChatCompletion:
    different = {choice.joined() for choice in choices}
    text, finish, refusal, calls_tools = next(iter(different), (None, "", "", False))
    return ChatCompletion(text, finish, refusal, model, usage, calls_tools, len(different))


def _events(content: bytes) -> Iterator[Any]:
    """Yield the parsed data of each event, and None for the end marker."""
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
            raise CutOff("an event of its stream is not JSON") from None


def _reported(data: Mapping[str, Any], *, free: bool) -> ReportedProblem:
    error = data["error"]
    code = error.get("code") if isinstance(error, Mapping) else None
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return ReportedProblem(_problem(status, data), free=free)


def _problem(status: int, data: Any) -> EndpointProblem:
    """Extract code, parameter and message, whose place differs between kinds of servers."""
    if isinstance(data, list):
        data = data[0] if data else None
    error = data.get("error", data) if isinstance(data, Mapping) else data
    if isinstance(error, str):
        return EndpointProblem(status, message=error[:_MAX_MESSAGE])
    if not isinstance(error, Mapping):
        return EndpointProblem(status)
    detail = error.get("message") or error.get("detail") or ""
    if isinstance(detail, Sequence) and not isinstance(detail, str):
        # pydantic's list of errors. Each error's copy of the input is left out.
        detail = "; ".join(map(_pydantic_error, detail))
    return EndpointProblem(
        status,
        code=str(error.get("code") or error.get("type") or ""),
        param=str(error.get("param") or ""),
        message=detail[:_MAX_MESSAGE] if isinstance(detail, str) else "",
    )


def _pydantic_error(error: Any) -> str:
    if not isinstance(error, Mapping):
        return ""
    place = error.get("loc")
    path = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"{path}: {error.get('msg', '')}"


def _text(content: Any) -> str | None:
    """Return a message's text: the string itself, or its parts of type text, joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        )
    return None


def _refusal(message: Mapping[str, Any]) -> str | None:
    """Return the refusal of a message or of a part of its content; None if there is none."""
    refusal = _text(message.get("refusal"))
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "refusal":
            refusal = (
                f"{refusal or ''}{_text(part.get('refusal')) or _text(part.get('text')) or 'no reason given'}"
            )
    return refusal


def _usage(usage: Any) -> TokenUsage | None:
    if not isinstance(usage, Mapping):
        return None
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    found = TokenUsage(*(_token_count(usage.get(key)) for key in keys))
    return None if found == TokenUsage() else found


def _token_count(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TOKENS:
        return value
    return None


def _model(data: Mapping[str, Any]) -> str:
    """Return the name of the model that answered, "" when there is none."""
    name = data.get("model")
    return encodable(name[:_MAX_MODEL]) if isinstance(name, str) else ""


def _word(text: Any) -> str:
    """Return a protocol name, shortened for an error message."""
    return text[:40] if isinstance(text, str) else "?"
