"""Read messages of other frameworks, recognised by attributes and keys without importing the frameworks.

`FAMILIES` lists the readers in the order of trial: add new ones before "messages with a role". A reader is a
function of `value`, the caller's object, and `data`, the same as plain data. It returns a Reading, or None for a value
that it does not recognise. A complete response is read in `responses`; larger families have a file of their own.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from ..call_shapes import call_ids, unread_calls
from ..errors import InvalidInput, errors_below
from ..fields import plain, shown
from . import (
    autogen,
    langchain,
    openai_agents,
    openai_responses,
    pydantic_ai,
    responses,
    role_messages,
)
from .reading import Reading
from .usage import add_usages, read_usage

__all__ = [
    "FAMILIES",
    "KNOWN",
    "Reading",
    "Readings",
    "later",
    "read_all",
    "read_item",
    "read_one",
    "read_usage",
    "turn_start",
]


Reader: TypeAlias = Callable[[Any, Mapping[str, Any]], Reading | None]
"""The type of a reader. It returns None for values of other families, and raises InvalidInput for invalid ones."""

FAMILIES: Final[Mapping[str, Reader]] = {
    "OpenAI Agents": openai_agents.read,
    "Pydantic AI": pydantic_ai.read,
    "OpenAI chat completions": responses.read_openai_chat,
    "OpenAI Responses": openai_responses.read,
    "Anthropic": responses.read_anthropic,
    "Google GenAI": responses.read_google,
    "Google ADK": responses.read_google_adk,
    "Bedrock and Strands": responses.read_bedrock,
    "AutoGen": autogen.read,
    "LangChain and LangGraph": langchain.read,
    "MCP tool results": responses.read_mcp,
    "messages with a role: OpenAI, Anthropic, AI SDK, OTel GenAI, Google, Bedrock": role_messages.read,
}
"""The readers by the name of the family, which errors show."""

KNOWN: Final = "; known formats: " + ", ".join(FAMILIES)
"""The names of all families, for errors."""

_WANTED: Final = f'a message: an object with `role` and `content`, a pair ("user", "text"){KNOWN}'


def read_one(value: Any) -> Reading | None:
    """Read a value of any family. Returns None when no family recognises it. Raises InvalidInput."""
    if _is_pair(value):
        return Reading([{"role": role_messages.ROLES.get(value[0], value[0]), "content": value[1]}])
    data = plain(value)
    known = data if isinstance(data, Mapping) else {}
    for read in FAMILIES.values():
        reading = read(value, known)
        if reading is not None:
            return reading
    if known and isinstance(known.get("messages"), list | tuple):
        return read_all(known["messages"], "messages")
    return None


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and value[0].isidentifier()
    )


def read_item(value: Any, ids: set[str] | None = None) -> Reading:
    """Read one item of a list of messages. What looks like a tool call and was not read is in `unread_calls`.

    ids: the ids of calls in the items before; those of this item are added.

    Raises InvalidInput, also if no family recognises the item.
    """
    reading = read_one(value)
    data = plain(value)
    if reading is None:
        if isinstance(data, Mapping):
            role = data.get("role")
            got = "missing" if role is None else shown(role)
            raise InvalidInput("role", f"{got}, in {shown(data).removeprefix('got ')}", _WANTED)
        raise InvalidInput("", shown(value), _WANTED)
    messages, ids = reading.messages, set() if ids is None else ids
    ids.update(call_ids(messages))
    if messages and isinstance(data, Mapping):
        if "role" not in data:  # a list of messages, each of which was looked at
            data = {key: item for key, item in data.items() if key not in _ITEMS}
        unread = unread_calls(data, messages, ids)
        marked = next((m for m in reversed(messages) if m["role"] == "assistant"), messages[-1])
        for message in messages:
            message.setdefault("unread_calls", [])
        marked["unread_calls"] = [*marked["unread_calls"], *unread]
    return reading


_ITEMS: Final = frozenset(("messages", "inner_messages", "chat_message"))


def read_all(values: Iterable[Any], path: str) -> Reading:
    """Read several values as one reading. Raises InvalidInput with the path of the invalid one."""
    found = Readings()
    messages: list[dict[str, Any]] = []
    ids: set[str] = set()
    for index, value in enumerate(values):
        with errors_below(f"{path}[{index}]"):
            reading = read_item(value, ids)
        found.add(len(messages), reading)
        messages.extend(reading.messages)
    start = turn_start([message["role"] for message in messages])
    return found.summed(messages, start)


def turn_start(roles: list[str]) -> int:
    """Return the index of the first message after the last user message."""
    start = len(roles)
    while start and roles[start - 1] != "user":
        start -= 1
    return start


class Readings:
    """Collects the readings of a conversation and merges their data about its last turn."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[tuple[int, Reading]] = []

    def add(self, start: int, reading: Reading) -> None:
        """Add a reading. start: index of its first message in the conversation."""
        self._found.append((start, reading))

    def summed(self, messages: list[dict[str, Any]], start: int) -> Reading:
        """Merge all readings into one with these messages. Usage and the like are those of the last turn.

        start: index of the first message of the turn, unless a reading states another one.
        """
        new: int | None = None
        for begin, reading in self._found:
            if reading.new is not None:
                new = begin + reading.new
        invocations = [(begin, reading.invocation) for begin, reading in self._found if reading.invocation]
        if new is None and invocations:
            new = min(begin for begin, invocation in invocations if invocation == invocations[-1][1])
        turn = start if new is None else new
        of_turn = [reading for begin, reading in self._found if begin + max(len(reading.messages), 1) > turn]

        def last(name: str) -> Any:
            return next(
                (value for reading in reversed(of_turn) if (value := getattr(reading, name)) is not None),
                None,
            )

        usages = [reading.usage for reading in of_turn if reading.usage is not None]
        return Reading(
            messages,
            usage=usages[0] if len(usages) == 1 else add_usages(usages) if usages else None,
            model=last("model"),
            finish_reason=last("finish_reason"),
            response_id=last("response_id"),
            latency_seconds=last("latency_seconds"),
            new=new,
            metadata=last("metadata"),
        )


def later(earlier: Reading, last: Reading) -> Reading:
    """Merge two readings of one turn: add up their tokens; for other data the later reading has priority."""
    usages = [usage for usage in (earlier.usage, last.usage) if usage is not None]
    said = {name: getattr(earlier if getattr(last, name) is None else last, name) for name in _LAST}
    return last._replace(usage=add_usages(usages) if usages else None, **said)


_LAST: Final = ("model", "finish_reason", "response_id", "latency_seconds", "metadata")
