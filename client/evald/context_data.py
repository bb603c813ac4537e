"""What a context holds beside its messages: the agent's report on the turn, and what the turn is held against."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .chat import UNREAD, Message, ToolCall, collect_tool_calls
from .records import read_cost_usd, read_usage
from .result import TokenUsage
from .structs import duration_ms, struct_to_dict, value_to_python

if TYPE_CHECKING:
    from .v1 import context_pb2


class Invocation:
    """The agent's report on the turn. None always means not reported."""

    __slots__ = ("_latency_ms", "_pb", "_token_usage")

    def __init__(self, pb: "context_pb2.Invocation") -> None:
        self._pb = pb
        self._latency_ms: Any = UNREAD
        self._token_usage: Any = UNREAD

    @property
    def latency_ms(self) -> float | None:
        """Milliseconds from request to complete answer."""
        if self._latency_ms is UNREAD:
            self._latency_ms = duration_ms(self._pb.latency) if self._pb.HasField("latency") else None
        return self._latency_ms  # type: ignore[no-any-return]

    @property
    def time_to_first_token_ms(self) -> float | None:
        """Milliseconds to the first token, when the agent streams."""
        if not self._pb.HasField("time_to_first_token"):
            return None
        return duration_ms(self._pb.time_to_first_token)

    @property
    def token_usage(self) -> TokenUsage | None:
        """Token usage of the turn."""
        if self._token_usage is UNREAD:
            pb = self._pb
            self._token_usage = read_usage(pb.token_usage) if pb.HasField("token_usage") else None
        return self._token_usage  # type: ignore[no-any-return]

    @property
    def total_tokens(self) -> int | None:
        """`token_usage.total`; None also without any usage."""
        usage = self.token_usage
        return None if usage is None else usage.total

    @property
    def cost_usd(self) -> float | None:
        """Cost in US dollars; None also when it is in another currency."""
        return read_cost_usd(self._pb)

    @property
    def model(self) -> str | None:
        """Model that answered, as the agent names it."""
        return self._pb.model if self._pb.HasField("model") else None

    def metadata_text(self, key: str) -> str | None:
        """Return one text of the metadata without reading the rest; None when the key holds no text."""
        fields = self._pb.metadata.fields
        if key not in fields or not fields[key].HasField("string_value"):
            return None
        return fields[key].string_value

    @property
    def metadata(self) -> dict[str, Any]:
        """Further data, for example "finish_reason"."""
        return struct_to_dict(self._pb.metadata)


class Expected:
    """The reference to compare with."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Expected") -> None:
        self._pb = pb

    @property
    def text(self) -> str | None:
        """Expected answer; None when there is none."""
        return self._pb.text if self._pb.HasField("text") else None

    @property
    def has_data(self) -> bool:
        """Whether there is an expected answer as data; null is data too."""
        return self._pb.HasField("data")

    @property
    def data(self) -> Any:
        """Expected answer as data. None both for null and for none: see has_data."""
        return value_to_python(self._pb.data)

    def read_data(self, check: Callable[[], None]) -> Any:
        """Return `data`. check: called regularly while the data are read; may raise to stop the work."""
        return value_to_python(self._pb.data, check)

    @property
    def messages(self) -> list[Message]:
        """Expected messages; empty when there are none."""
        return [Message(pb) for pb in self._pb.messages]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls of the expected assistant messages, in order."""
        return collect_tool_calls(self._pb.messages, path="expected.messages")

    def read_tool_calls(self, check: Callable[[], None]) -> list[ToolCall]:
        """Return `tool_calls`. check: called regularly while they are read; may raise to stop the work."""
        return collect_tool_calls(self._pb.messages, check, path="expected.messages")


class Scenario:
    """What the conversation is meant to test."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Scenario") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """Stable name."""
        return self._pb.name

    @property
    def instructions(self) -> str | None:
        """Instructions given to the simulated user or to the judge."""
        return self._pb.instructions if self._pb.HasField("instructions") else None

    @property
    def max_messages(self) -> int | None:
        """Largest number of messages that the scenario allows."""
        return self._pb.max_messages if self._pb.HasField("max_messages") else None

    @property
    def success_criteria(self) -> str | None:
        """Says in plain language when the scenario has succeeded."""
        return self._pb.success_criteria if self._pb.HasField("success_criteria") else None

    @property
    def failure_criteria(self) -> str | None:
        """Says in plain language when the scenario has failed."""
        return self._pb.failure_criteria if self._pb.HasField("failure_criteria") else None


class Persona:
    """The simulated user."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Persona") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """Stable name."""
        return self._pb.name

    @property
    def description(self) -> str | None:
        """Description given to the simulator."""
        return self._pb.description if self._pb.HasField("description") else None
