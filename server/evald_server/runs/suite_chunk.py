"""Chunks of a suite run's recorded cases, which batch processes evaluate."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evald.v1 import suite_service_pb2
from evald_server import wire_pb2
from evald_server.batch.chunk import CHUNK_SECONDS, ChunkCounts, ResultCounter, same_plan
from evald_server.batch.results import MAX_BYTES
from evald_server.engine.engine import Engine
from evald_server.engine.plan import InvalidPlan
from evald_server.engine.run import EvaluationRun
from evald_server.suites.verdicts import SuiteTotals

from .case_checks import case_problem
from .recorded import MAX_TURNS, CaseRow, CaseSetup, RecordedCase


class SuiteChunkResult(NamedTuple):
    """The result of a chunk.

    end: index after the last processed case; the limits of size and time may leave a rest. skipped: indexes of the cases
    that the server must run itself. rows, totals, counts: of the processed cases that were not skipped.
    """

    end: int
    skipped: Sequence[int]
    rows: Sequence[CaseRow]
    totals: SuiteTotals
    counts: ChunkCounts


class SuiteChunk(NamedTuple):
    """The cases of one request message.

    opened: as in CaseSetup, only with the fields that this class needs. specs, options: of the suite. announced: specs
    of the server's plan; a process whose own plan differs must not evaluate. cases: serialised. asks_agent: whether the
    suite run has an agent. slice_nanos: how long the evaluation of a turn may run, in nanoseconds. checked: whether an
    earlier chunk checked the cases.
    """

    run_id: str
    opened: suite_service_pb2.SuiteOpen
    specs: tuple[bytes, ...]
    options: bytes
    announced: Sequence[bytes]
    cases: Sequence[bytes]
    asks_agent: bool
    slice_nanos: int
    checked: bool = False

    def evaluate(self, engine: Engine) -> SuiteChunkResult:
        """Evaluate the cases.

        Skip all of them if one is invalid, because the server must report that before any case runs. Also skip all of
        them if this process cannot make the server's plan.
        """
        totals, counter, rows = SuiteTotals(), ResultCounter(), []
        turns: list[EvaluationRun] = []
        plan = same_plan(engine, self.specs, self.options, self.announced)
        setup = CaseSetup(
            self.run_id,
            self.opened,
            self.specs,
            self.options,
            engine,
            turns.append,
            self.slice_nanos,
            MAX_TURNS,
        )
        skipped: list[int] = []
        size = end = 0
        cases = None if plan is None else self._parsed(setup)
        if cases is None:
            end = len(self.cases)
            skipped.extend(range(end))
        stop = time.monotonic() + CHUNK_SECONDS
        for case, data in zip(cases or (), self.cases, strict=cases is not None):
            turns.clear()
            run = _ended(case, setup, len(data))
            if run is None:
                skipped.append(end)
            else:
                totals.add(run.result, results=False)
                for turn in turns:
                    counter.add(turn)
                rows.append(run.row())
                size += len(rows[-1][-1])
            end += 1
            if size >= MAX_BYTES or time.monotonic() > stop:
                break
        counts = counter.counts()
        if plan is not None and rows:
            for (index, verdict, _, value, _), count, _ in counts.results:
                totals.count(plan.template.results[index], verdict, value, count)
            for result in plan.template.results:
                totals.add_provenance(result)
        return SuiteChunkResult(end, skipped, rows, totals, counts)

    def _parsed(self, setup: CaseSetup) -> list[wire_pb2.SuiteCase] | None:
        """Return the parsed cases; None when one of them is invalid."""
        try:
            cases = [wire_pb2.SuiteCase.FromString(data) for data in self.cases]
            if self.checked or all(self._is_fine(case, setup) for case in cases):
                return cases
        except (DecodeError, InvalidPlan):
            pass
        return None

    def _is_fine(self, case: wire_pb2.SuiteCase, setup: CaseSetup) -> bool:
        """Return whether the server would accept a case. Raises InvalidPlan for evaluators that it would refuse."""
        if case_problem(case, setup, asks_agent=self.asks_agent) is not None:
            return False
        if not _is_plain(case):
            # The case has its own evaluators. The server runs them; this only checks that their plans are valid.
            for turn in range(len(case.turns)):
                setup.plan(case, turn)
        return True


def _is_plain(case: wire_pb2.SuiteCase) -> bool:
    """Return whether a case uses only the suite's evaluators and options."""
    return not (case.evaluators or case.HasField("options") or any(turn.evaluators for turn in case.turns))


def _ended(case: wire_pb2.SuiteCase, setup: CaseSetup, size: int) -> RecordedCase | None:
    """Run a case to its end. Return None when the server must run it: for agents, own evaluators, or waiting."""
    if not case.recorded_trials or not _is_plain(case):
        return None
    run = RecordedCase(case, setup, size)
    for trial in run.trials():
        if not trial.play():
            if trial.waiting is not None:
                trial.waiting.abandon()
            return None
    run.decide()
    return run
