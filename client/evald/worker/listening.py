"""A worker that listens. Servers dial it as a static target, or after it has registered."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ..addresses import is_loopback
from ..connection import MAX_MESSAGE_BYTES, open_to
from ..credentials import Tls, Token, listen_credentials_of_environment
from ..fields import number, text
from ..plugin.v1 import evaluator_plugin_service_pb2 as pb
from .connecting import first_of, resolve_addresses
from .leases import Registration
from .offer import AnyEvaluator, OfferedEvaluators
from .tasks import Tasks

_log = logging.getLogger("evald.worker")

SERVICE: Final = "evald.plugin.v1.EvaluatorPluginService"

DEFAULT_CONCURRENCY: Final = 16
DEFAULT_GRACE_SECONDS: Final = 30.0

_TRACE_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))


class ListeningWorker:
    """A worker that listens on an address and evaluates for servers until the `async with` block ends.

    evaluators: `Evaluator` classes, or `EvaluatorDefinition`s of `@assertion`, `@metric` and `define_evaluator`.
    listen: address to listen on, "HOST:PORT"; port 0 picks a free one, see the attribute `address`.
    register: evald server to register with, "HOST:PORT"; None if the server's config lists this worker.
    advertise: target at which that server reaches this worker, for example "dns:///polite.evals.svc:50051";
        by default the address, with a wildcard replaced by this machine's address on the route to the server.
    name, version: name and version of the plugin; by default the type and version of the first evaluator.
    max_concurrency: maximum concurrent tasks, 1 or more.
    grace_seconds: time for open tasks when the worker stops.
    listen_credentials: TLS for `listen`; by default from the files of EVALD_TLS_CERT_FILE, EVALD_TLS_KEY_FILE
        and EVALD_TLS_CLIENT_CA_FILE. Without TLS only loopback addresses and Unix sockets are allowed.
    insecure_public: allow other addresses without TLS, for example in a closed network.
    tls, token, insecure, credentials, metadata: for the calls to the server, as in `Client`.
    tls_profile: name of the profile in the server's config with which it dials this worker.
    own_loop: run async evaluators in a separate event loop, not in the caller's.

    Raises ValueError and TypeError for invalid arguments.
    """

    def __init__(
        self,
        *evaluators: AnyEvaluator,
        listen: str = "127.0.0.1:0",
        register: str | None = None,
        advertise: str | None = None,
        name: str | None = None,
        version: str | None = None,
        max_concurrency: int = DEFAULT_CONCURRENCY,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        listen_credentials: grpc.ServerCredentials | None = None,
        insecure_public: bool = False,
        tls: Tls | bool | None = None,
        token: Token | None = None,
        insecure: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str] | None = None,
        tls_profile: str = "",
        own_loop: bool = False,
    ) -> None:
        self.address = ""
        self._offered = OfferedEvaluators(
            evaluators, name=name, version=version, max_concurrency=max_concurrency
        )
        self._tasks = Tasks(self._offered, own_loop=own_loop)
        self._listen = text(listen, "listen")
        self._grace = number(grace_seconds, "grace_seconds", unit="seconds")
        self._listen_credentials = listen_credentials or listen_credentials_of_environment()
        self._advertise = advertise
        self._registration: Registration | None = None
        self._info = self._offered.info()
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self._stopping = asyncio.Event()
        host = listen.rpartition(":")[0]
        if not (insecure_public or self._listen_credentials or host.startswith("unix") or is_loopback(host)):
            raise ValueError(
                f"listen: {listen} can be reached from other machines without encryption; set EVALD_TLS_CERT_FILE and "
                "EVALD_TLS_KEY_FILE, or pass listen_credentials, or pass insecure_public=True in a trusted network"
            )
        if register is not None:
            self._registration = Registration(
                *open_to(
                    register,
                    tls=tls,
                    token=token,
                    insecure=insecure,
                    credentials=credentials,
                    metadata=metadata,
                ),
                instance_id=self._offered.instance_id,
                info=self._info,
                tls_profile=tls_profile,
                active=lambda: self._tasks.active,
            )

    async def __aenter__(self) -> Self:
        """Listen, and register in the background. Raises OSError if the address cannot be bound."""
        server = grpc.aio.server(
            options=[
                # By default a second server can bind the same port, and then gets half of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + (1 << 20)),
                ("grpc.max_send_message_length", -1),
                # Allow the server's keepalive pings on idle connections.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ]
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, _handlers(self._describe, self._evaluate))]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        _add_reflection(server)
        self.address = self._bind(server)
        await server.start()
        self._server = server
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        _log.info("listening on %s, offering %s", self.address, self._offered)
        if self._registration is not None:
            self._registration.start(partial(self._own_target, self._registration.server))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drain: report NOT_SERVING, deregister, let open tasks finish within the grace period, stop."""
        await self._health.enter_graceful_shutdown()
        if self._registration is not None:
            await self._registration.stop()
        if self._tasks.active:
            _log.info("stopping; %d open tasks have %gs to finish", self._tasks.active, self._grace)
        await self._server.stop(self._grace)
        self._tasks.close()
        self._stopping.set()
        _log.info("stopped")

    async def registered(self) -> None:
        """Wait for the first lease.

        Raises EvaldError if the server rejects the worker permanently, and ValueError without `register`.
        """
        if self._registration is None:
            raise ValueError("this worker does not register with a server; pass register=HOST:PORT")
        await self._registration.granted()

    async def wait(self) -> None:
        """Wait until the worker stops. Raises EvaldError if the server rejects the first registration permanently."""
        refused = () if self._registration is None else (self._registration.refused(),)
        await first_of(self._stopping.wait(), *refused)

    def _bind(self, server: Any) -> str:
        credentials = self._listen_credentials
        try:
            port = (
                server.add_insecure_port(self._listen)
                if credentials is None
                else server.add_secure_port(self._listen, credentials)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(
                f"listen: cannot bind {self._listen}; another program may be using it; port 0 picks a free port"
            )
        host, _, given = self._listen.rpartition(":")
        return f"{host}:{port}" if given.isdigit() else self._listen

    async def _own_target(self, server: str) -> str:
        """Return the address to advertise. Replaces a wildcard by the host that the server reaches. Raises OSError."""
        host, _, port = self.address.rpartition(":")
        if self._advertise or host not in ("0.0.0.0", "[::]"):  # noqa: S104 - compared, not bound
            return self._advertise or self.address
        host = await _address_towards(server)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _describe(self, data: bytes, context: Any) -> bytes:
        return pb.DescribeResponse(plugin=self._info).SerializeToString()

    async def _evaluate(self, data: bytes, context: Any) -> bytes:
        try:
            task = pb.EvaluateRequest.FromString(data).task
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"cannot parse EvaluateRequest from the {len(data)} bytes received",
            )
        output = await self._tasks.run(
            task, seconds=context.time_remaining(), trace_context=_trace_context(context)
        )
        return pb.EvaluateResponse(output=output).SerializeToString()


def _handlers(describe: Any, evaluate: Any) -> dict[str, Any]:
    # Without (de)serializers, because gRPC would reject invalid bytes with UNKNOWN.
    return {
        "Describe": grpc.unary_unary_rpc_method_handler(describe),
        "Evaluate": grpc.unary_unary_rpc_method_handler(evaluate),
    }


def _trace_context(context: Any) -> dict[str, str]:
    """Return the caller's W3C trace headers."""
    return {key: value for key, value in context.invocation_metadata() or () if key in _TRACE_HEADERS}


def _add_reflection(server: Any) -> None:
    """Serve reflection, for tools such as grpcurl, if the optional grpcio-reflection is installed."""
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError:
        return
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


async def _address_towards(server: str) -> str:
    """Return the local address of the route to a server. Sends nothing. Raises OSError."""
    if server.startswith("unix"):  # on this machine
        return "127.0.0.1"
    addresses = await resolve_addresses(server)
    if not addresses:
        raise OSError(
            f"cannot resolve {server}; set advertise=HOST:PORT to the address at which it reaches this worker"
        )
    version, _, address = addresses[0].partition(":")
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET6 if version == "ipv6" else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])
