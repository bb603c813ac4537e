"""The scope of a waiting evaluator (a judge, a remote, a script): deadline, ids and progress of its call.

`current_scope()` works inside `evaluate`, in the server's task. Elsewhere, for example in threads and tests,
it returns a scope without limits.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple


def ignore_progress(message: str, fraction: float | None = None) -> None:
    """Discard the progress of a call that did not request it."""


class Scope(NamedTuple):
    """The context of the call that an evaluator runs in.

    evaluation_id: id of the evaluation; "" means unknown.
    deadline: deadline of the evaluator, in `time.monotonic()` seconds; None for no deadline.
    skip_cache: the caller wants no cached results.
    trace_context: the W3C headers that the caller sent: "traceparent", "tracestate", "baggage".
    progress: reports progress to the caller: (message, fraction from 0 to 1 or None).
    """

    evaluation_id: str = ""
    deadline: float | None = None
    skip_cache: bool = False
    trace_context: Mapping[str, str] = {}
    progress: Callable[[str, float | None], None] = ignore_progress

    def until(self, deadline: float) -> "Scope":
        """Return the same scope with another deadline."""
        # `_replace` takes four times as long.
        return Scope(self.evaluation_id, deadline, self.skip_cache, self.trace_context, self.progress)

    def time_left(self) -> float | None:
        """Return the seconds until the deadline, 0 if it has passed; None for no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


_NO_SCOPE: Final = Scope()

SCOPE: Final[ContextVar[Scope]] = ContextVar("evald_scope", default=_NO_SCOPE)
"""The engine sets it for each waiting evaluator."""


def current_scope() -> Scope:
    """Return the scope of the evaluator that runs in the current task."""
    return SCOPE.get()
