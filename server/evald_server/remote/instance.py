"""One process that offers evaluators, as the server sees it."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from .breaker import Breaker
from .offer import Plugin
from .task import Task

if TYPE_CHECKING:
    from .lease import Lease
    from .pool import Pool

_log = logging.getLogger("evald.remote")

_MOST_ERROR_TEXT: Final = 300
_QUIET_SECONDS: Final = 1.0


class Mode(IntEnum):
    """How an instance came to be known. Equal to the wire's Registration.Mode."""

    CONNECTED = 1
    REGISTERED = 2
    STATIC = 3


class State(IntEnum):
    """Whether an instance gets tasks. Equal to the wire's Registration.State."""

    PENDING = 1
    ACTIVE = 2
    DRAINING = 3
    UNHEALTHY = 4


class Instance:
    """An instance, whatever the way to it.

    plugin: None until a static target has described itself. active: tasks that it has from this server.
    foreign: tasks that it says it has from others. pools: of the types that it offers.
    registered, last_seen: Unix time in seconds.
    """

    mode: Mode

    def __init__(
        self,
        id: str,  # noqa: A002 - as it is
        target: str,
        plugin: Plugin | None,
        changed: "Callable[[Instance], None]",
    ) -> None:
        self.id = id
        self.target = target
        self.plugin = plugin
        self.breaker = Breaker()
        self.active = 0
        self.foreign = 0
        self.state = State.PENDING
        self.last_error = ""
        self.registered = self.last_seen = time.time()
        self.lease: Lease | None = None
        self.pools: Sequence[Pool] = ()
        # Seconds that its tasks usually take; None before the first one.
        self.usual_seconds: float | None = None
        self._changed = changed
        self._quiet_until = float("-inf")
        self._unsaid = 0

    @property
    def name(self) -> str:
        """For logs: which one it is."""
        return (
            f"{self.plugin.name if self.plugin else '?'} {self.id} ({self.mode.name.lower()}, {self.target})"
        )

    @property
    def free(self) -> bool:
        """Whether it may get one more task."""
        return self.plugin is not None and self.active < self.plugin.max_concurrency

    @property
    def reachable(self) -> bool:
        """Whether there is a connection to it."""
        raise NotImplementedError

    @property
    def load(self) -> float:
        """Share of its places that are taken."""
        places = self.plugin.max_concurrency if self.plugin else 1
        return (self.active + self.foreign) / places

    @property
    def shown_state(self) -> State:
        """The state as operators see it: an open circuit is unhealthy."""
        return State.UNHEALTHY if self.state is State.ACTIVE and self.breaker.is_open else self.state

    def claim(self) -> None:
        """Take a place."""
        self.active += 1

    def give_back(self, *, used: bool) -> None:
        """Free a place. used: a task was sent."""
        self.active -= 1

    def took(self, seconds: float) -> None:
        """A task was done in so many seconds."""
        self.last_seen = time.time()
        usual = self.usual_seconds
        self.usual_seconds = seconds if usual is None else usual + (seconds - usual) / 8

    def set_state(self, state: State, why: str = "") -> None:
        """Change the state, and tell who wants to know. why: for the operator."""
        if why:
            self.last_error = printable(why)
        if state is self.state:
            return
        before, self.state = self.state, state
        level = logging.WARNING if state is State.UNHEALTHY else logging.INFO
        _log.log(
            level,
            "remote instance %s: %s -> %s%s",
            self.name,
            before.name.lower(),
            state.name.lower(),
            f": {self.last_error}" if why else "",
        )
        self._changed(self)

    def complain(self, text: str) -> None:
        """Log what is wrong with an answer: a line a second at most, however many bad answers there are."""
        self.last_error = printable(text)
        now = time.monotonic()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more like this before)" if self._unsaid else ""
        self._quiet_until, self._unsaid = now + _QUIET_SECONDS, 0
        _log.error("remote instance %s %s%s", self.name, self.last_error, more)

    def circuit_changed(self) -> None:
        """The circuit has opened or closed."""
        opened = self.breaker.is_open
        if opened:
            self.last_error = f"circuit opened; before: {self.last_error}"
        _log.log(
            logging.WARNING if opened else logging.INFO,
            "remote instance %s: circuit %s%s",
            self.name,
            "opened" if opened else "closed",
            f": {self.last_error}" if opened else "",
        )
        self._changed(self)

    def run(self, task: Task) -> Awaitable[bytes]:
        """The serialised EvaluationOutput of a task. Raises Lost, Late, Busy, Failed or Broken.

        A place must have been claimed. Cancelling it cancels the task.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of it."""
        raise NotImplementedError


def printable(text: str) -> str:
    """Text of a peer as one line of a log or a table."""
    shown = "".join(character if character.isprintable() else " " for character in text[:_MOST_ERROR_TEXT])
    return shown if len(text) <= _MOST_ERROR_TEXT else f"{shown}…"
