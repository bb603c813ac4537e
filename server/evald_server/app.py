"""One server, wired: registry, engine, services, telemetry, ports. Nobody imports this but the
command line and `evald_server.testing`."""

import asyncio
import logging
from importlib.metadata import version
from typing import Any, Final

import grpc

from evald.contract import violation
from evald.threads import Threads
from evald_server.batch.pool import Pool
from evald_server.batch.rules import Rules
from evald_server.config import Settings, is_loopback, split_address
from evald_server.data_dir import DataDir, Taken
from evald_server.descriptors import grpc_connections, http_connections
from evald_server.engine.combinators import combinators
from evald_server.engine.compiler import JUDGE
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.plan import Limits
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry, State
from evald_server.engine.run import EvaluationRun
from evald_server.evaluators import BUILT_INS
from evald_server.evaluators.schemas import close_workers
from evald_server.http.server import HttpServer
from evald_server.judge.llm_judge import judge_definition
from evald_server.judge.models import ConfiguredModels
from evald_server.judge.wiring import build_models
from evald_server.plugins import load_plugins
from evald_server.remote.connection import Tls
from evald_server.remote.dial_allowlist import read_target
from evald_server.remote.errors import Refusal
from evald_server.remote.limits import RemoteLimits
from evald_server.remote.remotes import Remotes, StaticTarget
from evald_server.remote.store import SqliteLeaseStore
from evald_server.rpc import catalog, evaluate, registry
from evald_server.rpc.admission import Admission
from evald_server.rpc.batch import BatchService
from evald_server.rpc.batching import CallBatcher
from evald_server.rpc.evaluate import EvaluateService
from evald_server.rpc.health import (
    HEALTH,
    REFLECTION,
    REFLECTION_ALPHA,
    Health,
    reflection_handlers,
)
from evald_server.rpc.idempotency import IdempotencyStore
from evald_server.rpc.server import RpcServer
from evald_server.rpc.session import SessionService
from evald_server.scripts.evaluator import code_definition
from evald_server.scripts.policy import Policy
from evald_server.scripts.runner import Scripts
from evald_server.telemetry import Telemetry

_log = logging.getLogger("evald.server")

# gRPC's own limit lies above ours, so that a message that is somewhat too large gets our answer,
# which names size and limit; beyond it gRPC answers without reading the message.
_SLACK_BYTES: Final = 4 << 20

_LAG_PERIOD_SECONDS: Final = 0.25

# After the drain, calls get this long to receive the answer or status that ends them.
_LAST_WORDS_SECONDS: Final = 0.5

_GOODBYE_SECONDS: Final = 0.02


class StartError(Exception):
    """The server cannot start. The message says why and what to do."""


def server_options(settings: Settings) -> list[tuple[str, Any]]:
    """Options of the gRPC server."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes + _SLACK_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # By default a second server binds the same port in silence and takes half of the calls.
        ("grpc.so_reuseport", 0),
        # An idle stream whose client pings every 10 s must live: the default allows a ping in 5 min.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_allowed_incoming_connections", settings.max_connections or grpc_connections()),
        ("grpc.server_handshake_timeout_ms", round(1000 * settings.handshake_timeout)),
        ("grpc.max_connection_idle_ms", round(1000 * settings.max_connection_idle)),
    ]


class App:
    """A server with these settings. `start`, then `stop`; both once, in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.telemetry = Telemetry(allowed_labels=settings.labels)
        self.threads = Threads()
        try:
            self.models = build_models(settings, self.telemetry.judge(JUDGE))
        except ValueError as problem:
            raise StartError(str(problem)) from None
        self.scripts = build_scripts(settings)
        self.registry = build_registry(settings, self.threads, self.scripts, self.models)
        self.address = ""
        self.http_address: str | None = None
        limits = Limits(settings.max_evaluators, settings.max_config_bytes, settings.plan_cache_bytes)
        planner = Planner(self.registry, limits, fail_open=settings.on_error == "fail_open")
        self.batch_processes = build_batch_processes(settings, limits)
        self.admission = Admission(
            settings.max_inflight,
            settings.max_queued,
            settings.max_queue_seconds,
            concurrency=settings.concurrency,
            default_timeout=settings.default_timeout,
            max_timeout=settings.max_timeout,
        )
        self.telemetry.watch(inflight=lambda: self.admission.inflight, queued=lambda: self.admission.queued)
        engine = Engine(planner, Contexts(settings.max_messages), self.threads)
        # Before the first call, so that these have their place before any remote's.
        for entry in self.registry.types():
            self.telemetry.announce(entry.definition.type, int(entry.definition.kind))
        self._rpc = RpcServer(
            self.telemetry,
            max_message_bytes=settings.max_message_bytes,
            max_streams=settings.max_streams,
            log_calls=settings.log_calls,
        )
        self.remotes = build_remotes(settings, self.registry, self.telemetry)
        self.telemetry.watch_remotes(
            instances=self.remotes.instances.counts, open_circuits=self.remotes.instances.open_circuits
        )
        self._registrations = registry.RegistrationService(
            self.remotes, connect_allowed=settings.remote_connect
        )
        self._health = Health((evaluate.NAME, catalog.NAME, registry.NAME))
        self._services = self._table(engine)
        self._data_dir: DataDir | None = None
        self._server: grpc.aio.Server | None = None
        self._http: HttpServer | None = None
        self._lag: asyncio.Task[None] | None = None
        self._judges: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises StartError when an address cannot be had."""
        settings = self.settings
        if settings.data_dir is not None:
            try:
                self._data_dir = DataDir.claim(settings.data_dir)
            except Taken as problem:
                raise StartError(f"data_dir {settings.data_dir}: {problem}") from None
            except OSError as problem:
                raise StartError(f"data_dir {settings.data_dir}: {problem.strerror}") from None
        try:
            await self._listen()
        except BaseException:
            self._let_go()
            raise

    async def _listen(self) -> None:
        settings = self.settings
        try:
            await self.remotes.start()
        except Refusal as problem:
            raise StartError(f"data_dir {settings.data_dir}: {problem.message}; the log says why") from None
        server = grpc.aio.server(
            options=server_options(settings),
            # Beyond what streams and waiting calls may be, so that this one never refuses first
            # what could have been answered, but memory stays bounded.
            maximum_concurrent_rpcs=settings.max_streams + 4 * settings.max_inflight + settings.max_queued,
        )
        server.add_generic_rpc_handlers(
            [
                *(grpc.method_handlers_generic_handler(*service) for service in self._services.items()),
                self._rpc.unknown(),
            ]
        )
        host, port = split_address(settings.listen)
        try:
            bound = server.add_insecure_port(settings.listen)
        except RuntimeError:
            bound = 0
        if not bound:
            raise StartError(
                f"listen {settings.listen}: the address cannot be had; "
                f"is another server using port {port}? Port 0 picks a free one."
            )
        if settings.http:
            http_host, http_port = split_address(settings.http)
            self._http = HttpServer(
                self.telemetry,
                host=http_host,
                port=http_port,
                ready=lambda: self._health.serving,
                max_connections=http_connections(),
            )
            try:
                self.http_address = _join(http_host, self._http.start())
            except OSError as problem:
                await server.stop(None)
                raise StartError(
                    f"http {settings.http}: {problem.strerror or problem}; "
                    f"is another server using port {http_port}? Port 0 picks a free one."
                ) from None
        await server.start()
        self._server = server
        self.address = _join(host, bound)
        self._lag = asyncio.create_task(self._watch_lag())
        self._judges = asyncio.create_task(self.models.watch(self._judge_available))
        self._health.serve(True)
        if not is_loopback(host):
            _log.warning("listening on %s without encryption and authentication", self.address)

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain and stop: NOT_SERVING first, new calls are refused, open ones get the grace.

        Takes at most 2 s longer than drain_delay and the grace."""
        server = self._server
        if server is None:
            return
        grace = self.settings.drain_grace if grace_seconds is None else grace_seconds
        self._health.serve(False)
        if self.settings.drain_delay:
            await asyncio.sleep(self.settings.drain_delay)
        self._registrations.drain()
        admission = self.admission
        draining = asyncio.create_task(
            self.remotes.drain(grace, lambda: admission.queued, lambda: admission.inflight)
        )
        # gRPC's server goes on meanwhile: stopping, it ends calls that it has not handed over yet with CANCELLED.
        await self._rpc.drain(grace)
        stopping = asyncio.create_task(server.stop(_LAST_WORDS_SECONDS))
        # Callers are to hear that the connection ends before they are refused, so that they do not use it again.
        await asyncio.wait([stopping], timeout=_GOODBYE_SECONDS)
        self._rpc.end()
        await stopping
        draining.cancel()
        await self.remotes.stop()
        if self._lag is not None:
            self._lag.cancel()
        if self._judges is not None:
            self._judges.cancel()
        if self._http is not None:
            await asyncio.to_thread(self._http.stop)
        await self.batch_processes.aclose()
        await self.models.close()
        await self.scripts.aclose()
        await close_workers()
        self.threads.close()
        self._let_go()
        self._server = None

    def _let_go(self) -> None:
        """Let another server have the data directory."""
        if self._data_dir is not None:
            self._data_dir.close()

    async def wait(self) -> None:
        """Until the server has stopped."""
        if self._server is not None:
            await self._server.wait_for_termination()

    def _table(self, engine: Engine) -> dict[str, dict[str, Any]]:
        rpc, admission, metrics = self._rpc, self.admission, self.telemetry
        batcher = CallBatcher(discard=EvaluationRun.abandon)
        evaluations = EvaluateService(
            engine, batcher, admission, IdempotencyStore(self.settings.answer_cache_bytes), metrics
        )
        sessions = SessionService(engine, batcher, admission, metrics)
        batches = BatchService(engine, admission, metrics, self.batch_processes)
        types = catalog.CatalogService(self.registry)
        service = evaluate.NAME
        table: dict[str, dict[str, Any]] = {
            service: {
                "Evaluate": rpc.server_stream(service, "Evaluate", evaluations.evaluate),
                "EvaluateUnary": rpc.unary(service, "EvaluateUnary", evaluations.evaluate_unary),
                "EvaluateSession": rpc.stream(service, "EvaluateSession", sessions.evaluate_session),
                "EvaluateBatch": rpc.stream(service, "EvaluateBatch", batches.evaluate_batch),
                "ValidateSpecs": rpc.unary(service, "ValidateSpecs", evaluations.validate),
            },
            catalog.NAME: {
                "ListEvaluatorTypes": rpc.unary(catalog.NAME, "ListEvaluatorTypes", types.list_types),
                "GetEvaluatorType": rpc.unary(catalog.NAME, "GetEvaluatorType", types.get_type),
                "WatchEvaluatorTypes": rpc.watch(catalog.NAME, "WatchEvaluatorTypes", types.watch),
            },
            registry.NAME: registry.handlers(self._registrations, rpc.unary, rpc.stream, rpc.watch),
            HEALTH: self._health.handlers(rpc.endless),
        }
        if self.settings.reflection:
            table |= reflection_handlers([*table, REFLECTION, REFLECTION_ALPHA], rpc.endless)
        return table

    def _judge_available(self, available: bool) -> None:
        self.registry.set_state(JUDGE, State.ACTIVE if available else State.UNAVAILABLE)

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _LAG_PERIOD_SECONDS
            await asyncio.sleep(_LAG_PERIOD_SECONDS)
            self.telemetry.loop_lag(max(0.0, loop.time() - wanted))


def build_scripts(settings: Settings) -> Scripts:
    """What the `code` evaluator runs. Raises StartError for what this machine cannot keep."""
    policy = Policy(
        allow=settings.code_allow,
        shell=settings.code_shell,
        isolation=settings.code_isolation,
        read=settings.code_read,
        directory=settings.code_directory,
        environment=settings.code_environment,
        timeout_seconds=settings.code_timeout,
        concurrency=settings.code_concurrency,
        memory_bytes=settings.code_memory_bytes,
        processes=settings.code_processes,
        output_bytes=settings.code_output_bytes,
    )
    try:
        scripts = Scripts(policy)
    except ValueError as problem:
        raise StartError(str(problem)) from None
    if not scripts.unavailable and scripts.isolation == "none":
        _log.warning(
            "scripts run without isolation: %s",
            "code_isolation is off"
            if settings.code_isolation == "off"
            else "this machine lets the server use neither bubblewrap nor Landlock",
        )
    return scripts


def build_registry(
    settings: Settings,
    threads: Threads,
    scripts: Scripts,
    models: ConfiguredModels,
) -> Registry:
    """The built-ins, the plugins, and what of them runs on every call. Raises PluginError, StartError."""
    registry = Registry()
    for evaluator in BUILT_INS.values():
        registry.register(evaluator.definition(), Origin.BUILT_IN)
    for definition in combinators(threads):
        registry.register(definition, Origin.BUILT_IN)
    registry.register(
        judge_definition(models),
        Origin.BUILT_IN,
        state=State.ACTIVE if models.available else State.UNAVAILABLE,
    )
    registry.register(
        code_definition(scripts, violation),
        Origin.BUILT_IN,
        state=State.UNAVAILABLE if scripts.unavailable else State.ACTIVE,
    )
    load_plugins(registry, settings.plugins)
    for name, config in settings.auto.items():
        entry = registry.get(name)
        if entry is None:
            raise StartError(
                f'auto: unknown evaluator type "{name}"; '
                f"known are {', '.join(entry.definition.type for entry in registry.types())}"
            )
        try:
            entry.definition.compile(config)
        except ValueError as problem:
            raise StartError(f'auto: "{name}": {problem}') from None
        registry.set_auto(name, config)
    return registry


def build_batch_processes(settings: Settings, limits: Limits) -> Pool:
    """The processes that batches are evaluated in, none of which is started yet."""
    rules = Rules(
        limits,
        fail_open=settings.on_error == "fail_open",
        max_messages=settings.max_messages,
        auto=settings.auto,
        log=(settings.log_format, settings.log_level),
    )
    return Pool(rules, version("evald"), settings.batch_processes)


def build_remotes(settings: Settings, types: Registry, telemetry: Telemetry) -> Remotes:
    """The remote evaluators as the settings want them. Raises StartError."""
    try:
        for one in settings.remote_targets:
            read_target(one.target)
    except Refusal as problem:
        raise StartError(f"remote_targets: {problem.message}") from None
    profiles = {}
    for name, profile in settings.remote_tls.items():
        try:
            files = (profile.ca_file, profile.key_file, profile.cert_file)
            profiles[name] = Tls(*(file.read_bytes() if file else None for file in files))
        except OSError as problem:
            raise StartError(f"remote_tls: {name}: {problem}") from None
    try:
        return Remotes(
            types,
            telemetry,
            limits=RemoteLimits(
                inflight=settings.remote_max_inflight,
                queued=settings.remote_max_queued,
                queue_seconds=settings.remote_max_queue_seconds,
                instances=settings.remote_max_instances,
                types=settings.remote_max_instances,
                task_bytes=settings.remote_max_task_bytes,
                lease_seconds=settings.remote_lease_seconds,
                health_seconds=settings.remote_health_seconds,
                ping_seconds=settings.remote_ping_seconds,
                ping_timeout=settings.remote_ping_seconds,
            ),
            allowed=settings.remote_allowed,
            targets=[StaticTarget(one.target, one.tls_profile) for one in settings.remote_targets],
            tls_profiles=profiles,
            blocked=settings.remote_blocked,
            store=SqliteLeaseStore(settings.data_dir) if settings.data_dir else None,
        )
    except ValueError as problem:
        raise StartError(f"remote_allowed: {problem}") from None


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
