"""What is done when an answer is on its way: counting, and giving back, for which no caller has to wait.

After a wait little is left in the processor's caches, and each line of code costs as much as ten that run
twice. So what the answer does not depend on is done after it, all of it together.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

_log = logging.getLogger("evald")


class _Due:
    """What a loop has to do in its next turn."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []


_due: Final = _Due()


def later(function: Callable[..., object], *args: Any) -> None:
    """Call a function in the loop's next turn, after all that this one does. To be called in the server's loop."""
    loop = asyncio.get_running_loop()
    if loop is not _due.loop:
        # What was left to the loop before is still done by that, if it ever runs again.
        _due.loop, _due.calls = loop, []
    calls = _due.calls
    if not calls:
        loop.call_soon(_run, calls)
    calls.append((function, args))


def _run(calls: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
    due = calls[:]
    calls.clear()
    for function, args in due:
        try:
            function(*args)
        except Exception:  # noqa: BLE001 - the others must have their turn
            _log.exception("%s failed", function)
