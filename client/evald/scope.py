"""What a waiting evaluator (a judge, a remote, a script) knows about the call it runs in: deadline, ids, progress.

`current_scope()` works inside `evaluate`, in the task that the server runs it in. Elsewhere, for example in
threads and tests, it returns a scope without limits.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple


def _nobody(message: str, fraction: float | None = None) -> None:
    """Discard progress of a call that did not ask for it."""


class Scope(NamedTuple):
    """The call that an evaluator runs in.

    evaluation_id: of the evaluation, "" when unknown.
    deadline: `time.monotonic()` by which the evaluator must have answered; None without one.
    skip_cache: the caller wants no cached results.
    trace_context: the caller's W3C headers: "traceparent", "tracestate", "baggage", as far as sent.
    progress: tells the caller something before the result is there; fraction: part done, 0 to 1.
    """

    evaluation_id: str = ""
    deadline: float | None = None
    skip_cache: bool = False
    trace_context: Mapping[str, str] = {}
    progress: Callable[[str, float | None], None] = _nobody

    def until(self, deadline: float) -> "Scope":
        """Return the same scope with another deadline."""
        # `_replace` takes four times as long.
        return Scope(self.evaluation_id, deadline, self.skip_cache, self.trace_context, self.progress)

    def time_left(self) -> float | None:
        """Return the seconds until the deadline, 0 when it has passed; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


_NO_SCOPE: Final = Scope()

SCOPE: Final[ContextVar[Scope]] = ContextVar("evald_scope", default=_NO_SCOPE)
"""Set by the engine for each evaluator that waits."""


def current_scope() -> Scope:
    """Return the scope of the evaluator that runs in this task."""
    return SCOPE.get()
