"""One call's way through plan and engine: shared by unary calls, streams, sessions and batches."""

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from evald.v1 import context_pb2, evaluation_service_pb2
from evald_server.engine.plan import Criteria, InvalidPlan, Plan, Planner
from evald_server.engine.run import Evaluation, budget
from evald_server.engine.threads import Threads

from .admission import Admission
from .contexts import Contexts, criteria_of
from .edge import Context
from .errors import CallError, refused_plan


class EvaluationTally(Protocol):
    """Counts the evaluations of one RPC."""

    def add(self, verdict: int, seconds: float) -> None:
        """One evaluation is done."""


class EvaluationObserver(Protocol):
    """Gives out tallies, one an RPC."""

    def evaluation(self, rpc: str) -> EvaluationTally:
        """The tally of an RPC."""


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

    def plan(
        self, specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext
    ) -> Plan:
        """The plan of a call. Raises CallError that names everything that is wrong with its specs."""
        criteria: Criteria | None = criteria_of(context)
        if criteria is not None and specs and _evaluators_only(options):
            criteria = None
        try:
            return self._planner.plan(tuple(specs), options, criteria)
        except InvalidPlan as problem:
            raise refused_plan(problem) from None

    async def finish(
        self, evaluation: Evaluation, seconds: float | None, *, patient: bool = False
    ) -> None:
        """Run what waits, to the end."""
        async for _ in self.steps(evaluation, seconds, patient=patient):
            pass

    async def steps(
        self, evaluation: Evaluation, seconds: float | None, *, patient: bool = False
    ) -> AsyncIterator[list[int]]:
        """Run what waits; give the indexes of what has just finished."""
        with await self.admission.enter(patient=patient):
            steps = evaluation.run_waiting(self._budget(evaluation.plan, seconds), self._concurrency)
            try:
                async for done in steps:
                    yield done
            finally:
                await steps.aclose()  # type: ignore[attr-defined]

    def _budget(self, plan: Plan, seconds: float | None) -> float | None:
        left = budget(self._default_timeout if seconds is None else min(seconds, self._max_timeout))
        if plan.timeout is None or left is None:
            return left
        return min(left, plan.timeout)


def deadline_of(context: Context) -> float | None:
    """Monotonic time at which the call must be over; None without a deadline.

    Raises CallError when the time that is left is too short to do anything.
    """
    left = context.time_remaining()
    if left is None:
        return None
    if left <= 0:
        raise CallError("DEADLINE_TOO_SHORT", "the call's deadline was over before it began")
    return time.monotonic() + left


def _evaluators_only(options: bytes) -> bool:
    if not options:
        return False
    try:
        parsed = evaluation_service_pb2.EvaluateOptions.FromString(options)
    except DecodeError:
        return False  # the plan refuses it, with its name
    return parsed.criteria_policy == evaluation_service_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
