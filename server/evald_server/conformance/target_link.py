"""Link to a plugin that listens: the kit dials it."""

import asyncio
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evald.credentials import Tls
from evald.plugin.v1 import evaluator_plugin_service_pb2, evaluator_plugin_service_pb2_grpc, task_pb2
from evald.structs import duration_seconds
from evald.worker.offer import CONTRACT
from evald_server.remote.instance import MAX_OUTPUT_BYTES

from .link import NO_ANSWER, PATIENCE_SECONDS, Link, PendingReply, PluginGone, PluginReply

SERVICE: Final = "evald.plugin.v1.EvaluatorPluginService"

_CALL_SECONDS: Final = 10.0
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING


class TargetLink(Link):
    """A plugin that listens. Call `open` first.

    tls: the CA of the plugin's certificate, and the kit's own certificate; None for plaintext.
    Raises InvalidInput for a file that cannot be read.
    """

    mode = "target"

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        super().__init__()
        self.address = address
        self.tls = tls
        self.channel = self.channel_with(tls)
        self._stub = evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(self.channel)
        self._evaluate: Any = self.channel.unary_unary(f"/{SERVICE}/Evaluate")

    def channel_with(self, tls: Tls | None) -> Any:
        """Return a channel to the plugin."""
        options = [
            # Above the servers' limit, so that the kit can report outputs that are too large.
            ("grpc.max_receive_message_length", 4 * MAX_OUTPUT_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
            # The same as when a server dials plugins.
            ("grpc.enable_http_proxy", 0),
        ]
        if tls is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        return grpc.aio.secure_channel(self.address, tls.channel_credentials(), options=options)

    async def open(self, seconds: float = _CALL_SECONDS) -> Self:
        """Connect and call Describe. Raises PluginGone if there is no connection within `seconds`, or no answer."""
        try:
            async with asyncio.timeout(seconds):
                await self.channel.channel_ready()
            self.info = await self.describe()
        except TimeoutError:
            await self.close()
            over = " over TLS with these certificates" if self.tls else ""
            raise PluginGone(f"no plugin answers at {self.address}{over} within {seconds:g}s") from None
        except grpc.aio.AioRpcError as problem:
            await self.close()
            raise PluginGone(
                f"{self.address} answers Describe with {problem.code().name}: {problem.details()}"
            ) from None
        return self

    async def describe(self, channel: Any = None) -> task_pb2.PluginInfo:
        """Call Describe, over another channel if one is given. Raises AioRpcError."""
        request = evaluator_plugin_service_pb2.DescribeRequest(contract_versions=[CONTRACT])
        stub = (
            self._stub
            if channel is None
            else evaluator_plugin_service_pb2_grpc.EvaluatorPluginServiceStub(channel)
        )
        response = await stub.Describe(request, timeout=_CALL_SECONDS)
        return response.plugin  # type: ignore[no-any-return]

    async def start(self, task: task_pb2.EvaluationTask) -> PendingReply:
        """See Link."""
        request = evaluator_plugin_service_pb2.EvaluateRequest(task=task)
        timeout = duration_seconds(task.timeout) if task.HasField("timeout") else None
        call = self._evaluate(request.SerializeToString(), timeout=timeout)
        return _UnaryTask(self, task, call)

    async def respond(self, seconds: float) -> bool:
        """See Link."""
        try:
            return bool(await self.health(seconds) == _SERVING)
        except grpc.aio.AioRpcError as problem:
            # The presence of a health service has a rule of its own.
            return problem.code() is not grpc.StatusCode.DEADLINE_EXCEEDED

    async def recover(self, seconds: float) -> None:
        """See Link."""
        try:
            async with asyncio.timeout(seconds):
                await self.channel.channel_ready()
        except TimeoutError:
            raise PluginGone(f"no plugin answers at {self.address} any more") from None

    async def health(self, seconds: float = _CALL_SECONDS) -> int:
        """Return the health status of the service. Raises AioRpcError."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        return (await stub.Check(request, timeout=seconds)).status  # type: ignore[no-any-return]

    async def close(self) -> None:
        """See Link."""
        await self.channel.close()


class _UnaryTask(PendingReply):
    """One unary call."""

    def __init__(self, link: TargetLink, task: task_pb2.EvaluationTask, call: Any) -> None:
        self._link = link
        self._task = task
        self._call = call
        self._waiting = asyncio.ensure_future(self._wait())

    async def reply(self, seconds: float = PATIENCE_SECONDS) -> PluginReply:
        """See PendingReply."""
        await asyncio.wait((self._waiting,), timeout=seconds)
        return self._waiting.result() if self._waiting.done() else NO_ANSWER

    async def cancel(self) -> None:
        """See PendingReply."""
        self._call.cancel()

    async def _wait(self) -> PluginReply:
        try:
            data: bytes = await self._call
        except grpc.aio.AioRpcError as problem:
            return PluginReply(status=problem.code(), detail=problem.details() or "")
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise
            return PluginReply(status=grpc.StatusCode.CANCELLED, detail="cancelled")
        try:
            response = evaluator_plugin_service_pb2.EvaluateResponse.FromString(data)
        except DecodeError:
            return self._link.record_unreadable(self._task, data)
        return self._link.record(self._task, response.output)
