"""The plugin evaluators of the soak test: one waits in the event loop, one in a thread."""

import asyncio
import time

from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, passed


async def _wait(_ctx: EvaluatorContext) -> Result:
    await asyncio.sleep(0.002)
    return passed("Waited")


def _work(_ctx: EvaluatorContext) -> Result:
    time.sleep(0.002)
    return passed("Worked")


evaluators = [
    define_evaluator(type="soak.waiting", kind=Kind.ASSERTION, evaluate=_wait),
    define_evaluator(type="soak.working", kind=Kind.ASSERTION, evaluate=_work),
]
