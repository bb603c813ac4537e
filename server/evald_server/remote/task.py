"""One piece of work on its way to an instance, and the ways in which it can go wrong."""

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class Task:
    """One attempt at one task. data: the evald.plugin.v1.EvaluationTask that is sent. seconds: time that it has.

    progress: told about the work before it is done.
    """

    id: str
    data: bytes
    seconds: float
    headers: tuple[tuple[str, str], ...]
    progress: Callable[[str, float | None], None]


class TaskIds:
    """Ids that no other server process gives, and that this one knows again."""

    def __init__(self) -> None:
        self._prefix: Final = f"{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)
        self._last = 0

    def new(self) -> str:
        """An id that was never given before."""
        self._last = next(self._numbers)
        return f"{self._prefix}{self._last:x}"

    def were_given(self, task_id: str) -> bool:
        """Whether an id is one of these."""
        prefix, number = task_id[: len(self._prefix)], task_id[len(self._prefix) :]
        try:
            return prefix == self._prefix and 0 < int(number, 16) <= self._last
        except ValueError:
            return False


class Lost(Exception):
    """The instance cannot be reached, or went away with the task. Another one may be tried."""


class Late(Exception):
    """No output in time."""


class Busy(Exception):
    """The instance has no room for the task, although it should have."""


class Failed(Exception):
    """The instance answered, but with an error. The text is for its author and for the operator only."""


class Broken(Exception):
    """The answer breaks the contract. The text names the field."""
