"""SuiteService."""

import asyncio
import hashlib
import json
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Final
from uuid import uuid4

from evald.v1 import suite_service_pb2 as pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.result_pb2 import Verdict
from evald.v1.suite_service_pb2 import CaseResult, SuiteComparison, SuiteOpen, SuiteRun
from evald_server import wire_pb2
from evald_server.auth.current_call import need, recorded
from evald_server.auth.principal import Principal
from evald_server.auth.roles import METHODS
from evald_server.batch.pool import BatchPool
from evald_server.call_errors import BadField, CallError, invalid, refusal
from evald_server.connectors import connector as agents
from evald_server.engine.engine import Engine
from evald_server.monitoring import Telemetry
from evald_server.runs.case_checks import number_problems
from evald_server.runs.suite import SuiteSetup
from evald_server.store.database import StoreProblem
from evald_server.store.resources import IdTaken
from evald_server.store.retries import with_retries
from evald_server.store.suites import SuiteFilter, SuiteRunKey, SuiteRunNotFound, SuiteRunState, SuiteStore
from evald_server.suites.comparison import MAX_DROP, compare, merge_by_id

from .admission import Admission, scope_of
from .errors import check_enum
from .kinds import ResourceKinds
from .pages import page_size, page_token, read_page, read_token
from .server import RpcStream, parse
from .stored import USUAL_PAGE, not_found, read_filter
from .stream_tasks import StreamSlices
from .suite_stream import SuiteStream, check_specs

_log = logging.getLogger("evald.suites")

_MAX_NAME: Final = 200
_MAX_RUN_ID: Final = 100
_MAX_CONCURRENCY: Final = 1000

# Time that a resumption waits for the previous stream of the suite run to end, and a start for unfinished ones.
_TAKE_OVER_SECONDS: Final = 2.0

# Maximum concurrent comparisons: each reads all cases and occupies one of the few threads for reads.
_MAX_COMPARISONS: Final = 2

# Fields of SuiteOpen that may differ when a suite run is resumed.
_OF_ONE_STREAM: Final = ("suite_run_id", "resume", "max_concurrency", "brief")

_CREATE_CONNECTOR: Final = "/evald.v1.ConnectorService/CreateConnector"


@dataclass
class SuiteService:
    """Handlers of SuiteService.

    store_seconds: time that a suite run waits for a store that cannot be written; then it is interrupted.
    """

    store: SuiteStore
    engine: Engine
    admission: Admission
    telemetry: Telemetry
    resources: ResourceKinds
    pool: BatchPool
    slices: asyncio.Lock
    store_seconds: float = 10.0
    # By suite run; set when its stream has ended.
    _running: dict[str, asyncio.Event] = field(default_factory=dict)
    _settling: set[asyncio.Task[None]] = field(default_factory=set)
    _comparisons: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, _MAX_COMPARISONS))
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.telemetry.suites.running.set_function(lambda: len(self._running))

    async def start(self) -> None:
        """Finish what an earlier server began: interruptions, on a full disk as soon as that is possible, and deletions.

        Raises StoreProblem if the suite runs cannot be read.
        """
        for run_id in await self.store.running():
            self._settle(run_id)
        if self._settling:
            await asyncio.wait(self._settling, timeout=_TAKE_OVER_SECONDS)
        try:
            await self.store.purge()
        except StoreProblem as problem:
            _log.warning("could not remove the data of deleted suite runs: %s", problem.message)

    async def stop(self) -> None:
        """Try once more to store which suite runs were interrupted."""
        self._stopping = True
        if self._settling:
            await asyncio.wait(self._settling)

    async def run_suite(self, stream: RpcStream) -> None:
        """Run a suite until the caller half-closes."""
        data = await stream.read()
        if data is None:
            raise invalid("open", "the stream ended before its first message")
        message = parse(wire_pb2.RunSuiteRequest, data)
        if not message.HasField("open"):
            raise invalid("open", "missing; the first message must open the suite run")
        opened = message.open
        if problems := _problems(opened):
            raise refusal(problems)
        connector_pb = await self._connector(opened)
        connector = None if connector_pb is None else self._build(connector_pb)
        run, labels = _new_run(opened, connector_pb), dict(opened.labels)
        try:
            setup = SuiteSetup(
                run.id,
                opened,
                tuple(spec.SerializeToString(deterministic=True) for spec in opened.evaluators),
                opened.options.SerializeToString(deterministic=True),
                self.engine,
                lambda evaluated: self.telemetry.evaluated(evaluated, "RunSuite", labels),
                connector=connector,
                admission=self.admission,
                scope=scope_of(stream.context, self.engine.new_id()),
                next_slice=StreamSlices(self.slices).pause,
            )
            if setup.specs:
                await check_specs(setup, setup.specs, setup.options, "open")
            if opened.validate_only:
                return
            await self._take_over(run.id, resume=opened.resume)
            self._running[run.id] = asyncio.Event()
            try:
                await self._play(stream, setup, run, message)
            except BaseException:
                self._settle(run.id)
                raise
            self._running.pop(run.id).set()
        finally:
            if connector is not None:
                await connector.aclose()

    async def get_suite_run(self, request: pb.GetSuiteRunRequest) -> pb.GetSuiteRunResponse:
        """Return a suite run."""
        run = await self.store.get(request.suite_run_id) if request.suite_run_id else None
        if run is None:
            raise _no_run("suite_run_id", request.suite_run_id)
        return pb.GetSuiteRunResponse(suite_run=run)

    async def list_suite_runs(self, request: pb.ListSuiteRunsRequest) -> pb.ListSuiteRunsResponse:
        """Return a page of suite runs."""
        size, wanted = page_size(request.page_size, USUAL_PAGE), read_filter(request, SuiteFilter)
        place = read_token(request.page_token, "[0-9]{1,18}")
        page, more = await read_page(
            size,
            int(place) if place else None,
            lambda after, limit: self.store.list(wanted, after=after, limit=limit),
            lambda row: row[0],
            lambda row: row[1].ByteSize(),
        )
        token = page_token(str(page[-1][0])) if more else ""
        return pb.ListSuiteRunsResponse(suite_runs=[run for _, run in page], next_page_token=token)

    async def list_case_results(self, request: pb.ListCaseResultsRequest) -> wire_pb2.ListCaseResultsResponse:
        """Return a page of the cases of a suite run."""
        size = page_size(request.page_size, USUAL_PAGE)
        check_enum(request, "verdict", max(Verdict.values()))

        async def read(after: str, limit: int) -> Sequence[tuple[str, bytes]]:
            cases = await self.store.cases(
                request.suite_run_id,
                after=after,
                limit=limit,
                verdict=request.verdict,
                case_id=request.case_id,
                brief=request.brief,
            )
            if cases is None:
                raise _no_run("suite_run_id", request.suite_run_id)
            return cases

        page, more = await read_page(
            size, read_token(request.page_token), read, lambda row: row[0], lambda row: len(row[1])
        )
        token = page_token(page[-1][0]) if more else ""
        return wire_pb2.ListCaseResultsResponse(results=[result for _, result in page], next_page_token=token)

    async def compare_suite_runs(self, request: pb.CompareSuiteRunsRequest) -> pb.CompareSuiteRunsResponse:
        """Compare two suite runs."""
        max_drop = request.max_drop if request.HasField("max_drop") else MAX_DROP
        if not 0 <= max_drop <= 1:  # also refuses NaN
            raise invalid("max_drop", f"got {max_drop}, wanted 0 to 1")
        gone = threading.Event()  # the call has ended, so the thread may stop

        def consume(base: SuiteRun, new: SuiteRun, *cases: Iterator[bytes]) -> SuiteComparison:
            for name, run in (("base_id", base), ("new_id", new)):
                if run.status != pb.SUITE_RUN_STATUS_COMPLETED:
                    got = f"got a suite run that is {_name(run.status)}, wanted one that is completed"
                    raise invalid(name, got, "RUN_STATUS")
            until_gone = (takewhile(lambda _: not gone.is_set(), side) for side in cases)
            sides = (map(CaseResult.FromString, side) for side in until_gone)
            return compare(base, new, merge_by_id(*sides), max_drop)

        try:
            async with self._comparisons:
                comparison = await self.store.both(request.base_id, request.new_id, consume)
        except SuiteRunNotFound as problem:
            raise _no_run("base_id" if str(problem) == request.base_id else "new_id", str(problem)) from None
        finally:
            gone.set()
        return pb.CompareSuiteRunsResponse(comparison=comparison)

    async def delete_suite_run(self, request: pb.DeleteSuiteRunRequest) -> pb.DeleteSuiteRunResponse:
        """Delete a suite run that has ended."""
        run_id = request.suite_run_id
        try:
            if not await recorded(self.store.delete(run_id), "deleted", "suite run", run_id):
                raise _no_run("suite_run_id", run_id)
        except SuiteRunState:
            text = "the suite run has not ended; end its stream first, then delete it"
            raise invalid("suite_run_id", text, "RUN_STATUS") from None
        return pb.DeleteSuiteRunResponse()

    async def _connector(self, opened: SuiteOpen) -> Connector | None:
        """Return the connector of a suite; None without one. Raises CallError."""
        if opened.connector_id:
            return await self.resources.connectors.load(opened.connector_id, "open.connector_id")
        if not opened.HasField("connector"):
            return None
        if any("${" in value for value in opened.connector.headers.values()):
            need(_check_may_use_secrets)
        return opened.connector

    def _build(self, wanted: Connector) -> agents.Connector:
        connector = self.resources.build_connector(wanted, "open.connector")
        if connector.brings_user:
            raise invalid(
                "open.connector.type",
                f'got "{wanted.type}", which also plays the user; wanted a type whose agent answers the cases. '
                "Send recorded answers in recorded_trials",
            )
        return connector

    async def _play(
        self, stream: RpcStream, setup: SuiteSetup, run: SuiteRun, message: wire_pb2.RunSuiteRequest
    ) -> None:
        """Run the cases of a stream to the end. message: the first one."""
        key, run = await self._opened(run, setup.opened)
        suite = SuiteStream(
            setup, run, key, self.store, stream, self.store_seconds, self.pool, self.telemetry
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
        await stream.send(wire_pb2.RunSuiteResponse(ended=run).SerializeToString())
        self.telemetry.suites.ended.add(Verdict.Name(run.verdict).removeprefix("VERDICT_").lower())

    async def _opened(self, run: SuiteRun, opened: SuiteOpen) -> tuple[SuiteRunKey, SuiteRun]:
        """Store a new suite run, or resume the stored one. Raises CallError."""
        opening = _opening(opened)

        def check(stored: bytes) -> None:
            before = json.loads(stored)
            changed = [name for name in opening | before if opening.get(name) != before.get(name)]
            if not changed:
                return
            name = "cases_digest" if "cases_digest" in changed else changed[0]
            differs, same = "differs from the value", "value"
            if name == "cases_digest":
                differs, same = "the cases differ from those", "cases"
            raise invalid(
                f"open.{name}",
                f"{differs} that the suite run was started with; resume it with the same {same}, or start a new "
                "suite run",
            )

        try:
            if opened.resume:
                return await self.store.resume(run.id, check)
            return await self.store.create(run, json.dumps(opening).encode()), run
        except IdTaken:
            raise _taken(run.id) from None
        except SuiteRunNotFound:
            raise _no_run("open.suite_run_id", run.id) from None
        except SuiteRunState as problem:
            text = (
                f"got a suite run that is {_name(problem.status)}, wanted one that is interrupted, or completed "
                "with cases in error"
            )
            raise invalid("open.suite_run_id", text, "RUN_STATUS") from None

    async def _take_over(self, run_id: str, *, resume: bool) -> None:
        """Wait for the end of a suite run's previous stream. Raises CallError if it continues."""
        over = self._running.get(run_id)
        if over is not None:
            if not resume:
                raise _taken(run_id)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _TAKE_OVER_SECONDS)
        if run_id in self._running:
            text = "another stream runs this suite run; end that stream first"
            raise invalid("open.suite_run_id", text, "RUN_STATUS")

    def _settle(self, run_id: str) -> None:
        """Store that a suite run was interrupted. Retries until it succeeds or, after one attempt, the server stops."""
        over = self._running.setdefault(run_id, asyncio.Event())

        async def settle() -> None:
            try:
                interrupted = await with_retries(
                    lambda: self.store.interrupt(run_id), math.inf, give_up=lambda: self._stopping
                )
                if interrupted:
                    self.telemetry.suites.ended.add("interrupted")
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


def _problems(opened: SuiteOpen) -> list[BadField]:
    """Return the invalid fields of a suite, except its connector and its evaluators."""
    problems = []

    def note(field: str, text: str) -> None:
        problems.append(BadField(f"open.{field}", text))

    for name, most in (("suite_run_id", _MAX_RUN_ID), ("suite", _MAX_NAME), ("target", _MAX_NAME)):
        text = getattr(opened, name)
        if len(text) > most or not text.isprintable():
            note(name, f"got {len(text)} characters, wanted at most {most}, all of them printable")
    if not opened.suite.strip():
        note("suite", "missing; wanted the name of the suite")
    if opened.resume and not opened.suite_run_id:
        note("suite_run_id", "missing; wanted the id of the suite run to resume")
    if opened.connector_id and opened.HasField("connector"):
        note("connector_id", "wanted at most one of connector_id and connector")
    for problem in number_problems(opened):
        note(*problem)
    if 0 < opened.trials < opened.min_passed:
        note("min_passed", f"got {opened.min_passed}, wanted at most trials, {opened.trials}")
    if opened.HasField("threshold") and not 0 < opened.threshold <= 1:  # also refuses NaN
        wanted = "more than 0, which every share reaches, and at most 1"
        note("threshold", f"got {opened.threshold}, wanted {wanted}")
    if not 0 <= opened.max_concurrency <= _MAX_CONCURRENCY:
        note("max_concurrency", f"got {opened.max_concurrency}, wanted 0 to {_MAX_CONCURRENCY}")
    if opened.case_count < 0:
        note("case_count", f"got {opened.case_count}, wanted 0 or more")
    return problems


def _check_may_use_secrets(principal: Principal) -> None:
    """Raise CallError unless a caller may write connectors, which can send the server's secrets to any address."""
    wanted = METHODS[_CREATE_CONNECTOR]
    if principal.roles.isdisjoint(wanted):
        roles = ", ".join(sorted(wanted))
        raise CallError(
            "ROLE_MISSING",
            f"open.connector.headers: {principal.name} may not use environment variables of the server; wanted one of "
            f"the roles: {roles}. Use a stored connector (connector_id) instead",
            method=_CREATE_CONNECTOR,
            roles=roles,
        )


def _new_run(opened: SuiteOpen, connector: Connector | None) -> SuiteRun:
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
    alone = {
        field.name: SuiteOpen(**{field.name: value})
        for field, value in opened.ListFields()
        if field.name not in _OF_ONE_STREAM
    }
    return {
        name: hashlib.sha256(field.SerializeToString(deterministic=True)).hexdigest()
        for name, field in alone.items()
    }


def _name(status: int) -> str:
    """Return the name of a suite run's status for messages, such as "running"."""
    name: str = pb.SuiteRunStatus.Name(status)
    return name.removeprefix("SUITE_RUN_STATUS_").lower()


def _no_run(field: str, run_id: str) -> CallError:
    return not_found(field, "suite run", run_id, "ListSuiteRuns")


def _taken(run_id: str) -> CallError:
    text = f'a suite run with the id "{run_id}" already exists; resume it, or omit the id'
    return invalid("open.suite_run_id", text, "RESOURCE_EXISTS")
