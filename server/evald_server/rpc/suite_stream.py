"""One RunSuite stream: receive cases, evaluate and store each, and only then send its result."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from evald.v1.suite_service_pb2 import SUITE_RUN_STATUS_COMPLETED, CaseResult, SuiteOpen, SuiteRun
from evald_server import wire_pb2
from evald_server.batch.chunk import can_run, slice_of
from evald_server.batch.pool import BatchPool
from evald_server.call_errors import CallError, invalid
from evald_server.engine.plan import InvalidPlan, Plan
from evald_server.monitoring import Telemetry
from evald_server.runs.case_checks import case_problem
from evald_server.runs.recorded import MAX_CASE_BYTES
from evald_server.runs.suite import CaseRun, SuiteSetup, TrialRun
from evald_server.runs.suite_chunk import SuiteChunk, SuiteChunkResult
from evald_server.store.retries import with_retries
from evald_server.store.suites import StoredCase, SuiteRunKey, SuiteStore
from evald_server.suites.verdicts import SuiteTotals

from .errors import as_call_error
from .server import RpcStream, parse
from .stream_tasks import CHUNKS_PER_PROCESS, StreamTasks, count_chunk, next_part

# Maximum cases and bytes of one commit, and of one message to the caller.
_MAX_CASES: Final = 256
_MAX_BYTES: Final = MAX_CASE_BYTES

# Maximum stored cases per read: each may have a few MiB.
_MAX_READ: Final = 64

# Maximum concurrent waiting recorded trials of one suite run.
_MAX_WAITING: Final = 64

_USUAL_CONCURRENCY: Final = 8

# When the caller disconnects or the server stops, gRPC first ends the stream and cancels the call a moment later.
# `finish` waits for that cancellation, so that an incomplete suite does not get a verdict.
_GONE_SECONDS: Final = 0.05

_Sent: TypeAlias = tuple[int, bytes]
"""The index of a case in its message, and the encoded case."""


class _Answer(NamedTuple):
    """A finished case. stored: the row to store; None if it is stored already. data: the result for the caller.

    size: the bytes that it holds until it is stored and sent.
    """

    stored: StoredCase | None
    data: bytes
    size: int


@dataclass
class SuiteStream:
    """The cases of one suite run. Call `begin`, `add` for every message, `finish`, and `close` at the end.

    run: the suite run; `finish` fills in its final state. store_seconds: time limit of retries while the store cannot
    be written.
    """

    setup: SuiteSetup
    run: SuiteRun
    key: SuiteRunKey
    store: SuiteStore
    stream: RpcStream
    store_seconds: float
    pool: BatchPool
    telemetry: Telemetry

    def __post_init__(self) -> None:
        self._totals = SuiteTotals(self.run.threshold)
        self._concurrency = self.setup.opened.max_concurrency or _USUAL_CONCURRENCY
        self._tasks = StreamTasks()
        self._asking: set[asyncio.Task[None]] = set()  # trials that ask the agent
        self._waiting: set[asyncio.Task[None]] = set()  # recorded trials
        self._chunks: set[asyncio.Task[None]] = set()  # chunks of recorded cases in batch processes
        self._use_processes = True  # False once processes have skipped most cases of a chunk
        self._done: list[_Answer] = []
        self._done_bytes = 0
        self._storing = asyncio.Lock()
        self._answered: set[str] = set()  # cases stored by earlier attempts and answered in this one
        self._sent = 0  # received cases
        self._count = 0  # finished cases, including those of earlier attempts

    async def begin(self) -> None:
        """Send the start of the suite run, and count the cases stored by earlier attempts."""
        await self.stream.send(wire_pb2.RunSuiteResponse(started=self.run).SerializeToString())
        after = ""
        while self.key.attempt > 1:
            page = await self.store.cases(self.run.id, after=after, limit=_MAX_READ)
            if not page:
                break
            after = page[-1][0]
            for _, data in page:
                self._totals.add(CaseResult.FromString(data))
                self._count += 1
                await self.setup.next_slice()

    async def read(self) -> bytes | None:
        """Return the next message; None at the end. Raises a task's exception at once, without waiting for a message."""
        reading = asyncio.ensure_future(self.stream.read())
        try:
            await asyncio.wait((reading, self._tasks.failed), return_when=asyncio.FIRST_COMPLETED)
            self._tasks.check()
            return reading.result()
        finally:
            reading.cancel()

    async def add(self, messages: Sequence[bytes]) -> None:
        """Run the cases of one message. Returns when there is capacity for the next message."""
        cases = list(enumerate(messages))
        self._sent += len(cases)
        if self.key.attempt > 1:
            cases = await self._without_stored(cases)
        plan = self._plan_of_chunks(len(cases))
        if plan is None:
            await self._run_here(cases)
        else:
            await self._submit(plan, cases)
        self._tasks.check()

    async def finish(self) -> None:
        """Wait for all cases, and store the suite run's end and verdict."""
        await asyncio.sleep(_GONE_SECONDS)
        while tasks := self._chunks or self._asking or self._waiting:
            await self._tasks.any_of(tasks)
        self._tasks.check()
        await self._flush()
        wanted = self.setup.opened.case_count
        if wanted and wanted != self._count:
            raise invalid("open.case_count", f"got {wanted}, but {self._count} cases were sent")
        run = self.run
        self._totals.fill(run)
        run.status = SUITE_RUN_STATUS_COMPLETED
        run.complete_time.GetCurrentTime()
        await with_retries(lambda: self.store.finish(self.key, run), self.store_seconds)

    async def close(self) -> None:
        """Cancel all tasks that still run, as after a disconnect of the caller."""
        await self._tasks.close()

    async def _without_stored(self, cases: Sequence[_Sent]) -> list[_Sent]:
        """Answer the cases that earlier attempts have stored. Returns the others.

        Raises CallError if this stream has sent a case's id before.
        """
        others = []
        for begin in range(0, len(cases), _MAX_READ):
            some = cases[begin : begin + _MAX_READ]
            ids = [_parsed(data, index).case_id for index, data in some]
            find = partial(self.store.find, self.key, ids)
            stored = await with_retries(find, self.store_seconds)
            for case, case_id in zip(some, ids, strict=True):
                await self.setup.next_slice()
                known = stored.get(case_id)
                if known is None:
                    others.append(case)
                    continue
                if known.attempt == self.key.attempt or case_id in self._answered:
                    raise _duplicate(case_id)
                self._answered.add(case_id)
                data = known.whole
                if self.setup.opened.brief:
                    result = CaseResult.FromString(data)
                    del result.trials[:]
                    data = result.SerializeToString()
                self._answer(None, data, len(data))
            await self._flush()
        return others

    def _plan_of_chunks(self, count: int) -> Plan | None:
        """Return the plan for evaluating the next `count` cases in processes; None to evaluate them here."""
        setup = self.setup
        taken = max(self._sent, setup.opened.case_count)
        if not (self._use_processes and setup.specs and self.pool.is_worth_it(taken, count)):
            return None
        try:
            plan = setup.engine.planner.plan(setup.specs, setup.options)
        except InvalidPlan:
            return None  # a type was removed since the suite run began: each case gets the error
        return plan if can_run(plan) else None

    async def _submit(self, plan: Plan, cases: Sequence[_Sent]) -> None:
        """Run cases in a process, or here if none is available."""
        # Limit the results that a slow caller has not received yet.
        while len(self._chunks) >= CHUNKS_PER_PROCESS * self.pool.size:
            await self._tasks.any_of(self._chunks)
        setup = self.setup
        chunk = SuiteChunk(
            setup.run_id,
            SuiteOpen(trials=setup.opened.trials, min_passed=setup.opened.min_passed),
            setup.specs,
            setup.options,
            plan.template.specs,
            [data for _, data in cases],
            setup.connector is not None,
            slice_of(plan, setup.admission.seconds_for(plan)),
        )
        future = await self.pool.submit(chunk, max(self._sent, setup.opened.case_count))
        if future is None:
            await self._run_here(cases)
        else:
            self._tasks.spawn(self._chunks, self._follow(future, plan, chunk, cases))

    async def _follow(
        self,
        future: "asyncio.Future[SuiteChunkResult | None] | None",
        plan: Plan,
        chunk: SuiteChunk,
        cases: Sequence[_Sent],
    ) -> None:
        """Await the results of a chunk. Run the cases here that the process has skipped or not reached."""
        labels = dict(self.setup.opened.labels)
        while future is not None and (result := await future) is not None:
            self._totals.merge(result.totals)
            count_chunk(self.telemetry, "RunSuite", labels, plan, result.counts)
            for row in result.rows:
                self._finished(StoredCase(*row))
            if result.skipped:
                # Stop using processes that skip most cases: they cost more than they save.
                self._use_processes &= 2 * len(result.skipped) <= result.end
                await self._run_here([cases[index] for index in result.skipped])
            await self._flush()
            cases = cases[result.end :]
            if not cases:
                return
            part = [data for _, data in next_part(cases, result.end)]
            chunk = chunk._replace(cases=part, checked=True)
            future = await self.pool.submit(chunk, self._sent)
        await self._run_here(cases)

    async def _run_here(self, sent: Sequence[_Sent]) -> None:
        """Check cases and run them in this process."""
        cases = []
        for index, data in sent:
            await self.setup.next_slice()
            case = _parsed(data, index)
            await _check(case, f"cases[{index}]", self.setup)
            cases.append((case, len(data)))
        for case, size in cases:
            await self.setup.next_slice()
            await self._start(CaseRun(case, self.setup, size))
            if len(self._done) >= _MAX_CASES or self._done_bytes >= _MAX_BYTES:
                await self._flush()
        await self._flush()

    async def _start(self, run: CaseRun) -> None:
        """Start the trials of a case. Returns when each of them has ended or waits."""
        for trial in run.trials():
            await self.setup.next_slice()
            if trial.play():
                continue
            tasks, most = (
                (self._asking, self._concurrency) if trial.asks_agent else (self._waiting, _MAX_WAITING)
            )
            while len(tasks) >= most:
                await self._tasks.any_of(tasks)
            run.open_trials += 1
            self._tasks.spawn(tasks, self._play_on(trial, run))
        self._trial_ended(run)

    async def _play_on(self, trial: TrialRun, run: CaseRun) -> None:
        await trial.play_on()
        self._trial_ended(run)
        await self._flush()

    def _trial_ended(self, run: CaseRun) -> None:
        """Decide a case when the last of its trials has ended."""
        run.open_trials -= 1
        if not run.open_trials:
            run.decide()
            self._totals.add(run.result)
            self._finished(StoredCase(*run.row()))

    def _finished(self, case: StoredCase) -> None:
        self._count += 1
        self._answer(case, case.brief if self.setup.opened.brief else case.whole, len(case.whole))

    def _answer(self, stored: StoredCase | None, data: bytes, size: int) -> None:
        self._done.append(_Answer(stored, data, size))
        self._done_bytes += size

    async def _flush(self) -> None:
        """Store the finished cases and send their results, with those that finish while others are being stored."""
        async with self._storing:
            while self._done:
                taking = size = 0
                for answer in self._done[:_MAX_CASES]:
                    if taking and size + answer.size > _MAX_BYTES:
                        break
                    taking, size = taking + 1, size + answer.size
                answers, self._done = self._done[:taking], self._done[taking:]
                self._done_bytes -= size
                if cases := [answer.stored for answer in answers if answer.stored is not None]:
                    await self._store_cases(cases)
                results = [answer.data for answer in answers]
                await self.stream.send(wire_pb2.RunSuiteResponse(results=results).SerializeToString())

    async def _store_cases(self, cases: Sequence[StoredCase]) -> None:
        """Store cases. Raises CallError if other cases have their ids."""
        tries = count()
        taken = await with_retries(
            lambda: self.store.add(self.key, cases, again=next(tries) > 0), self.store_seconds
        )
        if taken:
            raise _duplicate(min(taken))


async def check_specs(setup: SuiteSetup, specs: tuple[bytes, ...], options: bytes, path: str) -> None:
    """Compile specs. path: prefix of the fields in errors. Raises CallError."""
    try:
        await setup.engine.planner.prepare(specs, options)
        setup.engine.planner.plan(specs, options)
    except InvalidPlan as problem:
        error = as_call_error(problem)
        fields = [one._replace(field=f"{path}.{one.field}") for one in error.violations]
        metadata = error.metadata | {"field": f"{path}.{error.metadata.get('field', '')}"}
        raise CallError(error.reason, f"{path}.{error.message}", fields, **metadata) from None


def _parsed(data: bytes, index: int) -> wire_pb2.SuiteCase:
    """Parse a case. index: its position in the message. Raises CallError."""
    try:
        return wire_pb2.SuiteCase.FromString(data)
    except DecodeError:
        return parse(wire_pb2.SuiteCase, data, f"cases[{index}]")


async def _check(case: wire_pb2.SuiteCase, path: str, setup: SuiteSetup) -> None:
    """Raise CallError if a case cannot run."""
    name = f'(case "{case.case_id[:100]}")'
    problem = case_problem(case, setup, asks_agent=setup.connector is not None)
    if problem is not None:
        raise invalid(f"{path}.{problem.field}", f"{problem.message} {name}")
    options = setup.options_of(case)
    evaluated = False
    for turn in range(len(case.turns)):
        specs = setup.specs_of(case, turn)
        evaluated |= bool(specs)
        if specs and (specs is not setup.specs or options is not setup.options):
            own = f"{path}.turns[{turn}]" if case.turns[turn].evaluators else path
            await check_specs(setup, specs, options, own)
            await setup.next_slice()  # compiling a hundred evaluators takes milliseconds
    # Trials in error are not evaluated.
    broken = bool(case.recorded_trials) and all(trial.HasField("error") for trial in case.recorded_trials)
    if not (evaluated or broken):
        wanted = "wanted at least one evaluator here, in the turns of the case or in open"
        raise invalid(f"{path}.evaluators", f"missing; {wanted} {name}")


def _duplicate(case_id: str) -> CallError:
    text = f'two cases have the id "{case_id[:256]}"; wanted one that is unique in the suite'
    return invalid("cases.case_id", text, case_id=case_id)
