"""The engine: plans a call's specs and starts the plan on a turn."""

import itertools
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from evald.context import EvaluatorContext
from evald.threads import Threads
from evald.v1 import context_pb2, evaluation_service_pb2

from .contexts import Contexts, criteria_of
from .plan import Criteria, Plan
from .planner import Planner
from .run import SLICE_NANOS, EvaluationRun

_EVALUATORS_ONLY: Final = context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY


class Engine:
    """The evaluation engine. planner, contexts, threads: shared with sessions and batches."""

    def __init__(self, planner: Planner, contexts: Contexts, threads: Threads) -> None:
        self.planner = planner
        self.contexts = contexts
        self.threads = threads
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """Return an evaluation id: unique in this process, and unlikely to occur in another one."""
        return f"{self._prefix}-{next(self._numbers):x}"

    def plan(self, specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext) -> Plan:
        """Return the plan of a call. Raises InvalidPlan, and InvalidContext for the scenario's criteria.

        specs, options: serialised. context: the criteria of its scenario become an implicit judge.
        """
        criteria = _criteria(specs, options, context) if context.HasField("scenario") else None
        return self.planner.plan(tuple(specs), options, criteria)

    async def prepare(
        self, specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext
    ) -> None:
        """Compile large specs in a thread, for a later `plan` with the same arguments. Raises as `plan` does."""
        await self.planner.prepare(tuple(specs), options, _criteria(specs, options, context))

    def start(self, plan: Plan, turn: EvaluatorContext, slice_nanos: int = SLICE_NANOS) -> EvaluationRun:
        """Evaluate a turn up to the evaluators that wait. slice_nanos: maximum time of the others."""
        return EvaluationRun(plan, turn, self.threads, slice_nanos)


def _criteria(
    specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext
) -> Criteria | None:
    criteria = criteria_of(context)
    if criteria is not None and specs:
        with suppress(DecodeError):  # the planner reports it as a violation
            parsed = evaluation_service_pb2.EvaluateOptions.FromString(options)
            if parsed.criteria_policy == _EVALUATORS_ONLY:
                return None
    return criteria
