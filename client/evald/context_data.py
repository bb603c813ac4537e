"""The data of a context beside its messages: the agent's report, the expected answer, the scenario and the persona."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .chat import UNREAD, Message, ToolCall, collect_tool_calls, without_reasoning
from .records import read_cost_usd, read_usage
from .result import TokenUsage
from .structs import duration_ms, struct_to_dict, value_to_python

if TYPE_CHECKING:
    from .v1 import context_pb2


class Invocation:
    """The agent's report about the turn. None always means not reported."""

    __slots__ = ("_latency_ms", "_pb", "_token_usage")

    def __init__(self, pb: "context_pb2.Invocation") -> None:
        self._pb = pb
        self._latency_ms: Any = UNREAD
        self._token_usage: Any = UNREAD

    @property
    def latency_ms(self) -> float | None:
        """The milliseconds from request to complete answer."""
        if self._latency_ms is UNREAD:
            self._latency_ms = duration_ms(self._pb.latency) if self._pb.HasField("latency") else None
        return self._latency_ms  # type: ignore[no-any-return]

    @property
    def time_to_first_token_ms(self) -> float | None:
        """The milliseconds to the first token, for agents that stream."""
        if not self._pb.HasField("time_to_first_token"):
            return None
        return duration_ms(self._pb.time_to_first_token)

    @property
    def token_usage(self) -> TokenUsage | None:
        """The token usage of the turn."""
        if self._token_usage is UNREAD:
            pb = self._pb
            self._token_usage = read_usage(pb.token_usage) if pb.HasField("token_usage") else None
        return self._token_usage  # type: ignore[no-any-return]

    @property
    def total_tokens(self) -> int | None:
        """The value of `token_usage.total`; None also without token usage."""
        usage = self.token_usage
        return None if usage is None else usage.total

    @property
    def cost_usd(self) -> float | None:
        """The cost in US dollars; None also for another currency."""
        return read_cost_usd(self._pb)

    @property
    def model(self) -> str | None:
        """The model that answered, as the agent names it."""
        return self._pb.model if self._pb.HasField("model") else None

    def metadata_text(self, key: str) -> str | None:
        """Return one text of the metadata without converting the rest; None if the value is not a text."""
        fields = self._pb.metadata.fields
        if key not in fields or not fields[key].HasField("string_value"):
            return None
        return fields[key].string_value

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped: the metadata's `finish_reason`, `finishReason` or `stop_reason`."""
        texts = map(self.metadata_text, ("finish_reason", "finishReason", "stop_reason"))
        return next((text for text in texts if text is not None), None)

    @property
    def metadata(self) -> dict[str, Any]:
        """Other reported data, for example "finish_reason"."""
        return struct_to_dict(self._pb.metadata)


class Expected:
    """The expected answer, as a reference for evaluators."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Expected") -> None:
        self._pb = pb

    @property
    def text(self) -> str | None:
        """The expected answer; None if there is none."""
        return self._pb.text if self._pb.HasField("text") else None

    @property
    def has_data(self) -> bool:
        """True if the expected answer is given as data; null is data too."""
        return self._pb.HasField("data")

    @property
    def data(self) -> Any:
        """The expected answer as data. None means null or no data: see `has_data`."""
        return value_to_python(self._pb.data)

    def read_data(self, check: Callable[[], None]) -> Any:
        """Return `data`. check: called regularly while the data are converted; may raise to stop."""
        return value_to_python(self._pb.data, check)

    @property
    def messages(self) -> list[Message]:
        """The expected messages, without reasoning in their texts; empty if there are none."""
        return [Message(without_reasoning(pb)) for pb in self._pb.messages]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the expected assistant messages, in order. Raises UnreadableContent."""
        return collect_tool_calls(self._pb.messages, path="expected.messages")

    def read_tool_calls(self, check: Callable[[], None]) -> list[ToolCall]:
        """Return `tool_calls`. check: called regularly while they are read; may raise to stop."""
        return collect_tool_calls(self._pb.messages, check, path="expected.messages")


class Scenario:
    """The scenario that the conversation tests."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Scenario") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """The stable name."""
        return self._pb.name

    @property
    def instructions(self) -> str | None:
        """The instructions for the simulated user or the judge."""
        return self._pb.instructions if self._pb.HasField("instructions") else None

    @property
    def max_messages(self) -> int | None:
        """The maximum number of messages in the scenario."""
        return self._pb.max_messages if self._pb.HasField("max_messages") else None

    @property
    def success_criteria(self) -> str | None:
        """The condition of success, in plain language."""
        return self._pb.success_criteria if self._pb.HasField("success_criteria") else None

    @property
    def failure_criteria(self) -> str | None:
        """The condition of failure, in plain language."""
        return self._pb.failure_criteria if self._pb.HasField("failure_criteria") else None


class Persona:
    """The simulated user."""

    __slots__ = ("_pb",)

    def __init__(self, pb: "context_pb2.Persona") -> None:
        self._pb = pb

    @property
    def name(self) -> str:
        """The stable name."""
        return self._pb.name

    @property
    def description(self) -> str | None:
        """The description for the simulator."""
        return self._pb.description if self._pb.HasField("description") else None
