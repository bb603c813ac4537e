"""What a run knows of a connector: one turn in, one `Invocation` out."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel

from evald.evaluator import CONFIG_MODEL
from evald.v1 import connector_service_pb2, context_pb2, message_pb2
from evald_server.remote.channels import DialTls

from .headers import HeaderSecrets
from .targets import AgentTargets

ChatMessages: TypeAlias = Sequence[message_pb2.ChatMessage]

FailureCode: TypeAlias = Literal[
    "CONNECTOR_UNAVAILABLE",  # nobody answers, or with an error of its own
    "CONNECTOR_TIMEOUT",
    "CONNECTOR_REFUSED",  # the agent does not accept the request
    "CONNECTOR_BAD_ANSWER",
    "CONNECTOR_CONFIG",
]


class AgentRequest(NamedTuple):
    """One turn for an agent.

    thread_id: of the conversation, the same in all its turns. turn: from 1. messages: the conversation so far.
    headers: of the persona; they go before the connector's own. request_id: the same when a turn is sent again.
    """

    thread_id: str
    turn: int
    messages: ChatMessages
    headers: Mapping[str, str] = {}
    request_id: str = ""


class ConnectorFailure(Exception):
    """The agent gave no answer that can be evaluated. retryable: the same request may work later."""

    def __init__(self, code: FailureCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class ConnectorConfig(BaseModel):
    """Base class of the configs."""

    model_config = CONFIG_MODEL


GiveWay: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until work may hold the event loop for about half a millisecond."""


async def give_way() -> None:
    """Wait for nothing but what is ready already."""
    await asyncio.sleep(0)


class ConnectorOptions(NamedTuple):
    """What all connectors of a server share.

    tls: TLS profiles by name. max_messages: most messages of an answer. give_way: awaited before an answer is read.
    """

    targets: AgentTargets
    secrets: HeaderSecrets
    tls: Mapping[str, DialTls]
    max_messages: int
    give_way: GiveWay = give_way


class Connector(ABC):
    """Base class of the connectors: calls one agent. The first paragraph of a subclass's docstring is its description.

    A constructor does no input and output. It raises Refusal for an address, and InvalidInput for a part of the
    config that the schema cannot check.
    """

    type_name: ClassVar[str]
    label: ClassVar[str]
    config_model: ClassVar[type[ConnectorConfig]]

    @abstractmethod
    def __init__(self, pb: connector_service_pb2.Connector, config: Any, options: ConnectorOptions) -> None:
        """Build one from what is stored."""

    @abstractmethod
    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Return the agent's answer: at least one message, and what is known of it. Raises ConnectorFailure."""

    def user_message(self, messages: ChatMessages) -> message_pb2.ChatMessage | None:
        """Return what the recorded user says next; None when there is nothing more, or no recording."""
        return None

    @property
    def brings_user(self) -> bool:
        """Whether the user's messages come from here. Each answer is then the whole turn, as it was recorded."""
        return False

    @property
    def opening(self) -> ChatMessages:
        """What was recorded before the user's first message; a run without messages of its own begins with it."""
        return ()

    async def aclose(self) -> None:
        """Close all connections."""
        return
