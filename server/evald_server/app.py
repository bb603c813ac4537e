"""Construct and wire one server: registry, engine, services, telemetry, ports.

Only the command line and `evald_server.testing` import this.
"""

import asyncio
import logging
import ssl
import stat
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from evald.threads import Threads
from evald_server.auth.audit import Audit, peer_of, record
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.clients import ClientFile
from evald_server.auth.current_call import OPEN_CALL, PRINCIPAL, caller
from evald_server.auth.keys import KeyFile
from evald_server.auth.principal import LOCAL, RESTARTED, Principal, Role, anonymous
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.roles import SCRAPERS
from evald_server.batch.chunk import ProcessConfig
from evald_server.batch.pool import BatchPool
from evald_server.certificates import CertificateFiles, Certificates, read_certificates
from evald_server.config import Settings, answers_to, is_public, split_address
from evald_server.connectors.build import Connectors
from evald_server.connectors.http_document import fetch_document
from evald_server.data_dir import DataDir, Taken
from evald_server.descriptors import grpc_connections, web_connections, web_streams
from evald_server.engine.combinators import combinators
from evald_server.engine.contexts import JUDGE, Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.plan import PlanLimits
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry, State
from evald_server.engine.run import EvaluationRun
from evald_server.evaluators import BUILT_INS
from evald_server.files import FileProblem, WatchedFiles
from evald_server.jsonschema.schema import close_workers
from evald_server.judge.budget import Caller
from evald_server.judge.configured_models import ConfiguredModels, build_models
from evald_server.judge.llm_judge import judge_definition
from evald_server.methods import handlers_of
from evald_server.monitoring import HttpServer, Telemetry
from evald_server.plugins import load_plugins
from evald_server.remote.remotes import Remotes
from evald_server.rpc import evaluate
from evald_server.rpc.admission import Admission
from evald_server.rpc.batch import BatchService
from evald_server.rpc.batching import CallBatcher
from evald_server.rpc.gate import Gate
from evald_server.rpc.health import HEALTH, REFLECTION, REFLECTION_ALPHA, Health, reflection_methods
from evald_server.rpc.idempotency import IdempotencyStore
from evald_server.rpc.kinds import ResourceKinds
from evald_server.rpc.port import RpcPort
from evald_server.rpc.registry import CatalogService, RegistrationService
from evald_server.rpc.runs import RunService
from evald_server.rpc.server import Methods, RpcServer
from evald_server.rpc.session import SessionService
from evald_server.rpc.suites import SuiteService
from evald_server.runs.runner import Runner
from evald_server.scripts.build import build_scripts
from evald_server.scripts.evaluator import code_definition
from evald_server.scripts.runner import ScriptRunner
from evald_server.store.database import FILE_NAME, MEMORY, Database, StoreProblem
from evald_server.store.resources import ResourceStore
from evald_server.store.runs import RunStore
from evald_server.store.suites import SuiteStore

if TYPE_CHECKING:
    from evald_server.auth.tokens import TokenVerifier
    from evald_server.http.web import WebServer

_log = logging.getLogger("evald.server")

# gRPC's limit is max_message_bytes plus this, so that a slightly too large message gets evald's error, which names the
# size and the limit. Above its own limit gRPC refuses a message without reading it.
_SLACK_BYTES: Final = 4 << 20

# Packages of the extra evald[web], which the web port needs.
_WEB_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")

_LAG_PERIOD_SECONDS: Final = 0.25
_STORE_PERIOD_SECONDS: Final = 5.0

# Pause before a background task that has failed starts again.
_RESTART_SECONDS: Final = 1.0

# Interval of deleting runs beyond runs_max_age and runs_max_count.
_TRIM_PERIOD_SECONDS: Final = 600.0

# After a start, runs wait at most this long for restored and configured remote evaluators.
_RESTORE_SECONDS: Final = 5.0

# Timeout of fetching the JSON Web Key Set.
_JWKS_SECONDS: Final = 5.0

# After the drain, the time for calls to receive their response or final status.
_FINAL_STATUS_SECONDS: Final = 0.5

# The time for clients to receive GOAWAY before their calls are refused.
_GOAWAY_SECONDS: Final = 0.02


class StartError(Exception):
    """The server cannot start. The message names the reason and the remedy."""


@contextmanager
def _start_errors(setting: str = "") -> Iterator[None]:
    """Convert the errors of settings, files and certificates to StartError. setting: prefix of the message."""
    try:
        yield
    except (ValueError, FileProblem) as problem:
        raise StartError(f"{setting}: {problem}" if setting else str(problem)) from None


def server_options(settings: Settings) -> list[tuple[str, Any]]:
    """Return the options of the gRPC server."""
    secured = settings.tls_cert_file is not None
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes + _SLACK_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
        # By default a second server binds the same port without an error and takes half of the calls.
        ("grpc.so_reuseport", 0),
        # Allow a client to ping every 10 s; by default gRPC closes connections with more than one ping in 5 min.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_allowed_incoming_connections", settings.max_connections or grpc_connections()),
        ("grpc.server_handshake_timeout_ms", round(1000 * settings.handshake_timeout)),
        ("grpc.max_connection_idle_ms", round(1000 * settings.max_connection_idle)),
        # Clients reconnect, and the new handshake checks their certificates again. Open calls continue.
        # gRPC adds up to 10 %.
        *([("grpc.max_connection_age_ms", round(1000 * settings.max_connection_age))] if secured else ()),
        # gRPC's default for all headers, 8 KiB, is too low for a token of 8 KiB.
        ("grpc.max_metadata_size", 16 << 10),
    ]


class App:
    """A server. Call `start`, then `stop`, each once and in one event loop.

    Raises StartError or PluginError.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.telemetry = Telemetry(allowed_labels=settings.labels)
        self.threads = Threads()
        with _start_errors():
            self.models = build_models(
                settings,
                self.telemetry.judges,
                caller=_judge_caller,
                limited=partial(self.telemetry.access.limited.add, "judge_usd_per_day"),
            )
            self.scripts = build_scripts(settings)
        self.registry = build_registry(settings, self.threads, self.scripts, self.models)
        self.database = build_database(settings)
        self.address = ""
        self.mtls_address: str | None = None
        self.http_address: str | None = None
        self.web_address: str | None = None
        limits = PlanLimits(settings.max_evaluators, settings.max_config_bytes, settings.plan_cache_bytes)
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
        self.telemetry.saturation.inflight.set_function(lambda: self.admission.inflight)
        self.telemetry.saturation.queued.set_function(lambda: self.admission.queued)
        self.telemetry.saturation.store_degraded.set_function(lambda: bool(self.database.problem))
        engine = Engine(planner, Contexts(settings.max_messages), self.threads)
        # Before the first call, so that remote types cannot use up the metric series of these types.
        for entry in self.registry.types():
            self.telemetry.evaluators.export_zeros(entry.definition.type, int(entry.definition.kind))
        self._rpc = RpcServer(
            self.telemetry,
            max_message_bytes=settings.max_message_bytes,
            max_streams=settings.max_streams,
            log_calls=settings.log_calls,
        )
        with _start_errors():
            self.remotes = Remotes(
                settings,
                self.registry,
                self.telemetry.remotes,
                self.database,
                self._current_plugin,
            )
            self._connectors = Connectors(settings, yield_to_calls=self._rpc.yield_to_calls)
        self.telemetry.remotes.instances = self.remotes.instances.counts
        self.telemetry.remotes.open_circuits.set_function(self.remotes.instances.open_circuits)
        self.runner = Runner(
            RunStore(self.database),
            self._connectors,
            self.models,
            engine,
            self.admission,
            self.telemetry,
            max_runs=settings.max_runs,
            yield_to_calls=self._rpc.yield_to_calls,
        )
        self._registrations = RegistrationService(self.remotes, connect_allowed=settings.remote_connect)
        self._certificates = build_certificates(settings, self.telemetry)
        self._authenticator = build_authenticator(settings, self.telemetry)
        self._gate = Gate(
            self._rpc,
            self._table(engine),
            self._authenticator,
            self.telemetry.access.limited.add,
            audit_calls=settings.audit_calls,
            max_principal_calls=settings.max_principal_calls or max(1, settings.max_calls // 4),
        )
        self._audit = Audit()
        self._data_dir: DataDir | None = None
        self._ports: dict[str, RpcPort] = {}  # gRPC ports by address
        self._http: HttpServer | None = None
        self._web: WebServer | None = None
        self._background: list[asyncio.Task[None]] = []
        self._beginning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises StartError if the data directory or an address is not available."""
        settings = self.settings
        # Calls inherit the context of the start, which must not be that of another server's call.
        PRINCIPAL.set(LOCAL)
        OPEN_CALL.set(None)
        if settings.data_dir is not None:
            try:
                self._data_dir = DataDir.claim(settings.data_dir)
            except Taken as problem:
                raise StartError(f"data_dir {settings.data_dir}: {problem}") from None
            except OSError as problem:
                raise StartError(f"data_dir {settings.data_dir}: {problem.strerror}") from None
        try:
            self._check_database_file()
            await self._open_database()
            await self._listen()
            # In the background: runs wait until remote evaluators are available again, other callers do not.
            self._beginning = asyncio.create_task(self._begin_runs())
        except BaseException:
            await self.runner.drain(0)
            await self._stop_ports(None)
            await self._close()
            raise

    async def _begin_runs(self) -> None:
        await self.remotes.settle(_RESTORE_SECONDS)
        self.runner.begin()

    def _check_database_file(self) -> None:
        """Raise StartError for a database that lost its content, which SQLite would take for a new one."""
        path = self.settings.data_dir / FILE_NAME if self.settings.data_dir is not None else None
        if self._data_dir is None or path is None or self.settings.store is not None:
            return
        if self._data_dir.is_used and path.exists() and not path.stat().st_size:
            raise StartError(
                f"data_dir {self.settings.data_dir}: {FILE_NAME} is empty, but this directory was in use: its content is "
                "lost. Restore the file from a backup, or delete it to begin with an empty store"
            )

    async def _open_database(self) -> None:
        settings = self.settings
        try:
            await self.database.start()
            await self.remotes.start()
            await self.runner.start(RESTARTED if settings.authenticates else LOCAL)
            await self.suites.start()
        except StoreProblem as problem:
            place = "store" if settings.store is not None else f"data_dir {settings.data_dir}"
            raise StartError(f"{place}: {problem.message}; the log says why") from None
        if self._data_dir is not None and settings.store is None:
            self._data_dir.mark_used()

    async def _listen(self) -> None:
        settings = self.settings
        address = self._bind("listen", settings.listen, require=settings.tls_client_auth == "require")
        if settings.listen_mtls:
            self.mtls_address = self._bind("listen_mtls", settings.listen_mtls, require=True)
        if settings.http:
            http_host, http_port = split_address(settings.http)
            try:
                self._http = HttpServer(
                    self.telemetry,
                    host=http_host,
                    port=http_port,
                    ready=lambda: self._health.serving,
                    store_problem=lambda: self.database.problem,
                    answers_to=partial(answers_to, settings, http_host),
                    tls=self._http_context if self._certificates and settings.http_tls else None,
                    may_scrape=self._may_scrape,
                )
            except OSError as problem:
                raise StartError(
                    f"http {settings.http}: {problem.strerror or problem}; "
                    f"is another server using port {http_port}? Port 0 picks a free one."
                ) from None
            self.http_address = _join(http_host, self._http.start())
        await self._listen_web()
        for port in self._ports.values():
            await port.start()
        self.address = address
        endless: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._watch_lag,
            self._gate.watch,
            partial(self.models.watch, self._judge_available),
            self._watch_store,
        ]
        if self._authenticator is not None and self._authenticator.tokens is not None:
            endless.append(self._authenticator.tokens.source.watch)
        if settings.runs_max_age is not None or settings.runs_max_count is not None:
            endless.append(self._trim_runs)
        if self._certificates is not None:
            endless.append(partial(self._reload_certificates, self._certificates))
        self._background = [asyncio.create_task(_restarting(watch)) for watch in endless]
        self._health.set_serving(True)
        given = {"encryption": self._certificates, "authentication": self._authenticator}
        missing = " and ".join(name for name, there in given.items() if there is None)
        public = filter(is_public, (self.address, self.mtls_address, self.web_address))
        for exposed in public if missing else ():
            _log.warning("listening on %s without %s", exposed, missing)

    async def _listen_web(self) -> None:
        """Open the web port if it is configured and its packages are installed. Raises StartError."""
        if not self.settings.web:
            return
        try:
            from evald_server.http.access import WebAccess
            from evald_server.http.calls import Calls
            from evald_server.http.site import Site
            from evald_server.http.web import WebServer
        except ModuleNotFoundError as problem:
            missing = (problem.name or "").partition(".")[0]
            if missing not in _WEB_PACKAGES:
                raise
            _log.warning("no web port: %s is not installed: pip install 'evald[web]'", missing)
            return
        calls = Calls(self._gate, web_streams())
        access = WebAccess(self._authenticator)
        site = Site(self.settings, calls, access, self.database, self.telemetry)
        web = WebServer(site, self._http_context if self._certificates else None, web_connections())
        host, port = split_address(self.settings.web)
        try:
            bound = await web.start(host, port)
        except OSError as problem:
            if "web" not in self.settings.model_fields_set:
                # The default port is no reason to fail: another server on this machine may use it.
                _log.warning(
                    "no web port: %s: %s; set another address with web (EVALD_WEB)",
                    self.settings.web,
                    problem,
                )
                return
            raise StartError(
                f"web {self.settings.web}: {problem.strerror or problem}; is another server using port {port}? "
                "Port 0 picks a free one, an empty address opens none."
            ) from None
        self._web = web
        self.web_address = _join(host, bound)

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Report NOT_SERVING, refuse new calls, wait up to the grace period for open ones, and stop.

        Takes at most 2 s longer than drain_delay plus the grace period. The default grace period is drain_grace.
        """
        if not self._ports:
            return
        grace = self.settings.drain_grace if grace_seconds is None else grace_seconds
        self._health.set_serving(False)
        if self.settings.drain_delay:
            await asyncio.sleep(self.settings.drain_delay)
        self._registrations.drain(self._rpc.end_stream)
        if self._beginning is not None:
            self._beginning.cancel()
        admission = self.admission
        draining = asyncio.create_task(
            self.remotes.drain(grace, lambda: admission.queued, lambda: admission.inflight)
        )
        # Before stopping gRPC's server, which ends calls that have no handler yet with CANCELLED.
        interrupting = asyncio.create_task(self.runner.drain(grace))
        await self._rpc.drain(grace)
        await interrupting
        stopping = asyncio.create_task(self._stop_ports(_FINAL_STATUS_SECONDS))
        # Send GOAWAY before the refusals, so that clients do not reuse the connection.
        await asyncio.wait([stopping], timeout=_GOAWAY_SECONDS)
        if self._web is not None:
            self._web.close()
        self._rpc.end()
        await stopping
        draining.cancel()
        await self._close()

    async def _close(self) -> None:
        """Close all that is open but the gRPC ports."""
        await self.remotes.stop()
        for task in self._background:
            task.cancel()
        if self._web is not None:
            await self._web.stop()
        if self._http is not None:
            await asyncio.to_thread(self._http.stop)
        await self.batch_processes.aclose()
        await self.models.close()
        await self.scripts.aclose()
        await close_workers()
        self.threads.close()
        await self.suites.stop()
        await self._close_storage()

    async def _close_storage(self) -> None:
        await self.database.close()
        if self._data_dir is not None:
            self._data_dir.close()

    def _bind(self, setting: str, address: str, *, require: bool) -> str:
        """Bind a gRPC port and return its address. require: clients need a certificate. Raises StartError."""
        settings = self.settings
        port = RpcPort(
            self._gate,
            server_options(settings),
            settings.max_calls,
            None if self._certificates is None else self._certificates.content,
            require=require,
        )
        host, number = split_address(address)
        bound = port.bind(address)
        if not bound:
            raise StartError(
                f"{setting} {address}: the address is not available; is another server using "
                f"port {number}? Port 0 picks a free one."
            )
        self._ports[_join(host, bound)] = port
        return _join(host, bound)

    async def _stop_ports(self, grace_seconds: float | None) -> None:
        ports, self._ports = self._ports, {}
        await asyncio.gather(*(port.stop(grace_seconds) for port in ports.values()))

    def _http_context(self) -> ssl.SSLContext:
        assert self._certificates is not None
        return self._certificates.content.context

    def _may_scrape(self, credentials: list[str], address: tuple[Any, ...]) -> int:
        """Return the HTTP status for a scrape with these `Authorization` headers. address: of its caller."""
        settings = self.settings
        if self._authenticator is None or settings.metrics_public or not is_public(settings.http):
            return 200
        headers, peer = [("authorization", one) for one in credentials], peer_of(address)
        try:
            principal = self._authenticator.authenticate(headers, peer=peer)
            self._authenticator.authorize(principal, "/metrics", SCRAPERS)
        except AccessDenied as problem:
            self._audit.refused("/metrics", peer, problem.reason, problem.why, problem.principal)
            return {"ROLE_MISSING": 403, "RATE_LIMITED": 429}.get(problem.reason, 401)
        self._authenticator.passed(principal)
        self._audit.used("/metrics", principal)
        return 200

    def _current_plugin(self, principal: Principal) -> Principal | None:
        """Return a principal with its current rights; None if it may no longer offer evaluators.

        An expired token or certificate is no reason: the plugin's next call brings new credentials.
        """
        if self._authenticator is None:
            return LOCAL
        try:
            current = self._authenticator.current(principal)
        except AccessDenied as problem:
            expired = principal.kind != "key" and problem.reason == "CREDENTIALS_EXPIRED"
            return principal if expired else None
        return current if Role.PLUGIN in current.roles else None

    async def _reload_certificates(self, certificates: WatchedFiles[Certificates]) -> None:
        """Poll the certificate files. Use changed certificates for new connections if they are valid."""
        self.telemetry.access.set_expiries(certificates.content.expiries)
        while True:
            await asyncio.sleep(self.settings.tls_reload_seconds)
            if await certificates.poll():
                for port in self._ports.values():
                    port.publish(certificates.content)
                self.telemetry.access.set_expiries(certificates.content.expiries)
                _log.info("new certificates are in use")
                record("certificates changed", None)

    def _judge_problem(self, name: str) -> str:
        """Return the problem with the name of a judge, "" if there is none."""
        try:
            self.models.get(name or None, None)
        except ValueError as problem:
            return str(problem)
        return ""

    def _table(self, engine: Engine) -> dict[str, dict[str, Any]]:
        rpc, admission, metrics = self._rpc, self.admission, self.telemetry
        batcher = CallBatcher(discard=_abandon)
        answers = IdempotencyStore(self.settings.answer_cache_bytes)
        evaluations = (rpc, engine, batcher, admission, answers, metrics)
        sessions = SessionService(engine, batcher, admission, metrics, 2 * self.settings.max_message_bytes)
        batches = BatchService(engine, admission, metrics, self.batch_processes, rpc.slices)
        stored = self._stored_services(engine)
        services: dict[str, Methods] = {
            evaluate.NAME: {
                "EvaluateSession": sessions.evaluate_session,
                "EvaluateBatch": batches.evaluate_batch,
                "ValidateSpecs": partial(evaluate.validate_specs, engine),
            },
            **stored,
            **_handlers(
                {
                    "evald.v1.CatalogService": CatalogService(self.registry),
                    "evald.plugin.v1.RegistryService": self._registrations,
                }
            ),
        }
        table = {name: rpc.service(name, methods) for name, methods in services.items()}
        table[evaluate.NAME] |= {
            "EvaluateUnary": evaluate.UnaryCalls(*evaluations).handler(),
            "Evaluate": evaluate.StreamCalls(*evaluations).handler(),
        }
        self._health = Health(tuple(table), stored, max(1, self.settings.max_calls // 8))
        self.database.on_change = lambda: self._health.set_degraded(bool(self.database.problem))
        table[HEALTH] = rpc.service(HEALTH, self._health.methods(), is_standard=True)
        if self.settings.reflection:
            reflection = reflection_methods([*table, REFLECTION, REFLECTION_ALPHA])
            for name in (REFLECTION, REFLECTION_ALPHA):
                table[name] = rpc.service(name, reflection, is_standard=True)
        return table

    def _stored_services(self, engine: Engine) -> dict[str, Methods]:
        """Return the services of resources, runs and suites, which check references to each other."""
        store, max_messages = ResourceStore(self.database), self.settings.max_messages
        resources = ResourceKinds(store, engine.planner, self._connectors, self._judge_problem, max_messages)
        self.suites = SuiteService(
            SuiteStore(self.database),
            engine,
            self.admission,
            self.telemetry,
            resources,
            self.batch_processes,
            self._rpc.slices,
        )
        runs = RunService(RunStore(self.database), self.runner, engine, resources)
        stored = _handlers({"evald.v1.RunService": runs, "evald.v1.SuiteService": self.suites})
        return resources.services() | stored

    def _judge_available(self, available: bool) -> None:
        self.registry.set_state(JUDGE, State.ACTIVE if available else State.UNAVAILABLE)

    async def _trim_runs(self) -> None:
        """Delete old runs and suite runs, at once and then every ten minutes."""
        stored_runs, stored_suites = RunStore(self.database), SuiteStore(self.database)
        max_age, max_count = self.settings.runs_max_age, self.settings.runs_max_count
        while True:
            try:
                deleted = await stored_runs.trim(max_age=max_age, max_count=max_count)
                deleted += await stored_suites.trim(max_age=max_age, max_count=max_count)
            except StoreProblem as problem:
                _log.warning("cannot delete old runs: %s", problem.message)
            else:
                if deleted:
                    _log.info("deleted %d runs by runs_max_age and runs_max_count", deleted)
            await asyncio.sleep(_TRIM_PERIOD_SECONDS)

    async def _watch_store(self) -> None:
        """Notice that the store cannot be used, or can be used again, also when nobody asks for it."""
        while True:
            await asyncio.sleep(_STORE_PERIOD_SECONDS)
            await self.database.probe()

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _LAG_PERIOD_SECONDS
            await asyncio.sleep(_LAG_PERIOD_SECONDS)
            self.telemetry.saturation.loop_lag(max(0.0, loop.time() - wanted))
            self.telemetry.fold()


def _handlers(services: Mapping[str, object]) -> dict[str, Methods]:
    return {name: handlers_of(name, service) for name, service in services.items()}


def _abandon(started: Sequence[Any]) -> None:
    """Abandon the run of a call that was cancelled before it received what was started for it."""
    run: EvaluationRun | None = started[-1]
    if run is not None:
        run.abandon()


async def _restarting(watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a background task, and start it again when it fails: without it revoked keys, for example, stay valid."""
    while True:
        try:
            await watch()
        except Exception:  # noqa: BLE001 - whatever it is
            _log.exception("a background task failed, and starts again")
            await asyncio.sleep(_RESTART_SECONDS)
        else:
            return


def _judge_caller() -> Caller:
    """Return the caller of the current call for the judges' budget."""
    principal = caller()
    if principal is RESTARTED:
        return Caller()
    return Caller(principal.name, principal.judge_usd_per_day)


def build_registry(
    settings: Settings,
    threads: Threads,
    scripts: ScriptRunner,
    models: ConfiguredModels,
) -> Registry:
    """Register the built-ins and the plugins, and mark the evaluators of the setting `auto`.

    Raises PluginError, StartError.
    """
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
        code_definition(scripts),
        Origin.BUILT_IN,
        state=State.UNAVAILABLE if scripts.unavailable else State.ACTIVE,
    )
    load_plugins(registry, settings.plugins)
    for name, config in settings.auto.items():
        entry = registry.get(name)
        if entry is None:
            raise StartError(
                f'auto: unknown evaluator type "{name}"; '
                f"known types: {', '.join(entry.definition.type for entry in registry.types())}"
            )
        with _start_errors(f'auto: "{name}"'):
            entry.definition.compile(config)
        registry.set_auto(name, config)
    return registry


def build_authenticator(settings: Settings, telemetry: Telemetry) -> Authenticator | None:
    """Return the authenticator; None if callers need no credentials. Raises StartError."""
    if not settings.authenticates:
        return None
    keys = clients = None
    if settings.keys_file is not None:
        with _start_errors("keys_file"):
            keys = KeyFile(settings.keys_file, partial(telemetry.access.file_reads.add, "keys_file"))
    if settings.tls_clients_file is not None:
        with _start_errors("tls_clients_file"):
            count = partial(telemetry.access.file_reads.add, "tls_clients_file")
            clients = ClientFile(settings.tls_clients_file, count)
    tokens = None if settings.jwt_issuer is None else build_tokens(settings, telemetry)
    roles = frozenset(map(Role, settings.auth_anonymous_roles))
    if roles:
        _log.warning(
            "callers without credentials have roles (auth_anonymous_roles): %s", ", ".join(sorted(roles))
        )
    return Authenticator(
        keys,
        telemetry.access.checks.add,
        tokens=tokens,
        clients=clients,
        anonymous=anonymous(roles) if roles else None,
    )


def build_tokens(settings: Settings, telemetry: Telemetry) -> "TokenVerifier":
    """Return the verifier of JSON Web Tokens. Raises StartError."""
    try:
        from evald_server.auth.jwks import MAX_BYTES, JwksFile, JwksUrl
        from evald_server.auth.tokens import TokenVerifier
    except ImportError as problem:
        raise StartError(f"jwt_issuer: {problem.name} is not installed: pip install 'evald[jwt]'") from None
    outcome, url, source = telemetry.access.key_set_reads.add, settings.jwt_jwks_url, None
    if settings.jwt_jwks_file is not None:
        with _start_errors("jwt_jwks_file"):
            source = JwksFile(settings.jwt_jwks_file, outcome)
    assert settings.jwt_issuer is not None
    assert settings.jwt_audience is not None
    return TokenVerifier(
        source
        or JwksUrl(partial(fetch_document, url or "", seconds=_JWKS_SECONDS, max_bytes=MAX_BYTES), outcome),
        settings.jwt_issuer,
        settings.jwt_audience,
        roles_claim=settings.jwt_roles_claim,
        types_claim=settings.jwt_types_claim,
    )


def build_certificates(settings: Settings, telemetry: Telemetry) -> WatchedFiles[Certificates] | None:
    """Return the certificates; None for plaintext. Raises StartError."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    with _start_errors():
        certificates = WatchedFiles(
            "tls",
            tuple(path for path in files if path is not None),
            partial(read_certificates, files),
            telemetry.access.reloads.add,
        )
    if files.key.stat().st_mode & stat.S_IROTH:
        # No reason to refuse: in a container, where a mounted secret has such a mode, there is no other user.
        _log.warning(
            "tls_key_file %s: every user of this machine can read the key; run chmod 600 on it", files.key
        )
    return certificates


def build_database(settings: Settings) -> Database:
    """Return the database, not opened yet."""
    if settings.store is not None:
        return Database(settings.store.get_secret_value())
    return Database(MEMORY if settings.data_dir is None else settings.data_dir / FILE_NAME)


def build_batch_processes(settings: Settings, limits: PlanLimits) -> BatchPool:
    """Return the pool of batch processes, none of them started yet."""
    config = ProcessConfig(
        limits,
        fail_open=settings.on_error == "fail_open",
        max_messages=settings.max_messages,
        auto=settings.auto,
        log_format=settings.log_format,
        log_level=settings.log_level,
    )
    return BatchPool(config, settings.batch_processes)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
