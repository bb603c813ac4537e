"""The engine: plans a call's specs and starts the plan on a turn."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from evald.context import EvaluatorContext
from evald.threads import Threads
from evald.v1 import context_pb2
from evald.v1.evaluation_service_pb2 import EvaluateOptions

from .aggregate import Policy
from .contexts import Contexts, criteria_of
from .plan import InvalidPlan, Plan, Violation
from .planner import Planner
from .run import SLICE_NANOS, EvaluationRun


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
        if not context.HasField("scenario"):
            return self.planner.plan(tuple(specs), options)
        with _criteria_as_spec(specs, options, context) as all_specs:
            return self.planner.plan(all_specs, options)

    async def prepare(
        self, specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext
    ) -> None:
        """Compile large specs in a thread, for a later `plan` with the same arguments. Raises as `plan` does."""
        with _criteria_as_spec(specs, options, context) as all_specs:
            await self.planner.prepare(all_specs, options)

    def start(self, plan: Plan, turn: EvaluatorContext, slice_nanos: int = SLICE_NANOS) -> EvaluationRun:
        """Evaluate a turn up to the evaluators that wait. slice_nanos: maximum time of the others."""
        return EvaluationRun(plan, turn, self.threads, slice_nanos)


@contextmanager
def _criteria_as_spec(
    specs: Sequence[bytes], options: bytes, context: context_pb2.EvaluatorContext
) -> Iterator[tuple[bytes, ...]]:
    """Yield the specs, with one for the scenario's criteria if the call evaluates them."""
    criteria = criteria_of(context)
    try:
        parsed = EvaluateOptions.FromString(options)
    except DecodeError:
        parsed = EvaluateOptions()  # the planner reports it as a violation
    only_specs = specs and parsed.criteria_policy == context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
    if criteria is None or only_specs:
        yield tuple(specs)
        return
    # Unmet criteria must never pass, and the judge's confidence is not a score for the mean.
    criteria.required = parsed.aggregation == int(Policy.WEIGHTED_MEAN)
    try:
        yield (*specs, criteria.SerializeToString(deterministic=True))
    except InvalidPlan as problem:
        raise InvalidPlan(
            [
                Violation(
                    None,
                    "/context/scenario",
                    "CRITERIA_NOT_EVALUABLE",
                    f"context.scenario: this server cannot judge its criteria: {v.message}. Remove the criteria, or "
                    "set options.criteria_policy to EVALUATORS_ONLY",
                )
                if v.index == len(specs)
                else v
                for v in problem.violations
            ]
        ) from None
