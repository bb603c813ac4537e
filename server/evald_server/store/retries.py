"""Retries while the database is unavailable."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from .database import StoreProblem

T = TypeVar("T")

# Seconds between attempts: first delay and maximum. A caller who resumes a suite run waits up to two seconds for the
# attempt that stores its interruption.
_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 1.0


async def with_retries(
    work: Callable[[], Coroutine[Any, Any, T]], seconds: float, give_up: Callable[[], bool] = lambda: False
) -> T:
    """Call the store. While it fails, retry for up to `seconds`, or until `give_up` returns True.

    A cancelled task waits until the current attempt is done, so that the stored state is known. Raises StoreProblem.
    """
    deadline = time.monotonic() + seconds
    delay = _FIRST_DELAY
    while True:
        task = asyncio.create_task(work())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
            raise
        except StoreProblem:
            if give_up() or time.monotonic() + delay > deadline:
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY)
