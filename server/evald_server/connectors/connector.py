"""The seam between runs and agents."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from evald.v1 import context_pb2, message_pb2


class AgentRequest(NamedTuple):
    """What an agent is asked. messages: the whole conversation, oldest first."""

    thread_id: str
    turn: int
    messages: Sequence[message_pb2.ChatMessage]
    headers: Mapping[str, str]
    request_id: str


class ConnectorFailure(Exception):
    """An agent gave no answer. code: one of the CONNECTOR_ ones."""

    def __init__(self, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class Connector(Protocol):
    """Reaches one agent."""

    @property
    def brings_user(self) -> bool:
        """Whether `user_message` says what the user says: True for recordings."""

    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Return the agent's answer: at least one message, and the latency. Raises ConnectorFailure."""

    def user_message(self, messages: Sequence[message_pb2.ChatMessage]) -> message_pb2.ChatMessage | None:
        """Return what the recorded user says next; None when there is nothing more."""

    @property
    def opening(self) -> Sequence[message_pb2.ChatMessage]:
        """What was recorded before the user's first message."""

    async def aclose(self) -> None:
        """Close connections."""
