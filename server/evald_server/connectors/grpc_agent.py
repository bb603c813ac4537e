"""Connector `grpc`: an agent that serves `evald.agent.v1.AgentService`."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from pydantic import Field

from evald.agent.v1 import agent_service_pb2
from evald.errors import InvalidInput
from evald.fields import did_you_mean
from evald.messages import parse_messages_json
from evald.structs import struct_to_dict
from evald.v1 import connector_service_pb2, context_pb2
from evald_server.engine.contexts import InvalidContext, check_invocation
from evald_server.loop import in_thread_if_large
from evald_server.redaction import Redactor
from evald_server.remote.channels import NotConnected, connect, open_channel
from evald_server.remote.errors import printable
from evald_server.retries import RetryBackoff
from evald_server.wire_limits import BeyondWireLimit, parse_message

from .answers import MAX_ANSWER_BYTES, bad_answer, check_messages
from .connector import (
    AgentRequest,
    AnswerSeconds,
    ConnectorConfig,
    ConnectorFailure,
    ConnectorOptions,
    FailureCode,
)
from .headers import ResolvedHeaders, without_secrets
from .network_agent import NetworkAgent

_METHOD: Final = "/evald.agent.v1.AgentService/Invoke"
_CONNECT_SECONDS: Final = 5.0
_READY: Final = grpc.ChannelConnectivity.READY
_SLACK_BYTES: Final = 64 << 10
_LARGE: Final = "larger than max"

_Code = grpc.StatusCode
_REFUSED: Final = frozenset(
    (
        _Code.INVALID_ARGUMENT,
        _Code.NOT_FOUND,
        _Code.ALREADY_EXISTS,
        _Code.PERMISSION_DENIED,
        _Code.UNAUTHENTICATED,
        _Code.FAILED_PRECONDITION,
        _Code.OUT_OF_RANGE,
        _Code.UNIMPLEMENTED,
    )
)


class GrpcConfig(ConnectorConfig):
    """Config of `grpc`."""

    tls: str | None = Field(
        None, description="Name of a TLS profile of the server's setting remote_tls. Default: no TLS."
    )
    timeout_seconds: AnswerSeconds = 60.0
    max_attempts: int = Field(3, ge=1, le=10, description="Maximum attempts to connect.")


class GrpcAgent(NetworkAgent):
    """An agent in any language that serves evald.agent.v1.AgentService. base_url is a gRPC target."""

    type_name = "grpc"
    label = "gRPC"
    config_model = GrpcConfig

    def __init__(
        self, pb: connector_service_pb2.Connector, config: GrpcConfig, options: ConnectorOptions
    ) -> None:
        super().__init__(pb, config, options)
        _check_names(pb.headers)
        self._target = options.targets.read_grpc(pb.base_url)
        self._config = config
        self._tls = None
        if config.tls is not None:
            self._tls = options.tls.get(config.tls)
            if self._tls is None:
                known = ", ".join(options.tls) or "none"
                hint = did_you_mean(config.tls, options.tls)
                raise InvalidInput(
                    "config.tls", f"unknown profile {config.tls[:60]!r}", f"one of: {known}{hint}"
                )
        self._channel: grpc.aio.Channel | None = None
        self._calls: Counter[grpc.aio.Channel] = Counter()  # open calls
        self._opening = asyncio.Lock()
        self._backoff = RetryBackoff()

    async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
        """See NetworkAgent."""
        try:
            _check_names(headers.values)
        except InvalidInput as problem:
            raise ConnectorFailure("CONNECTOR_CONFIG", str(problem)) from None
        channel = await self._connected()
        pb = agent_service_pb2.InvokeRequest(
            thread_id=request.thread_id,
            turn=request.turn,
            messages=request.messages,
            request_id=request.request_id,
        )
        invoke: Any = channel.unary_unary(_METHOD)
        began = time.monotonic()
        self._calls[channel] += 1
        try:
            data = await invoke(
                pb.SerializeToString(),
                timeout=self._config.timeout_seconds,
                metadata=tuple(headers.values.items()),
            )
        except grpc.aio.AioRpcError as problem:
            raise self._failed(problem, headers.redactor) from None
        finally:
            self._calls[channel] -= 1
            if channel is not self._channel:
                await self._close_unused(channel)
        seconds = time.monotonic() - began
        await self._options.yield_to_calls()
        if len(data) > MAX_ANSWER_BYTES:
            raise bad_answer(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        return await in_thread_if_large(len(data), self._read, data, headers.secrets, seconds)

    def _read(self, data: bytes, secrets: frozenset[str], seconds: float) -> context_pb2.Invocation:
        """Parse an answer. seconds: its latency. May run in a thread. Raises ConnectorFailure."""
        try:
            invocation = parse_message(agent_service_pb2.InvokeResponse, data).invocation
        except BeyondWireLimit as problem:
            raise bad_answer(f"{problem.path}: {problem.got}") from None
        except DecodeError:
            raise bad_answer(
                "cannot parse InvokeResponse from the answer: the bytes are invalid, or a string is not UTF-8"
            ) from None
        invocation = without_secrets(invocation, secrets)
        self._complete(invocation, seconds)
        return invocation

    def _complete(self, invocation: context_pb2.Invocation, seconds: float) -> None:
        """Parse messages sent as JSON, check the numbers, and fill in the latency. Raises ConnectorFailure."""
        if invocation.messages_json:
            if invocation.messages:
                raise bad_answer("invocation: got both messages and messages_json, wanted one of them")
            try:
                parse_messages_json(
                    invocation.messages_json, invocation.messages, max_messages=self._options.max_messages
                )
            except InvalidInput as problem:
                raise bad_answer(f"invocation.{problem}") from None
            invocation.ClearField("messages_json")
        check_messages(invocation, self._options.max_messages)
        for index, message in enumerate(invocation.messages):
            try:
                for struct in (message.metadata, *(block.fields for block in message.blocks.items)):
                    json.dumps(struct_to_dict(struct), allow_nan=False)
            except ValueError:
                raise bad_answer(
                    f"invocation.messages[{index}]: got NaN or infinity, wanted finite numbers"
                ) from None
        try:
            check_invocation(invocation, "invocation")
        except InvalidContext as problem:
            raise bad_answer(problem.message) from None
        if not invocation.HasField("latency"):
            invocation.latency.FromNanoseconds(round(seconds * 1_000_000_000))

    async def aclose(self) -> None:
        """See Connector."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _close_unused(self, channel: grpc.aio.Channel) -> None:
        """Close a replaced channel, unless it has calls: closing would cancel them, and the last one closes it."""
        if not self._calls[channel]:
            del self._calls[channel]
            await channel.close()

    async def _connected(self) -> grpc.aio.Channel:
        """Return a channel that is connected to a checked address. Raises ConnectorFailure and Refusal."""
        async with self._opening:
            for attempt in range(1, self._config.max_attempts + 1):
                if self._channel is not None and self._channel.get_state() is _READY:
                    return self._channel
                replaced, self._channel = self._channel, None
                if replaced is not None:
                    await self._close_unused(replaced)
                try:
                    dial = await self._options.targets.resolver.dial(self._target)
                    self._channel = open_channel(dial, self._tls, MAX_ANSWER_BYTES + _SLACK_BYTES)
                    await connect(self._channel, min(_CONNECT_SECONDS, self._config.timeout_seconds))
                except (NotConnected, OSError) as problem:
                    if attempt == self._config.max_attempts:
                        why = "its host name cannot be resolved" if isinstance(problem, OSError) else problem
                        raise ConnectorFailure(
                            "CONNECTOR_UNAVAILABLE",
                            f"the agent at {self._target} cannot be reached ({why}); "
                            "is it running, and are base_url and config.tls right?",
                            retryable=True,
                        ) from None
                    await asyncio.sleep(self._backoff.delay(attempt, None))
            assert self._channel is not None
            return self._channel

    def _failed(self, problem: grpc.aio.AioRpcError, redactor: Redactor) -> ConnectorFailure:
        status, said = problem.code(), printable(redactor.redact_text(problem.details() or ""))
        where = f"the agent at {self._target}"
        if status is _Code.DEADLINE_EXCEEDED:
            limit = f"{self._config.timeout_seconds:g} s; config.timeoutSeconds allows more"
            return ConnectorFailure(
                "CONNECTOR_TIMEOUT", f"{where}: no complete answer within {limit}", retryable=True
            )
        if status is _Code.RESOURCE_EXHAUSTED and _LARGE in said:
            return bad_answer(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        if status is _Code.UNIMPLEMENTED:
            said = f"it does not serve evald.agent.v1.AgentService ({said})"
        code: FailureCode = "CONNECTOR_REFUSED" if status in _REFUSED else "CONNECTOR_UNAVAILABLE"
        return ConnectorFailure(code, f"{where}: {status.name}: {said}", retryable=status not in _REFUSED)


def _check_names(headers: Iterable[str]) -> None:
    """Raise InvalidInput for a header name that gRPC cannot send. headers: of connector or persona."""
    for name in headers:
        if not re.fullmatch("[0-9a-z_.-]+", name.lower()):
            raise InvalidInput(
                f"headers[{name!r}]", "a name that gRPC cannot send", "letters, digits, _, . and -"
            )
