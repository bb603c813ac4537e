"""Assertions about durations, robust on a shared machine that sometimes stalls."""

import resource
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest


class Attempt:
    """Measures the body of a `with` statement. seconds: its duration."""

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
    """Return the processor time of ended child processes, a clock that other processes do not affect."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def attempts(seconds: float, most: int = 5, clock: Callable[[], float] = time.monotonic) -> Iterator[Attempt]:
    """Yield attempts until one takes at most `seconds`; fail if none does."""
    took = []
    for _ in range(most):
        attempt = Attempt(clock)
        yield attempt
        took.append(f"{attempt.seconds:.3f}")
        if attempt.seconds <= seconds:
            return
    pytest.fail(f"each of {most} times more than {seconds:g} s: {', '.join(took)} s")
