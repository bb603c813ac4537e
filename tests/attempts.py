"""Asserting how long something takes on a machine that others use too, and that stands still now and then."""

import resource
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest


class Attempt:
    """Measures what happens in its `with`. seconds: how long that took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._clock = clock

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += self._clock() - self._began


def processor_seconds_of_children() -> float:
    """A clock: the processor time of the processes that have ended, which no other process takes away."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def attempts(seconds: float, most: int = 5, clock: Callable[[], float] = time.monotonic) -> Iterator[Attempt]:
    """Yield attempts until one takes at most so many seconds; fails when none of them does."""
    took = []
    for _ in range(most):
        attempt = Attempt(clock)
        yield attempt
        took.append(f"{attempt.seconds:.3f}")
        if attempt.seconds <= seconds:
            return
    pytest.fail(f"each of {most} times more than {seconds:g} s: {', '.join(took)} s")
