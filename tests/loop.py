"""The event loop that all tests of a process share."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOP: Final[list[asyncio.AbstractEventLoop]] = []
"""The one loop, once `conftest.py` has made it."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a test or fixture that is not async itself."""
    return LOOP[0].run_until_complete(main)
