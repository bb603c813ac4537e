"""The connector types of a server: checks, construction and test calls of connectors."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from evald.addresses import is_loopback
from evald.errors import InvalidInput
from evald.evaluator import config_problems, json_schema
from evald.fields import did_you_mean, duration_to_pb
from evald.structs import struct_to_dict
from evald.v1 import connector_service_pb2, message_pb2
from evald_server.config import Settings, split_address
from evald_server.remote.channels import read_tls_profiles
from evald_server.remote.dial_allowlist import Resolve
from evald_server.remote.errors import Refusal

from .connector import (
    AgentRequest,
    Connector,
    ConnectorFailure,
    ConnectorOptions,
    YieldToCalls,
    yield_to_calls,
)
from .grpc_agent import GrpcAgent
from .headers import HeaderSecrets
from .http_endpoint import HttpEndpoint
from .langgraph import LangGraph
from .openai_chat import OpenAiChat
from .replay import Replay
from .targets import AgentTargets

_TYPES: Final[tuple[type[Connector], ...]] = (OpenAiChat, HttpEndpoint, LangGraph, GrpcAgent, Replay)

_INDEX: Final = re.compile(r"\.(\d+)(?=[.\[]|$)")


class Connectors:
    """The connector types of a server. The constructor raises ValueError, which names the wrong setting."""

    def __init__(
        self,
        settings: Settings,
        resolve: Resolve | None = None,
        yield_to_calls: YieldToCalls = yield_to_calls,
    ) -> None:
        rules = settings.connector_allowed
        if rules is None:
            rules = ["*"] if is_loopback(split_address(settings.listen)[0]) else []
        try:
            targets = AgentTargets(rules, resolve)
        except ValueError as problem:
            raise ValueError(f"connector_allowed: {problem}") from None
        self.secrets = HeaderSecrets(settings.connector_secrets)
        self._options = ConnectorOptions(
            targets, self.secrets, read_tls_profiles(settings), settings.max_messages, yield_to_calls
        )
        self._types = {one.type_name: one for one in _TYPES}

    def types(self) -> list[connector_service_pb2.ConnectorType]:
        """Return the descriptions of all types, sorted by name."""
        return [
            connector_service_pb2.ConnectorType(
                type=name,
                label=one.label,
                description=" ".join((one.__doc__ or "").partition("\n\n")[0].split()),
                config_schema_json=json.dumps(json_schema(one.config_model)),
            )
            for name, one in sorted(self._types.items())
        ]

    def violations(
        self, pb: connector_service_pb2.Connector, path: str = "connector"
    ) -> list[tuple[str, str]]:
        """Return the problems of a connector as (path of the field, message)."""
        found = self.try_build(pb, path)
        return found if isinstance(found, list) else []

    def build(self, pb: connector_service_pb2.Connector) -> Connector:
        """Build a connector, without connecting. Raises ConnectorFailure with code CONNECTOR_CONFIG."""
        found = self.try_build(pb)
        if isinstance(found, list):
            raise ConnectorFailure("CONNECTOR_CONFIG", "; ".join(f"{field}: {text}" for field, text in found))
        return found

    def try_build(
        self, pb: connector_service_pb2.Connector, path: str = "connector"
    ) -> list[tuple[str, str]] | Connector:
        """Build a connector, without connecting, or return its problems: see `violations`."""
        found = self.secrets.violations(pb.headers, f"{path}.headers")
        connector = self._types.get(pb.type)
        if connector is None:
            hint = did_you_mean(pb.type, self._types) or f"; wanted one of {', '.join(sorted(self._types))}"
            return [*found, (f"{path}.type", f"unknown type {pb.type[:60]!r}{hint}")]
        data = struct_to_dict(pb.config)
        try:
            json.dumps(data, allow_nan=False)
        except ValueError:
            return [
                *found,
                (f"{path}.config", "got NaN or infinity, wanted finite numbers"),
            ]
        try:
            config: Any = connector.config_model.model_validate(data)
        except ValidationError as problem:
            return found + [
                (f"{path}.config{_dotted(one.path)}", one.message)
                for one in config_problems(problem, data, connector.config_model)
            ]
        try:
            built = connector(pb, config, self._options)
        except Refusal as problem:
            return [*found, (f"{path}.base_url", problem.message.removeprefix("target: "))]
        except InvalidInput as problem:
            return [*found, (f"{path}.{problem.path}", f"{problem.got}; wanted {problem.wanted}")]
        return found or built


def _dotted(pointer: str) -> str:
    """Convert a JSON Pointer to a field path: "/messages/3/role" to ".messages[3].role"."""
    return _INDEX.sub(r"[\1]", pointer.replace("/", "."))


async def try_connector(
    connector: Connector,
    message: str = "",
    headers: Mapping[str, str] | None = None,
    *,
    timeout_seconds: float = 120.0,
) -> connector_service_pb2.TestConnectorResponse:
    """Send one message to an agent in a new conversation, and return the outcome.

    message: "Hello" if empty. A recording answers its own user's first message instead.
    """
    said = connector.user_message([]) or message_pb2.ChatMessage(role="user", text=message or "Hello")
    request = AgentRequest(str(uuid4()), 1, [said], headers or {}, str(uuid4()))
    response = connector_service_pb2.TestConnectorResponse()
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_seconds):
            invocation = await connector.invoke(request)
    except TimeoutError:
        response.error = (
            f"CONNECTOR_TIMEOUT: no answer within {timeout_seconds:g} s, the time limit of a test"
        )
    except ConnectorFailure as failure:
        response.error = f"{failure.code}: {failure.message}"
    else:
        response.success = True
        if invocation.HasField("latency"):  # a recording may have none
            response.latency.CopyFrom(invocation.latency)
        response.messages.extend(invocation.messages)
        if invocation.HasField("token_usage"):
            response.token_usage.CopyFrom(invocation.token_usage)
        return response
    duration_to_pb(time.monotonic() - began, response.latency)
    return response
