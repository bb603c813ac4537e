"""One call's way through plan and engine: shared by unary calls, streams, sessions and batches."""

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from evald.result import Verdict
from evald.scope import Scope
from evald.threads import Threads
from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server.engine.contexts import Contexts, criteria_of
from evald_server.engine.plan import Criteria, InvalidPlan, Plan
from evald_server.engine.planner import Planner
from evald_server.engine.run import Evaluation
from evald_server.engine.wait import RESERVE_SECONDS, budget

from .admission import Admission
from .cohort import Cohort
from .edge import Context
from .errors import CallError, refused_plan

# Of the evaluations that passed, one in so many points to its trace. The others all do: what one wants to
# look at. Reading a call's metadata costs 2 % of the calls.
_TRACED_ONE_IN: Final = 64

_TRACE_HEADERS: Final = frozenset(("traceparent", "tracestate", "baggage"))


class EvaluationTally(Protocol):
    """Counts the evaluations of one RPC."""

    def add(self, verdict: int, seconds: float, trace_id: str | None = None) -> None:
        """One evaluation is done. trace_id: 32 hex digits, when the caller has a trace."""


class EvaluationObserver(Protocol):
    """Gives out tallies, one an RPC and combination of the caller's labels."""

    def evaluation(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """The tally of an RPC."""


class Count:
    """Counts the evaluations of one RPC."""

    def __init__(self, observer: EvaluationObserver, rpc: str) -> None:
        self._observer = observer
        self._rpc = rpc
        self._without_labels = observer.evaluation(rpc)
        self._passed = 0

    def tally(self, labels: Mapping[str, str]) -> EvaluationTally:
        """The tally for a caller's labels."""
        return self._observer.evaluation(self._rpc, labels) if labels else self._without_labels

    def add(self, verdict: Verdict, nanos: int, context: Context, tally: EvaluationTally) -> None:
        """One evaluation is done, which took so many nanoseconds."""
        trace_id = None
        if verdict is Verdict.PASSED:
            self._passed += 1
        if verdict is not Verdict.PASSED or not self._passed % _TRACED_ONE_IN:
            trace_id = trace_id_of(context)
        tally.add(verdict, nanos * 1e-9, trace_id)


class Runner:
    """Plans, runs and counts evaluations."""

    def __init__(
        self,
        planner: Planner,
        contexts: Contexts,
        threads: Threads,
        admission: Admission,
        *,
        concurrency: int,
        default_timeout: float,
        max_timeout: float,
    ) -> None:
        self.contexts = contexts
        self.admission = admission
        self.threads = threads
        self.cohort = Cohort()
        self._planner = planner
        self._concurrency = concurrency
        self._default_timeout = default_timeout
        self._max_timeout = max_timeout
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    @property
    def generation(self) -> int:
        """Changes when plans made before are no longer right."""
        return self._planner.generation

    def new_id(self) -> str:
        """An id for an evaluation: unique in this process, unlikely to be met in another one."""
        return f"{self._prefix}-{next(self._numbers):x}"

    def plan(self, specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext) -> Plan:
        """The plan of a call. Raises CallError that names everything that is wrong with its specs."""
        criteria: Criteria | None = criteria_of(context)
        if criteria is not None and specs and _evaluators_only(options):
            criteria = None
        try:
            return self._planner.plan(tuple(specs), options, criteria)
        except InvalidPlan as problem:
            raise refused_plan(problem) from None

    def finish(
        self, evaluation: Evaluation, seconds: float | None, scope: Scope, *, patient: bool = False
    ) -> Awaitable[object]:
        """Run what waits, to the end."""
        run = self._run_alone if evaluation.alone else self._run_all
        return run(evaluation, seconds, scope, patient=patient)

    async def _run_all(
        self, evaluation: Evaluation, seconds: float | None, scope: Scope, *, patient: bool
    ) -> None:
        async for _ in self.steps(evaluation, seconds, scope, patient=patient):
            evaluation.progress.clear()

    async def steps(
        self, evaluation: Evaluation, seconds: float | None, scope: Scope, *, patient: bool = False
    ) -> AsyncIterator[list[int]]:
        """Run what waits; give the indexes of what has just finished, none when there is only progress."""
        if evaluation.alone:
            yield [await self._run_alone(evaluation, seconds, scope, patient=patient)]
            return
        left = await self._take_place(evaluation, seconds, patient=patient)
        try:
            steps = evaluation.run_waiting(left, self._concurrency, scope)
            try:
                async for done in steps:
                    yield done
            finally:
                await steps.aclose()  # type: ignore[attr-defined]
        finally:
            self.admission.leave()

    async def _run_alone(
        self, evaluation: Evaluation, seconds: float | None, scope: Scope, *, patient: bool
    ) -> int:
        left = await self._take_place(evaluation, seconds, patient=patient)
        try:
            return await evaluation.run_alone(left, scope)
        finally:
            self.admission.leave()

    async def _take_place(
        self, evaluation: Evaluation, seconds: float | None, *, patient: bool
    ) -> float | None:
        """Wait for a place, and return the seconds that evaluators then have.

        patient: the time in line does not count. Raises CallError when there is no time or no place.
        """
        left = self._budget(evaluation.plan, seconds)
        try:
            if left is not None and left <= 0:
                raise _too_short(seconds or 0)
            if not self.admission.enter():
                began = time.monotonic()
                await self.admission.wait(patient=patient)
                if left is not None and not patient:
                    left -= time.monotonic() - began
        except BaseException:
            evaluation.abandon()
            raise
        return left

    def _budget(self, plan: Plan, seconds: float | None) -> float | None:
        left = budget(self._default_timeout if seconds is None else min(seconds, self._max_timeout))
        if plan.timeout is None or left is None:
            return left
        return min(left, plan.timeout)


def take_progress(evaluation: Evaluation) -> bytes:
    """Take what evaluators have said before their results, as fields of evald.v1.EvaluateResponse."""
    if not evaluation.progress:
        return b""
    event = evaluation_service_pb2.EvaluateResponse()
    for said in evaluation.progress:
        event.progress.add(index=said.index, message=said.message, fraction=said.fraction)
    evaluation.progress.clear()
    return event.SerializeToString()


def check_deadline(context: Context, plan: Plan) -> None:
    """Raise CallError when the time that is left is too short to answer in, before anything is started."""
    left: float | None = context.time_remaining()
    if left is None:
        return
    if left <= 0:
        raise CallError("DEADLINE_TOO_SHORT", "the call's deadline was over before it began")
    if plan.waits and left <= RESERVE_SECONDS:
        raise _too_short(left)


def _too_short(seconds: float) -> CallError:
    return CallError(
        "DEADLINE_TOO_SHORT",
        f"the call has {seconds * 1000:.0f} ms left and {RESERVE_SECONDS * 1000:.0f} ms are kept to send the "
        f"answer, so evaluators that wait have no time; give the call a later deadline",
    )


def scope_of(context: Context, evaluation_id: str) -> Scope:
    """What evaluators that wait may know of a call."""
    headers = {
        key: value
        for key, value in context.invocation_metadata() or ()
        if key in _TRACE_HEADERS and isinstance(value, str)
    }
    return Scope(evaluation_id=evaluation_id, trace_context=headers)


def trace_id_of(context: Context) -> str | None:
    """The trace id of the caller's W3C trace context, when it has one."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            parts = value.split("-")
            return parts[1] if len(parts) > 2 else None
    return None


def _evaluators_only(options: bytes) -> bool:
    if not options:
        return False
    try:
        parsed = evaluation_service_pb2.EvaluateOptions.FromString(options)
    except DecodeError:
        return False  # the plan refuses it, with its name
    return parsed.criteria_policy == evaluation_service_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
