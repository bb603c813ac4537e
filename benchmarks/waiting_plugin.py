"""An evaluator that waits 20 ms, as a remote evaluator or a judge may; used by the overload figures."""

import asyncio

from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, passed


async def _wait(_ctx: EvaluatorContext) -> Result:
    await asyncio.sleep(0.02)
    return passed("Waited 20 ms")


evaluators = [define_evaluator(type="bench.waiting", kind=Kind.ASSERTION, evaluate=_wait)]
