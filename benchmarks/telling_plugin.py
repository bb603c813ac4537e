"""An evaluator that waits 100 ms and reports the time of its answer, in milliseconds since 1970.

Used by the figures of live pages.
"""

import asyncio
import time

from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, passed


async def _tell(_ctx: EvaluatorContext) -> Result:
    await asyncio.sleep(0.1)
    return passed(f"told at {1000 * time.time():.3f}")


evaluators = [define_evaluator(type="bench.telling", kind=Kind.ASSERTION, evaluate=_tell)]
