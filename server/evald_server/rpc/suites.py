"""SuiteService."""

import asyncio
import hashlib
import json
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final
from uuid import uuid4

from evald.v1 import connector_service_pb2
from evald.v1 import suite_service_pb2 as pb
from evald.v1.result_pb2 import Verdict
from evald.v1.suite_service_pb2 import CaseResult, SuiteComparison, SuiteOpen, SuiteRun
from evald_server import wire_pb2
from evald_server.auth.current_call import need, recorded
from evald_server.auth.principal import Principal
from evald_server.auth.roles import METHODS
from evald_server.batch.pool import BatchPool
from evald_server.call_errors import CallError, invalid, refusal
from evald_server.connectors.connector import Connector
from evald_server.engine.engine import Engine
from evald_server.engine.run import EvaluationRun
from evald_server.fair_slots import FairSlots
from evald_server.monitoring import Telemetry
from evald_server.runs.suite import SuiteSetup
from evald_server.store.database import StoreProblem
from evald_server.store.resources import IdTaken
from evald_server.store.retries import with_retries
from evald_server.store.suites import (
    SuiteFilter,
    SuiteRunKey,
    SuiteRunNotFound,
    SuiteRunState,
    SuiteStore,
)
from evald_server.suites.comparison import MAX_DROP, compare, merge_by_id

from .admission import Admission, scope_of
from .connectors import ConnectorService
from .errors import check_enum, microseconds
from .pages import page_size, page_token, read_page, read_token
from .server import Methods, RpcStream, parse
from .stream_tasks import StreamSlices
from .suite_checks import check_specs, suite_problems
from .suite_stream import SuiteStream

_log = logging.getLogger("evald.suites")

NAME: Final = "evald.v1.SuiteService"

_USUAL_PAGE: Final = 50

# Time that a resumption waits for the previous stream of the suite run to end.
_TAKE_OVER_SECONDS: Final = 2.0

# Maximum concurrent comparisons: each reads all cases and occupies one of the few threads for reads.
_MAX_COMPARISONS: Final = 2

# Fields of SuiteOpen that may differ when a suite run is resumed.
_OF_ONE_STREAM: Final = ("suite_run_id", "resume", "max_concurrency", "brief")


class SuiteService:
    """Handlers of SuiteService.

    store_seconds: time that a suite run waits for a store that cannot be written; then it is interrupted.
    """

    def __init__(
        self,
        store: SuiteStore,
        engine: Engine,
        admission: Admission,
        telemetry: Telemetry,
        connectors: ConnectorService,
        pool: BatchPool,
        slices: asyncio.Lock,
    ) -> None:
        self.store_seconds = 10.0
        self._store = store
        self._engine = engine
        self._admission = admission
        self._telemetry = telemetry
        self._connectors = connectors
        self._pool = pool
        self._running: dict[str, asyncio.Event] = {}  # by suite run id; set when the stream has ended
        self._settling: set[asyncio.Task[None]] = set()
        self._purging: asyncio.Task[None] | None = None
        self._slices = slices
        self._comparisons = FairSlots(_MAX_COMPARISONS)
        self._stopping = False
        telemetry.suites.running.set_function(lambda: len(self._running))

    def methods(self) -> Methods:
        """Return the handlers by method."""
        return {
            "RunSuite": self.run,
            "GetSuiteRun": self.get,
            "ListSuiteRuns": self.list_page,
            "ListCaseResults": self.list_cases,
            "CompareSuiteRuns": self.compare,
            "DeleteSuiteRun": self.delete,
        }

    async def start(self) -> None:
        """Mark suite runs that ended with an earlier server as interrupted, on a full disk as soon as that is possible.

        Raises StoreProblem if they cannot be read.
        """
        for run_id in await self._store.running():
            try:
                await self._store.interrupt(run_id)
            except StoreProblem as problem:
                _log.warning("suite run %s: cannot be marked as interrupted yet: %s", run_id, problem.message)
                over = self._running[run_id] = asyncio.Event()
                self._settle(run_id, over)
        self._purging = asyncio.create_task(self._purge())

    async def stop(self) -> None:
        """Try once more to store which suite runs were interrupted."""
        self._stopping = True
        if self._purging is not None:
            self._purging.cancel()
        if self._settling:
            await asyncio.wait(self._settling)

    async def _purge(self) -> None:
        """Finish the deletions that an earlier server began."""
        try:
            await self._store.purge()
        except StoreProblem as problem:
            _log.warning("could not remove the data of deleted suite runs: %s", problem.message)

    async def run(self, stream: RpcStream) -> None:
        """Run a suite until the caller half-closes."""
        data = await stream.read()
        if data is None:
            raise invalid("open", "the stream ended before its first message")
        message = parse(wire_pb2.RunSuiteRequest, data)
        if not message.HasField("open"):
            raise invalid("open", "missing; the first message must open the suite run")
        opened = message.open
        connector_pb = await self._connector(opened)
        run = _new_run(opened, connector_pb)
        connector = None if connector_pb is None else self._build(connector_pb)
        try:
            setup = self._setup(run.id, opened, connector, stream)
            if setup.specs:
                await check_specs(self._engine.planner, setup.specs, setup.options, "open")
            if opened.validate_only:
                return
            await self._take_over(run.id, resume=opened.resume)
            over = self._running[run.id] = asyncio.Event()
            try:
                ended = await self._run(stream, setup, run, message)
            except BaseException:
                self._settle(run.id, over)
                raise
            del self._running[run.id]
            over.set()
            self._telemetry.suites.ended.add(Verdict.Name(ended.verdict).removeprefix("VERDICT_").lower())
        finally:
            if connector is not None:
                await connector.aclose()

    async def get(self, request: pb.GetSuiteRunRequest) -> pb.GetSuiteRunResponse:
        """Return a suite run."""
        run = await self._store.get(request.suite_run_id) if request.suite_run_id else None
        if run is None:
            raise _no_run("suite_run_id", request.suite_run_id)
        return pb.GetSuiteRunResponse(suite_run=run)

    async def list_page(self, request: pb.ListSuiteRunsRequest) -> pb.ListSuiteRunsResponse:
        """Return a page of suite runs."""
        size = page_size(request.page_size, _USUAL_PAGE)
        check_enum(request, "status", max(pb.SuiteRunStatus.values()))
        check_enum(request, "verdict", max(Verdict.values()))
        place = read_token(request.page_token, "[0-9]{1,18}")
        wanted = SuiteFilter(
            suite=request.suite,
            target=request.target,
            status=request.status,
            verdict=request.verdict,
            since=microseconds(request, "since", "since"),
            until=microseconds(request, "until", "until"),
        )
        page, more = await read_page(
            size,
            int(place) if place else None,
            lambda after, limit: self._store.list(wanted, after=after, limit=limit),
            lambda row: row[0],
            lambda row: row[1].ByteSize(),
        )
        response = pb.ListSuiteRunsResponse(suite_runs=[run for _, run in page])
        if more:
            response.next_page_token = page_token(str(page[-1][0]))
        return response

    async def list_cases(self, request: pb.ListCaseResultsRequest) -> wire_pb2.ListCaseResultsResponse:
        """Return a page of the cases of a suite run."""
        size = page_size(request.page_size, _USUAL_PAGE)
        check_enum(request, "verdict", max(Verdict.values()))

        async def read(after: str, limit: int) -> Sequence[tuple[str, bytes]]:
            found = await self._store.cases(
                request.suite_run_id,
                after=after,
                limit=limit,
                verdict=request.verdict,
                case_id=request.case_id,
                brief=request.brief,
            )
            if found is None:
                raise _no_run("suite_run_id", request.suite_run_id)
            return found

        page, more = await read_page(
            size, read_token(request.page_token), read, lambda row: row[0], lambda row: len(row[1])
        )
        response = wire_pb2.ListCaseResultsResponse(results=[result for _, result in page])
        if more:
            response.next_page_token = page_token(page[-1][0])
        return response

    async def compare(self, request: pb.CompareSuiteRunsRequest) -> pb.CompareSuiteRunsResponse:
        """Compare two suite runs."""
        max_drop = request.max_drop if request.HasField("max_drop") else MAX_DROP
        if not 0 <= max_drop <= 1:  # also refuses NaN
            raise invalid("max_drop", f"got {max_drop}, wanted 0 to 1")
        for field in ("base_id", "new_id"):
            run_id = getattr(request, field)
            run = await self._store.get(run_id) if run_id else None
            if run is None:
                raise _no_run(field, run_id)
            if run.status != pb.SUITE_RUN_STATUS_COMPLETED:
                raise _wrong_status(
                    field, f"got a suite run that is {_name(run.status)}, wanted one that is completed"
                )

        gone = threading.Event()  # the call has ended, so the thread may stop

        def consume(
            base: SuiteRun, new: SuiteRun, left: Iterator[bytes], right: Iterator[bytes]
        ) -> SuiteComparison:
            wanted = (takewhile(lambda _: not gone.is_set(), cases) for cases in (left, right))
            sides = (map(CaseResult.FromString, cases) for cases in wanted)
            return compare(base, new, merge_by_id(*sides), max_drop)

        try:
            async with self._comparisons.slot():
                comparison = await self._store.both(request.base_id, request.new_id, consume)
        except SuiteRunNotFound as problem:  # deleted in the meantime
            raise _no_run("base_id" if str(problem) == request.base_id else "new_id", str(problem)) from None
        finally:
            gone.set()
        return pb.CompareSuiteRunsResponse(comparison=comparison)

    async def delete(self, request: pb.DeleteSuiteRunRequest) -> pb.DeleteSuiteRunResponse:
        """Delete a suite run that has ended."""
        run_id = request.suite_run_id
        try:
            deleted = await recorded(self._store.delete(run_id), "deleted", "suite run", run_id)
        except SuiteRunState:
            raise _wrong_status(
                "suite_run_id", "the suite run has not ended; end its stream first, then delete it"
            ) from None
        if not deleted:
            raise _no_run("suite_run_id", run_id)
        return pb.DeleteSuiteRunResponse()

    async def _connector(self, opened: SuiteOpen) -> connector_service_pb2.Connector | None:
        """Return the connector of a suite; None without one. Raises CallError if the suite is not valid."""
        found = suite_problems(opened)
        if found:
            raise refusal(found)
        if opened.connector_id:
            return await self._connectors.load(opened.connector_id, "open.connector_id")
        if not opened.HasField("connector"):
            return None
        if any("${" in value for value in opened.connector.headers.values()):
            need(_check_may_use_secrets)
        return opened.connector

    def _build(self, connector_pb: connector_service_pb2.Connector) -> Connector:
        connector = self._connectors.build(connector_pb, "open.connector")
        if connector.brings_user:
            raise invalid(
                "open.connector.type",
                f'got "{connector_pb.type}", which also plays the user; wanted a type whose agent answers the cases. '
                "Send recorded answers in recorded_trials",
            )
        return connector

    def _setup(
        self, run_id: str, opened: SuiteOpen, connector: Connector | None, stream: RpcStream
    ) -> SuiteSetup:
        labels = dict(opened.labels)

        def count(run: EvaluationRun) -> None:
            self._telemetry.evaluated(run, "RunSuite", labels)

        return SuiteSetup(
            run_id,
            opened,
            tuple(spec.SerializeToString(deterministic=True) for spec in opened.evaluators),
            opened.options.SerializeToString(deterministic=True),
            self._engine,
            count,
            connector=connector,
            admission=self._admission,
            scope=scope_of(stream.context, self._engine.new_id()),
            next_slice=StreamSlices(self._slices).pause,
        )

    async def _run(
        self, stream: RpcStream, setup: SuiteSetup, run: SuiteRun, message: wire_pb2.RunSuiteRequest
    ) -> SuiteRun:
        key, run = await self._opened(run, setup.opened)
        suite = SuiteStream(
            setup, run, key, self._store, stream, self.store_seconds, self._pool, self._telemetry
        )
        try:
            await suite.begin()
            await suite.add(message.cases)
            while (data := await suite.read()) is not None:
                message = parse(wire_pb2.RunSuiteRequest, data)
                if message.HasField("open"):
                    raise invalid("open", "only the first message may open the suite run")
                await suite.add(message.cases)
            await suite.finish()
        finally:
            await suite.close()
        await suite.send_end()
        return suite.run

    async def _opened(self, run: SuiteRun, opened: SuiteOpen) -> tuple[SuiteRunKey, SuiteRun]:
        """Store a new suite run, or resume the stored one. Raises CallError."""
        opening = _opening(opened)

        def check(stored: bytes) -> None:
            before = json.loads(stored)
            changed = [name for name in opening | before if opening.get(name) != before.get(name)]
            if "cases_digest" in changed:
                raise invalid(
                    "open.cases_digest",
                    "the cases differ from those that the suite run was started with; resume it with the same "
                    "cases, or start a new suite run",
                )
            if changed:
                raise invalid(
                    f"open.{changed[0]}",
                    "differs from the value that the suite run was started with; resume it with the same value, or "
                    "start a new suite run",
                )

        try:
            if opened.resume:
                return await self._store.resume(run.id, check)
            return await self._store.create(run, json.dumps(opening).encode()), run
        except IdTaken:
            raise _taken(run.id) from None
        except SuiteRunNotFound:
            raise _no_run("open.suite_run_id", run.id) from None
        except SuiteRunState as problem:
            raise _wrong_status(
                "open.suite_run_id",
                f"got a suite run that is {_name(problem.status)}, wanted one that is interrupted, or completed "
                "with cases in error",
            ) from None

    async def _take_over(self, run_id: str, *, resume: bool) -> None:
        """Wait for the end of a suite run's previous stream. Raises CallError if it continues."""
        over = self._running.get(run_id)
        if over is not None:
            if not resume:
                raise _taken(run_id)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _TAKE_OVER_SECONDS)
        if run_id in self._running:
            raise _wrong_status(
                "open.suite_run_id", "another stream runs this suite run; end that stream first"
            )

    def _settle(self, run_id: str, over: asyncio.Event) -> None:
        """Store that a suite run was interrupted. Retries until it succeeds or, after one attempt, the server stops."""

        async def settle() -> None:
            try:
                interrupted = await with_retries(
                    lambda: self._store.interrupt(run_id), math.inf, give_up=lambda: self._stopping
                )
                if interrupted:
                    self._telemetry.suites.ended.add("interrupted")
            except StoreProblem:
                _log.error(
                    "suite run %s: could not store that it was interrupted; the server stores it at its next start",
                    run_id,
                )
            finally:
                del self._running[run_id]
                over.set()

        task = asyncio.create_task(settle())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


def _check_may_use_secrets(principal: Principal) -> None:
    """Raise CallError unless a caller may write connectors, which can send the server's secrets to any address."""
    create = "/evald.v1.ConnectorService/CreateConnector"
    wanted = METHODS[create]
    if principal.roles.isdisjoint(wanted):
        roles = ", ".join(sorted(wanted))
        raise CallError(
            "ROLE_MISSING",
            f"open.connector.headers: {principal.name} may not use environment variables of the server; wanted one of "
            f"the roles: {roles}. Use a stored connector (connector_id) instead",
            method=create,
            roles=roles,
        )


def _new_run(opened: SuiteOpen, connector: connector_service_pb2.Connector | None) -> SuiteRun:
    reached = "recorded" if connector is None else connector.name or connector.type
    run = SuiteRun(
        id=opened.suite_run_id or str(uuid4()),
        suite=opened.suite,
        target=opened.target or reached,
        status=pb.SUITE_RUN_STATUS_RUNNING,
        threshold=opened.threshold if opened.HasField("threshold") else 1.0,
        trials=opened.trials,
        labels=opened.labels,
        metadata=opened.metadata if opened.HasField("metadata") else None,
    )
    run.create_time.GetCurrentTime()
    return run


def _opening(opened: SuiteOpen) -> dict[str, str]:
    """Return digests, by name, of the fields that must be the same when the suite run is resumed."""
    digests = {}
    for field, _ in opened.ListFields():
        if field.name not in _OF_ONE_STREAM:
            alone = SuiteOpen()
            alone.CopyFrom(opened)
            for other in SuiteOpen.DESCRIPTOR.fields:
                if other.name != field.name:
                    alone.ClearField(other.name)
            digests[field.name] = hashlib.sha256(alone.SerializeToString(deterministic=True)).hexdigest()
    return digests


def _name(status: int) -> str:
    """Return the name of a suite run's status for messages, such as "running"."""
    name: str = pb.SuiteRunStatus.Name(status)
    return name.removeprefix("SUITE_RUN_STATUS_").lower()


def _no_run(field: str, run_id: str) -> CallError:
    text = f'no suite run has the id "{run_id[:100]}"; ListSuiteRuns returns the existing ones'
    return invalid(field, text, "RESOURCE_NOT_FOUND")


def _taken(run_id: str) -> CallError:
    text = f'a suite run with the id "{run_id}" already exists; resume it, or omit the id'
    return invalid("open.suite_run_id", text, "RESOURCE_EXISTS")


def _wrong_status(field: str, text: str) -> CallError:
    return invalid(field, text, "RUN_STATUS")
