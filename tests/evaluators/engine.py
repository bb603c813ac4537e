"""All built-in evaluators in the server's engine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from evald.context import EvaluatorContext
from evald.convert.spec import spec_to_pb
from evald.threads import Threads
from evald.v1 import result_pb2
from evald_server.engine.combinators import combinators
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from evald_server.evaluators import BUILT_INS
from tests.summaries import aggregated

from ..loop import run as in_loop


def evaluate(
    specs: Sequence[Mapping[str, Any]], ctx: EvaluatorContext, seconds: float = 30
) -> result_pb2.AggregatedEvaluation:
    """Return the summary of a call. Raises InvalidPlan for invalid specs."""
    threads = Threads()
    registry = Registry()
    for one in [*(each.definition() for each in BUILT_INS.values()), *combinators(threads)]:
        registry.register(one, Origin.BUILT_IN)
    plan = Planner(registry).plan(tuple(spec_to_pb(spec).SerializeToString() for spec in specs), b"")

    async def main() -> EvaluationRun:
        run = EvaluationRun(plan, ctx, threads)
        if run.pending:
            async for _ in run.run_pending(seconds, 8):
                pass
        return run

    return aggregated(in_loop(main()))


def deep(levels: int, inside: str = "1") -> str:
    """Return JSON of nested arrays. levels: their number."""
    return "[" * levels + inside + "]" * levels


def as_json(data: Any) -> str:
    """Return the shortest JSON text of data."""
    return json.dumps(data, separators=(",", ":"))
