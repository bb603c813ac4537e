"""Runs and their events."""

from enum import IntEnum
from typing import NamedTuple


class RunEventKind(IntEnum):
    """What an event's body holds."""

    MESSAGE = 1
    TURN = 2
    STATUS = 3
    END = 4


class RunEvent(NamedTuple):
    """One event of a run. A turn with n results occupies n + 1 numbers; `sequence` is the last of them.

    body: serialised RunMessage, RunTurn with its results, RunStatusChange; empty for the end.
    """

    sequence: int
    kind: RunEventKind
    body: bytes
