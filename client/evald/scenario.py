"""What a turn is held against: the expected answer, the scenario, the persona."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .chat import Message, ToolCall, collect_tool_calls
from .structs import value_to_python

if TYPE_CHECKING:
    from .v1 import context_pb2


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
        """The same. check: called from time to time where the data are large; may raise."""
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
        """The same. check: called from time to time where there are many; may raise."""
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
