"""One RunSuite stream: receive cases, evaluate and store each, and only then send its result."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from evald.v1.suite_service_pb2 import SUITE_RUN_STATUS_COMPLETED, CaseResult, SuiteOpen, SuiteRun
from evald_server import wire_pb2
from evald_server.batch.chunk import can_run, slice_of
from evald_server.batch.pool import BatchPool
from evald_server.call_errors import BadField, CallError, invalid
from evald_server.engine.plan import InvalidPlan, Plan
from evald_server.monitoring import Telemetry
from evald_server.runs.recorded import MAX_CASE_BYTES
from evald_server.runs.suite import CaseRun, SuiteSetup, TrialRun
from evald_server.runs.suite_chunk import SuiteChunk, SuiteChunkResult
from evald_server.store.retries import with_retries
from evald_server.store.suites import StoredCase, SuiteRunKey, SuiteStore
from evald_server.suites.id_set import IdSet
from evald_server.suites.verdicts import SuiteTotals

from .server import RpcStream
from .stream_tasks import CHUNKS_PER_PROCESS, StreamTasks, count_chunk, next_part
from .suite_checks import check_case, parse_case

# Maximum cases and bytes of one commit, and of one message to the caller.
_MAX_CASES: Final = 256
_MAX_BYTES: Final = MAX_CASE_BYTES

# Maximum stored cases per read: each may have a few MiB.
_MAX_READ: Final = 64

# Time that a commit waits for more cases if more are running: a commit takes as long as ten cases.
_LINGER_SECONDS: Final = 0.02

# Maximum concurrent waiting recorded trials of one suite run.
_MAX_WAITING: Final = 64

_USUAL_CONCURRENCY: Final = 8


_Sent: TypeAlias = tuple[int, bytes]
"""The index of a case in its message, and the encoded case."""


class _Answer(NamedTuple):
    """A finished case. stored: the row to store; None if it is stored already. data: the result for the caller."""

    stored: StoredCase | None
    data: bytes

    @property
    def size(self) -> int:
        """The bytes that it holds until it is stored and sent."""
        return len(self.data if self.stored is None else self.stored.whole)


# When the caller disconnects or the server stops, gRPC first ends the stream and cancels the call a moment later.
# `finish` waits for that cancellation, so that an incomplete suite does not get a verdict.
_GONE_SECONDS: Final = 0.05


class SuiteStream:
    """The cases of one suite run. Call `begin`, `add` for every message, `finish`, and `close` at the end.

    run: the suite run; `finish` fills in its final state.
    """

    def __init__(
        self,
        setup: SuiteSetup,
        run: SuiteRun,
        key: SuiteRunKey,
        store: SuiteStore,
        stream: RpcStream,
        store_seconds: float,
        pool: BatchPool,
        telemetry: Telemetry,
    ) -> None:
        """store_seconds: time limit of retries while the store cannot be written."""
        self.run = run
        self._setup = setup
        self._key = key
        self._store = store
        self._stream = stream
        self._store_seconds = store_seconds
        self._totals = SuiteTotals(run.threshold)
        self._concurrency = setup.opened.max_concurrency or _USUAL_CONCURRENCY
        self._asking: set[asyncio.Task[None]] = set()  # trials that ask the agent
        self._waiting: set[asyncio.Task[None]] = set()  # recorded trials
        self._answered = IdSet()  # cases stored by earlier attempts and answered in this one
        self._done: list[_Answer] = []
        self._done_bytes = 0
        self._more_to_come = 0  # messages whose cases are running in this process
        self._chunks: set[asyncio.Task[None]] = set()  # chunks of recorded cases in batch processes
        self._storing: set[asyncio.Task[None]] = set()  # at most one of them is not done
        self._pool = pool
        self._telemetry = telemetry
        self._use_processes = True  # False once processes have skipped most cases of a chunk
        self._sent = 0  # received cases
        self._count = 0  # finished cases, including those of earlier attempts
        self._tasks = StreamTasks()

    async def begin(self) -> None:
        """Send the start of the suite run, and count the cases stored by earlier attempts."""
        await self._stream.send(wire_pb2.RunSuiteResponse(started=self.run).SerializeToString())
        after = ""
        while self._key.attempt > 1:
            page = await self._store.cases(self.run.id, after=after, limit=_MAX_READ)
            if not page:
                break
            after = page[-1][0]
            for _, data in page:
                self._totals.add(CaseResult.FromString(data))
                self._count += 1
                await self._setup.next_slice()

    async def read(self) -> bytes | None:
        """Return the next message; None at the end. Raises a task's exception at once, without waiting for a message."""
        reading = asyncio.ensure_future(self._stream.read())
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
        plan = self._plan_of_chunks(len(cases))
        if plan is None:
            await self._run_here(cases)
        else:
            await self._submit(plan, cases)
        self._tasks.check()

    async def finish(self) -> None:
        """Wait for all cases, and store the suite run's end and verdict."""
        await asyncio.sleep(_GONE_SECONDS)
        await self._complete()
        wanted = self._setup.opened.case_count
        if wanted and wanted != self._count:
            raise invalid("open.case_count", f"got {wanted}, but {self._count} cases were sent")
        run = self.run
        self._totals.fill(run)
        run.status = SUITE_RUN_STATUS_COMPLETED
        run.complete_time.GetCurrentTime()
        await with_retries(lambda: self._store.finish(self._key, run), self._store_seconds)

    async def send_end(self) -> None:
        """Send the final state of the suite run."""
        await self._stream.send(wire_pb2.RunSuiteResponse(ended=self.run).SerializeToString())

    async def close(self) -> None:
        """Cancel all tasks that still run, as after a disconnect of the caller."""
        await self._tasks.close()

    async def _complete(self) -> None:
        """Wait for the cases that have begun, and store and send their results."""
        while tasks := self._chunks or self._asking or self._waiting:
            await self._tasks.any_of(tasks)
        while self._done or self._storing:
            self._store_soon()
            await self._tasks.any_of(self._storing)
        self._tasks.check()

    def _plan_of_chunks(self, count: int) -> Plan | None:
        """Return the plan for evaluating the next `count` cases in processes; None to evaluate them here."""
        setup = self._setup
        taken = max(self._sent, setup.opened.case_count)
        if not (self._use_processes and setup.specs and self._pool.is_worth_it(taken, count)):
            return None
        try:
            plan = setup.engine.planner.plan(setup.specs, setup.options)
        except InvalidPlan:
            return None  # a type was removed since the suite run began: each case gets the error
        return plan if can_run(plan) else None

    async def _submit(self, plan: Plan, cases: Sequence[_Sent]) -> None:
        """Run cases in a process, or here if none is available."""
        # Limit the results that a slow caller has not received yet.
        while len(self._chunks) >= CHUNKS_PER_PROCESS * self._pool.size:
            await self._tasks.any_of(self._chunks)
        setup = self._setup
        if self._key.attempt > 1:
            cases = await self._without_known(cases)
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
        future = await self._pool.submit(chunk, max(self._sent, setup.opened.case_count))
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
        labels = dict(self._setup.opened.labels)
        while future is not None and (result := await future) is not None:
            self._totals.merge(result.totals)
            count_chunk(self._telemetry, "RunSuite", labels, plan, result.counts)
            self._count += len(result.rows)
            for row in result.rows:
                self._store_later(StoredCase(*row))
            if result.skipped:
                # Stop using processes that skip most cases: they cost more than they save.
                self._use_processes &= 2 * len(result.skipped) <= result.end
                await self._run_here([cases[index] for index in result.skipped])
            await self._make_room()
            cases = cases[result.end :]
            if not cases:
                return
            part = [data for _, data in next_part(cases, result.end)]
            chunk = chunk._replace(cases=part, checked=True)
            future = await self._pool.submit(chunk, self._sent)
        await self._run_here(cases)

    async def _run_here(self, sent: Sequence[_Sent]) -> None:
        """Check cases and run them in this process."""
        cases = []
        for index, data in sent:
            await self._setup.next_slice()
            case = parse_case(data, index)
            await check_case(case, f"cases[{index}]", self._setup)
            cases.append((case, len(data)))
        self._more_to_come += 1
        for begin in range(0, len(cases), _MAX_READ):
            await self._run(cases[begin : begin + _MAX_READ])
        self._more_to_come -= 1
        self._store_soon()

    async def _run(self, cases: Sequence[tuple[wire_pb2.SuiteCase, int]]) -> None:
        """Run cases, or answer them from the store. cases: pairs of a case and its size in bytes."""
        known = await self._known([case.case_id for case, _ in cases]) if self._key.attempt > 1 else {}
        for case, size in cases:
            await self._setup.next_slice()
            data = known.get(case.case_id)
            if data is not None:
                self._answer_known(data)
            else:
                await self._start(CaseRun(case, self._setup, size))
            if len(self._done) >= _MAX_CASES or self._done_bytes >= _MAX_BYTES:
                await self._make_room()

    async def _without_known(self, cases: Sequence[_Sent]) -> list[_Sent]:
        """Answer the cases that are stored already. Returns the others."""
        others = []
        for begin in range(0, len(cases), _MAX_READ):
            some = cases[begin : begin + _MAX_READ]
            ids = [parse_case(data, index).case_id for index, data in some]
            known = await self._known(ids)
            for case, case_id in zip(some, ids, strict=True):
                await self._setup.next_slice()
                if case_id in known:
                    self._answer_known(known[case_id])
                else:
                    others.append(case)
            await self._make_room()
        return others

    async def _known(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored results by case id. Raises CallError if this stream has sent a case's id before."""
        found = await with_retries(lambda: self._store.find(self._key, ids), self._store_seconds)
        for case_id in ids:
            one = found.get(case_id)
            if one is not None and (one.attempt == self._key.attempt or not self._answered.add(case_id)):
                raise _duplicate(case_id)
        return {case_id: one.whole for case_id, one in found.items()}

    async def _start(self, run: CaseRun) -> None:
        """Start the trials of a case. Returns when each of them has ended or waits."""
        for trial in run.trials():
            await self._setup.next_slice()
            if trial.play():
                continue
            tasks, most = (
                (self._asking, self._concurrency) if trial.asks_agent else (self._waiting, _MAX_WAITING)
            )
            while len(tasks) >= most:
                await self._tasks.any_of(tasks)
            run.open_trials += 1
            self._tasks.spawn(tasks, self._play_on(trial, run))
        self._ended(run)

    async def _play_on(self, trial: TrialRun, run: CaseRun) -> None:
        await trial.play_on()
        self._ended(run)
        self._store_soon()

    def _ended(self, run: CaseRun) -> None:
        """Decide a case when the last of its trials has ended."""
        run.open_trials -= 1
        if not run.open_trials:
            run.decide()
            self._totals.add(run.result)
            self._count += 1
            self._store_later(StoredCase(*run.row()))

    def _store_later(self, case: StoredCase) -> None:
        self._answer(_Answer(case, case.brief if self._setup.opened.brief else case.whole))

    def _answer_known(self, whole: bytes) -> None:
        """Answer a case from the store."""
        if self._setup.opened.brief:
            case = CaseResult.FromString(whole)
            del case.trials[:]
            whole = case.SerializeToString()
        self._answer(_Answer(None, whole))

    def _answer(self, answer: _Answer) -> None:
        self._done.append(answer)
        self._done_bytes += answer.size

    async def _make_room(self) -> None:
        """Store the finished cases, after the previous commit has ended and its results are sent."""
        while self._storing:
            await self._tasks.any_of(self._storing)
        self._store_soon()

    def _store_soon(self) -> None:
        """Start storing and sending the finished cases, unless a task does so already: its next commit includes them.

        A finished task stays in the set until the next iteration of the event loop, hence the check of `done`.
        """
        if self._done and all(task.done() for task in self._storing):
            self._tasks.spawn(self._storing, self._store_done())

    async def _store_done(self) -> None:
        while self._done:
            if self._more_to_come and len(self._done) < _MAX_CASES:
                await asyncio.sleep(_LINGER_SECONDS)
            taking = size = 0
            for answer in self._done[:_MAX_CASES]:
                if taking and size + answer.size > _MAX_BYTES:
                    break
                taking, size = taking + 1, size + answer.size
            answers, self._done = self._done[:taking], self._done[taking:]
            self._done_bytes -= size
            stored = [answer.stored for answer in answers if answer.stored is not None]
            taken = await self._store_cases(stored) if stored else set()
            response = wire_pb2.RunSuiteResponse(
                results=[
                    answer.data
                    for answer in answers
                    if answer.stored is None or answer.stored.case_id not in taken
                ]
            )
            if response.results:
                await self._stream.send(response.SerializeToString())
            if taken:
                raise _duplicate(min(taken))

    async def _store_cases(self, cases: Sequence[StoredCase]) -> set[str]:
        """Store cases. Returns the ids that other cases have already."""
        tries = count()
        stored = await with_retries(
            lambda: self._store.add(self._key, cases, again=next(tries) > 0), self._store_seconds
        )
        return set(stored)


def _duplicate(case_id: str) -> CallError:
    text = f'two cases have the id "{case_id[:256]}"; wanted one that is unique in the suite'
    problem = BadField("cases.case_id", text)
    return CallError(
        "INVALID_FIELD", f"cases.case_id: {text}", [problem], field="cases.case_id", case_id=case_id
    )
