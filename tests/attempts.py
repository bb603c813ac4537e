"""Asserting how long something takes on a machine that others use too, and that stands still now and then."""

import time
from collections.abc import Iterator
from types import TracebackType

import pytest


class Attempt:
    """Measures what happens in its `with`. seconds: how long that took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.monotonic() - self._began


def attempts(seconds: float, most: int = 5) -> Iterator[Attempt]:
    """Yield attempts until one takes at most so many seconds; fails when none of them does."""
    took = []
    for _ in range(most):
        attempt = Attempt()
        yield attempt
        took.append(f"{attempt.seconds:.3f}")
        if attempt.seconds <= seconds:
            return
    pytest.fail(f"each of {most} times more than {seconds:g} s: {', '.join(took)} s")
