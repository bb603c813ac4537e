"""Connectors built from a server's settings."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evald.chat import message_text
from evald.messages import fill_messages
from evald.structs import dict_to_struct
from evald.v1 import connector_service_pb2, context_pb2, message_pb2
from evald_server.config import Settings
from evald_server.connectors.build import Connectors
from evald_server.connectors.connector import AgentRequest, Connector, ConnectorFailure
from evald_server.remote.dial_allowlist import Resolve


def stored(
    kind: str,
    base_url: str = "",
    config: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> connector_service_pb2.Connector:
    """Return a stored connector."""
    pb = connector_service_pb2.Connector(name="agent", type=kind, base_url=base_url, headers=headers or {})
    dict_to_struct(config or {}, pb.config)
    return pb


def messages(*said: Any) -> Sequence[message_pb2.ChatMessage]:
    """Return a conversation; a text becomes a user message."""
    pb = context_pb2.Invocation()
    fill_messages(
        [{"role": "user", "content": one} if isinstance(one, str) else one for one in said], pb.messages
    )
    return pb.messages


def turn(*said: Any, **more: Any) -> AgentRequest:
    """Return the request of a turn. The conversation is "Hi" by default."""
    more.setdefault("request_id", "request-1")
    return AgentRequest("thread-1", 1, messages(*(said or ("Hi",))), **more)


def connectors(resolve: Resolve | None = None, **settings: Any) -> Connectors:
    """Return the connector types of a server with these settings. resolve: replaces the system's resolver."""
    return Connectors(Settings(**settings), resolve)


@asynccontextmanager
async def built(
    kind: str,
    base_url: str = "",
    config: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Connector]:
    """Yield a connector, and close it."""
    connector = connectors(**settings).build(stored(kind, base_url, config, headers))
    try:
        yield connector
    finally:
        await connector.aclose()


async def failure(connector: Connector, request: AgentRequest | None = None) -> ConnectorFailure:
    """Return the failure of a turn."""
    with pytest.raises(ConnectorFailure) as failed:
        await connector.invoke(request or turn())
    return failed.value


def texts(invocation: context_pb2.Invocation) -> list[tuple[str, str]]:
    """Return role and text of each message."""
    return [(message.role, message_text(message)) for message in invocation.messages]
