"""The interface of connectors: one turn in, one `Invocation` out."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, Field

from evald.evaluator import CONFIG_MODEL
from evald.v1 import connector_service_pb2, context_pb2, message_pb2
from evald_server.remote.channels import DialTls

from .headers import HeaderSecrets
from .targets import AgentTargets

ChatMessages: TypeAlias = Sequence[message_pb2.ChatMessage]

FailureCode: TypeAlias = Literal[
    "CONNECTOR_UNAVAILABLE",  # no answer, or the agent's own error
    "CONNECTOR_TIMEOUT",
    "CONNECTOR_REFUSED",  # the agent does not accept the request
    "CONNECTOR_BAD_ANSWER",
    "CONNECTOR_CONFIG",
]


class AgentRequest(NamedTuple):
    """One turn for an agent.

    thread_id: id of the conversation, the same in all its turns. turn: from 1. messages: the conversation so far.
    headers: of the persona; they override the connector's own. request_id: the same when a turn is sent again.
    """

    thread_id: str
    turn: int
    messages: ChatMessages
    headers: Mapping[str, str] = {}
    request_id: str = ""


class ConnectorFailure(Exception):
    """The agent gave no answer that can be evaluated. retryable: whether the same request may succeed later."""

    def __init__(self, code: FailureCode, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable


class ConnectorConfig(BaseModel):
    """Base class of the connectors' configs."""

    model_config = CONFIG_MODEL


AnswerSeconds: TypeAlias = Annotated[
    float, Field(gt=0, le=3600, allow_inf_nan=False, description="Time limit of one answer, in seconds.")
]

YieldToCalls: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until its caller may hold the event loop for about half a millisecond."""


async def yield_to_calls() -> None:
    """Let tasks run that are ready now."""
    await asyncio.sleep(0)


class ConnectorOptions(NamedTuple):
    """The data that all connectors of a server share.

    tls: TLS profiles by name. max_messages: limit of messages per answer. yield_to_calls: awaited before an answer is parsed.
    """

    targets: AgentTargets
    secrets: HeaderSecrets
    tls: Mapping[str, DialTls]
    max_messages: int
    yield_to_calls: YieldToCalls = yield_to_calls


class Connector(ABC):
    """Base class of the connectors: calls one agent. Users see the first paragraph of a subclass's docstring.

    A constructor does no I/O. It raises Refusal for a wrong address, and InvalidInput for a wrong part of the config
    that the schema cannot check.
    """

    type_name: ClassVar[str]
    label: ClassVar[str]
    config_model: ClassVar[type[ConnectorConfig]]
    pauses: ClassVar[bool] = False
    """Whether the agent stops at a tool call, or after its result, and goes on when it is called again without news. Other
    connectors return the whole answer, also one that ends with a tool call."""

    @abstractmethod
    def __init__(self, pb: connector_service_pb2.Connector, config: Any, options: ConnectorOptions) -> None:
        """Build a connector from its stored message. config: the parsed `pb.config`."""

    @abstractmethod
    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Return the agent's answer: at least one message, with usage, cost and times where known.

        Raises ConnectorFailure.
        """

    def user_message(self, messages: ChatMessages) -> message_pb2.ChatMessage | None:
        """Return the next message of the recorded user; None at the recording's end, or without a recording."""
        return None

    @property
    def brings_user(self) -> bool:
        """Whether the connector has the user's messages too. Each answer is then the whole recorded turn."""
        return False

    @property
    def opening(self) -> ChatMessages:
        """The messages recorded before the user's first one; a run without own messages begins with them."""
        return ()

    async def aclose(self) -> None:
        """Close all connections."""
        return
