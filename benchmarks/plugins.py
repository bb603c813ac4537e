"""Evaluators of the benchmarks' servers, which wait as a remote evaluator or a judge may."""

import asyncio
import time

from evald.context import EvaluatorContext
from evald.evaluator import define_evaluator
from evald.result import Kind, Result, passed


async def _wait(_ctx: EvaluatorContext) -> Result:
    await asyncio.sleep(0.02)
    return passed("Waited 20 ms")


def _block(_ctx: EvaluatorContext) -> Result:
    time.sleep(0.002)
    return passed("Blocked a thread for 2 ms")


async def _tell_time(_ctx: EvaluatorContext) -> Result:
    """Wait 100 ms, and report the time of the answer in milliseconds since 1970."""
    await asyncio.sleep(0.1)
    return passed(f"answered at {1000 * time.time():.3f}")


evaluators = [
    define_evaluator(type="bench.waiting", kind=Kind.ASSERTION, evaluate=_wait),
    define_evaluator(type="bench.blocking", kind=Kind.ASSERTION, evaluate=_block),
    define_evaluator(type="bench.telling-time", kind=Kind.ASSERTION, evaluate=_tell_time),
]
