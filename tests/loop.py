"""The event loop that the tests of a process share."""

import asyncio
from collections.abc import Coroutine
from types import ModuleType
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

LOOP: Final[list[asyncio.AbstractEventLoop]] = []
"""The one loop, once `conftest.py` has made it."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a test or fixture that is not async."""
    return LOOP[0].run_until_complete(main)


def expect_thread(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[bool]:
    """Patch a function to record, for each call, whether it ran on the event loop's thread."""
    function = getattr(module, name)
    held_up: list[bool] = []

    def watched(*args: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            held_up.append(False)
        else:
            held_up.append(True)
        return function(*args)

    monkeypatch.setattr(module, name, watched)
    return held_up
