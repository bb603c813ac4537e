"""One gRPC connection to a listening plugin, and what is asked over it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald_server import wire_pb2
from evald_server.encoding import delimited

from .limits import Limits
from .offer import CONTRACT, Plugin, read_plugin
from .refusal import Refusal
from .targets import Dial
from .task import Broken, Busy, Failed, Late, Lost, Task

_SERVICE: Final = "/evald.plugin.v1.EvaluatorPluginService"
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_HEALTH_REQUEST: Final = health_pb2.HealthCheckRequest(
    service="evald.plugin.v1.EvaluatorPluginService"
).SerializeToString()
_DESCRIBE_REQUEST: Final = plugin_pb2.DescribeRequest(contract_versions=[CONTRACT]).SerializeToString()

# The field of evald.plugin.v1.EvaluateRequest, and of EvaluateResponse as it begins on the wire.
_TASK: Final = 1
_OUTPUT: Final = 0x0A

_CONNECT_SECONDS: Final = 3.0

_Code = grpc.StatusCode
_READY: Final = grpc.ChannelConnectivity.READY

# An answer is somewhat larger than the output in it. Beyond gRPC's limit the client ends the call.
_SLACK_BYTES: Final = 64 << 10


class Tls(NamedTuple):
    """How to dial with TLS. roots, key, chain: PEM; roots None means the system's."""

    roots: bytes | None
    key: bytes | None = None
    chain: bytes | None = None


class NotServing(Exception):
    """The plugin cannot work now. certain: it says so itself."""

    def __init__(self, why: str, *, certain: bool = False) -> None:
        super().__init__(why)
        self.certain = certain


class Connection:
    """A channel to the checked addresses of one instance, and to nothing else: no proxy, no retries of
    gRPC's own, no connection shared with another instance."""

    def __init__(self, dial: Dial, limits: Limits, tls: Tls | None = None) -> None:
        options: list[tuple[str, Any]] = [
            ("grpc.default_authority", dial.authority),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", limits.output_bytes + _SLACK_BYTES),
            # Nothing that the peer sends may change how it is called.
            ("grpc.service_config_disable_resolution", 1),
            # One connection is one attempt: `Dialled` makes the next one, with addresses checked anew.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
        ]
        if tls is None:
            self._channel = grpc.aio.insecure_channel(dial.pinned, options)
        else:
            credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.chain)
            self._channel = grpc.aio.secure_channel(dial.pinned, credentials, options)
        self._evaluate: Any = self._channel.unary_unary(f"{_SERVICE}/Evaluate")
        self._describe: Any = self._channel.unary_unary(f"{_SERVICE}/Describe")
        self._health: Any = self._channel.unary_unary(_HEALTH)
        self._seconds = limits.health_seconds
        self._has_health = True
        self._closed = False
        self.active = 0

    async def open(self) -> None:
        """Connect. Raises Lost."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                while (state := self._channel.get_state(try_to_connect=True)) is not _READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise Lost("no connection: nobody answers there, or not as the TLS profile wants it")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            raise Lost(f"no connection within {_CONNECT_SECONDS:g}s") from None

    async def describe(self) -> Plugin:
        """What the plugin offers. Raises Lost, or Refusal for what the server cannot take."""
        try:
            data = await self._describe(_DESCRIBE_REQUEST, timeout=_CONNECT_SECONDS)
        except grpc.aio.AioRpcError as problem:
            raise Lost(f"Describe: {_shown(problem)}") from None
        try:
            response = plugin_pb2.DescribeResponse.FromString(data)
        except DecodeError:
            raise Refusal("PLUGIN_DIFFERS", "Describe: the answer is no DescribeResponse") from None
        return read_plugin(response.plugin)

    async def lost(self, seconds: float) -> bool:
        """Wait so many seconds, or until the connection is lost. Whether it is."""
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
        """Ask for the plugin's health; for Describe, when it has no health service. Raises NotServing."""
        try:
            if self._has_health:
                data = await self._health(_HEALTH_REQUEST, timeout=self._seconds)
                status = health_pb2.HealthCheckResponse.FromString(data).status
                if status != health_pb2.HealthCheckResponse.SERVING:
                    raise NotServing("its health service says that it does not serve", certain=True)
                return
        except grpc.aio.AioRpcError as problem:
            if problem.code() not in (_Code.UNIMPLEMENTED, _Code.NOT_FOUND):
                raise NotServing(f"health check: {_shown(problem)}") from None
            self._has_health = False
        except DecodeError:
            raise NotServing("health check: the answer cannot be read") from None
        try:
            await self._describe(_DESCRIBE_REQUEST, timeout=self._seconds)
        except grpc.aio.AioRpcError as problem:
            raise NotServing(f"Describe: {_shown(problem)}") from None

    async def evaluate(self, task: Task) -> bytes:
        """The serialised EvaluationOutput. Raises what `Instance.run` does."""
        self.active += 1
        try:
            request = delimited(_TASK, task.data)
            data = await self._evaluate(request, timeout=task.seconds, metadata=task.headers)
        except grpc.aio.AioRpcError as problem:
            raise _trouble(problem) from None
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise Lost("the connection was closed") from None
            raise
        finally:
            self.active -= 1
        return _output(data)

    async def close(self, patience: float) -> None:
        """Close it once its calls are over, at the latest after so many seconds."""
        waited = 0.0
        # A plugin that stops well lets calls finish on the connection that it no longer takes new ones on.
        while self.active and waited < patience:
            await asyncio.sleep(0.05)
            waited += 0.05
        self._closed = True
        await self._channel.close()


def _output(response: bytes) -> bytes:
    """The EvaluationOutput in an evald.plugin.v1.EvaluateResponse, both serialised. Raises Broken."""
    # As most are: nothing but the one field, behind a length of one byte. No message has to be made to see that.
    length = len(response) - 2
    if 0 <= length < 128 and response[0] == _OUTPUT and response[1] == length:
        return response[2:]
    try:
        return wire_pb2.TaskResponse.FromString(response).output
    except DecodeError:
        raise Broken("the answer is no evald.plugin.v1.EvaluateResponse") from None


_LARGE: Final = "larger than max"

_TROUBLE: Final[Mapping[grpc.StatusCode, type[Exception]]] = {
    _Code.UNAVAILABLE: Lost,
    # Somebody ended the call, and it was not its caller: the connection is being closed.
    _Code.CANCELLED: Lost,
    _Code.DEADLINE_EXCEEDED: Late,
    _Code.RESOURCE_EXHAUSTED: Busy,
}


def _trouble(problem: grpc.aio.AioRpcError) -> Exception:
    code, text = problem.code(), _shown(problem)
    if code is _Code.UNIMPLEMENTED:
        return Broken("the plugin does not implement Evaluate")
    if code is _Code.RESOURCE_EXHAUSTED and _LARGE in text:
        return Broken(f"output: too large: {text}")
    return _TROUBLE.get(code, Failed)(text)


def _shown(problem: grpc.aio.AioRpcError) -> str:
    return f"{problem.code().name}: {problem.details()}"
