"""One gRPC connection to a listening plugin: Describe, health checks, Evaluate."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald.plugin.v1 import task_pb2
from evald_server.config import Settings
from evald_server.wire_limits import parse_message

from .channels import DialTls, NotConnected, connect, open_channel
from .dial_allowlist import Dial
from .errors import (
    ContractError,
    PluginBusy,
    PluginFailed,
    PluginTimeout,
    PluginUnavailable,
    Refusal,
)
from .instance import MAX_OUTPUT_BYTES, RemoteTask, read_answer
from .plugin_type import CONTRACT, Plugin, load_plugin

_SERVICE: Final = "/evald.plugin.v1.EvaluatorPluginService"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_HEALTH_REQUEST: Final = health_pb2.HealthCheckRequest(
    service="evald.plugin.v1.EvaluatorPluginService"
).SerializeToString()
_DESCRIBE_REQUEST: Final = plugin_pb2.DescribeRequest(contract_versions=[CONTRACT]).SerializeToString()

_CONNECT_SECONDS: Final = 3.0

_Code = grpc.StatusCode
_READY: Final = grpc.ChannelConnectivity.READY

# A response is slightly larger than its output. The gRPC client ends the call if a response exceeds gRPC's limit.
_SLACK_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = 8


class NotServing(Exception):
    """A health check failed. certain: the plugin itself reported that it does not serve."""

    def __init__(self, why: str, *, certain: bool = False) -> None:
        super().__init__(why)
        self.certain = certain


class PluginConnection:
    """A channel to the checked addresses of one instance.

    active: number of open Evaluate calls.
    """

    def __init__(self, dial: Dial, settings: Settings, tls: DialTls | None = None) -> None:
        self._channel = open_channel(dial, tls, MAX_OUTPUT_BYTES + _SLACK_BYTES)
        self._evaluate: Any = self._channel.unary_unary(f"{_SERVICE}/Evaluate")
        self._describe: Any = self._channel.unary_unary(f"{_SERVICE}/Describe")
        self._health: Any = self._channel.unary_unary(_HEALTH)
        self._seconds = settings.remote_health_seconds
        self._max_bytes = MAX_OUTPUT_BYTES + _HEAD_BYTES
        self._has_health = True
        self._closed = False
        self.active = 0

    async def open(self) -> None:
        """Connect. Raises PluginUnavailable."""
        try:
            await connect(self._channel, _CONNECT_SECONDS)
        except NotConnected as problem:
            raise PluginUnavailable(str(problem)) from None

    async def describe(self) -> Plugin:
        """Return the plugin's description. Raises PluginUnavailable, or Refusal if the server cannot accept it."""
        try:
            data = await self._describe(_DESCRIBE_REQUEST, timeout=_CONNECT_SECONDS)
        except grpc.aio.AioRpcError as problem:
            raise PluginUnavailable(f"Describe: {_shown(problem)}") from None
        try:
            response = parse_message(plugin_pb2.DescribeResponse, data)
        except DecodeError:
            raise Refusal(
                "PLUGIN_DIFFERS",
                f"Describe: cannot parse DescribeResponse from the {len(data)} bytes received",
            ) from None
        return await load_plugin(response.plugin)

    async def lost(self, seconds: float) -> bool:
        """Wait until the connection is lost. Returns False if it is still there after `seconds`."""
        state = self._channel.get_state()
        if state is not _READY:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        return self._channel.get_state() is not _READY

    async def check(self) -> None:
        """Check the health, by Describe if the plugin has no health service. Raises NotServing."""
        try:
            if self._has_health:
                data = await self._health(_HEALTH_REQUEST, timeout=self._seconds)
                status = health_pb2.HealthCheckResponse.FromString(data).status
                if status != health_pb2.HealthCheckResponse.SERVING:
                    raise NotServing("health check: its status is not SERVING", certain=True)
                return
        except grpc.aio.AioRpcError as problem:
            if problem.code() not in (_Code.UNIMPLEMENTED, _Code.NOT_FOUND):
                raise NotServing(f"health check: {_shown(problem)}") from None
            self._has_health = False
        except DecodeError:
            raise NotServing("health check: cannot parse the response") from None
        try:
            await self._describe(_DESCRIBE_REQUEST, timeout=self._seconds)
        except grpc.aio.AioRpcError as problem:
            raise NotServing(f"Describe: {_shown(problem)}") from None

    async def evaluate(self, task: RemoteTask) -> task_pb2.EvaluationOutput:
        """Send a task and return its output. Raises as `Instance.run` does."""
        request = plugin_pb2.EvaluateRequest(task=task.pb).SerializeToString()
        self.active += 1
        try:
            data = await self._evaluate(request, timeout=task.seconds, metadata=task.headers)
        except grpc.aio.AioRpcError as problem:
            raise _translated(problem) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise PluginUnavailable("the connection was closed") from None
            raise
        finally:
            self.active -= 1
        return read_answer(plugin_pb2.EvaluateResponse, data, self._max_bytes).output

    async def close(self, patience: float) -> None:
        """Close once all calls have ended, at the latest after `patience` seconds."""
        waited = 0.0
        # A plugin that stops gracefully finishes its calls on a connection that accepts no new ones.
        while self.active and waited < patience:
            await asyncio.sleep(0.05)
            waited += 0.05
        self._closed = True
        await self._channel.close()


_LARGE: Final = "larger than max"

_ERRORS: Final[Mapping[grpc.StatusCode, type[Exception]]] = {
    _Code.UNAVAILABLE: PluginUnavailable,
    # Not cancelled by the caller: the connection is being closed.
    _Code.CANCELLED: PluginUnavailable,
    _Code.DEADLINE_EXCEEDED: PluginTimeout,
    _Code.RESOURCE_EXHAUSTED: PluginBusy,
}


def _translated(problem: grpc.aio.AioRpcError) -> Exception:
    """Return the exception for a gRPC error."""
    code, text = problem.code(), _shown(problem)
    if code is _Code.UNIMPLEMENTED:
        return ContractError("the plugin does not implement Evaluate")
    if code is _Code.RESOURCE_EXHAUSTED and _LARGE in text:
        return ContractError(f"the output is too large: {text}")
    return _ERRORS.get(code, PluginFailed)(text)


def _shown(problem: grpc.aio.AioRpcError) -> str:
    return f"{problem.code().name}: {problem.details()}"
