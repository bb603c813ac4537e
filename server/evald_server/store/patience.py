"""Waiting for a database that cannot be used for a while."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from .database import StoreProblem

T = TypeVar("T")

# Between attempts: at first, and at most.
_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 2.0


async def patiently(
    work: Callable[[], Coroutine[Any, Any, T]], seconds: float, hurried: Callable[[], bool] = lambda: False
) -> T:
    """Do something with the store, again and again for so many seconds. hurried: whether there is no time for that.

    A cancelled task waits until the store is done, so that it is known what is stored. Raises StoreProblem.
    """
    give_up = time.monotonic() + seconds
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
            if hurried() or time.monotonic() + delay > give_up:
                raise
        await asyncio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY)
