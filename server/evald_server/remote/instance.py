"""A process that offers evaluators, whatever its connection, and its tasks."""

import itertools
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from evald.plugin.v1 import task_pb2
from evald_server.auth.principal import LOCAL
from evald_server.fair_slots import count_down
from evald_server.wire_limits import BeyondWireLimit, parse_message

from .breaker import CircuitBreaker
from .errors import ContractError, printable
from .lease import Lease
from .plugin_type import Key, Plugin

_log = logging.getLogger("evald.remote")

MAX_OUTPUT_BYTES: Final = 1 << 20
"""Size of the largest output that is accepted from a plugin."""

_PROBLEM_LOG_SECONDS: Final = 1.0

_Answer = TypeVar("_Answer", bound=Message)


class Mode(IntEnum):
    """How an instance became known to the server. Equal to Registration.Mode of the contract."""

    CONNECTED = 1
    REGISTERED = 2
    STATIC = 3


class InstanceState(IntEnum):
    """Whether an instance gets tasks. Equal to Registration.State of the contract."""

    PENDING = 1
    ACTIVE = 2
    DRAINING = 3
    UNHEALTHY = 4
    LOST = 5


@dataclass(slots=True)
class RemoteTask:
    """One attempt at a task. pb: the message to send. seconds: time left for it. principal: its caller.

    headers: gRPC metadata of a unary call. progress: receives interim messages.
    """

    pb: task_pb2.EvaluationTask
    seconds: float
    principal: str
    headers: tuple[tuple[str, str], ...]
    progress: Callable[[str, float | None], None]


class TaskIds:
    """Task ids that are unique across server processes, and that this process recognizes as its own."""

    def __init__(self) -> None:
        self._prefix: Final = f"{secrets.token_hex(4)}-"
        self._numbers = itertools.count(1)
        self._last = 0

    def new(self) -> str:
        """Return a new id."""
        self._last = next(self._numbers)
        return f"{self._prefix}{self._last:x}"

    def were_given(self, task_id: str) -> bool:
        """Return whether `new` has returned this id."""
        prefix, number = task_id[: len(self._prefix)], task_id[len(self._prefix) :]
        try:
            return prefix == self._prefix and 0 < int(number, 16) <= self._last
        except ValueError:
            return False


def read_answer(kind: type[_Answer], data: bytes, max_bytes: int) -> _Answer:
    """Parse an answer. Raises ContractError; the size is checked first, because parsing a large answer takes time."""
    if len(data) > max_bytes:
        raise ContractError(f"output: got {len(data)} bytes, wanted at most {max_bytes}")
    try:
        return parse_message(kind, data)
    except BeyondWireLimit as problem:
        raise ContractError(f"{problem.path}: {problem.got}") from None
    except DecodeError:
        raise ContractError(
            f"output: cannot parse {kind.DESCRIPTOR.name}: malformed, text that is not UTF-8, or metadata "
            "nested deeper than 32 levels"
        ) from None


class WaitingCalls(Protocol):
    """The calls of one evaluator type that wait for an instance."""

    def wake(self) -> None:
        """Assign free slots to waiting calls."""


class Instance:
    """One process that offers evaluators.

    plugin: None until a static target has described itself. active: number of its tasks from this server.
    held: number of its slots that each principal holds.
    foreign: number of tasks from other servers, as the instance reports. owner: the principal of its registration or
    session, None before there is one. waiting: the calls that may get a freed slot.
    registered, last_seen, lost: Unix time in seconds; last_seen is None until a static target has answered, lost
    until the instance was lost. lost_tasks: number of tasks that it had open then.
    breakers: by type, because a type that fails shows nothing about the others.
    latency_seconds: moving average over its tasks; None before the first one.
    """

    mode: Mode

    def __init__(
        self,
        id: str,  # noqa: A002 - the word of the contract
        target: str,
        plugin: Plugin | None,
        changed: "Callable[[Instance], None]",
    ) -> None:
        self.id = id
        self.target = target
        self.plugin = plugin
        self.breakers: defaultdict[Key, CircuitBreaker] = defaultdict(CircuitBreaker)
        self.active = 0
        self.held: Counter[str] = Counter()
        self.foreign = 0
        self.owner = LOCAL
        self.state = InstanceState.PENDING
        self.last_error = ""
        self.registered = time.time()
        self.last_seen = self.registered if plugin else None
        self.lost: float | None = None
        self.lost_tasks = 0
        self.lease: Lease | None = None
        self.waiting: Sequence[WaitingCalls] = ()
        self.latency_seconds: float | None = None
        self._changed = changed
        self._log_problems_after = float("-inf")
        self._unlogged = 0

    @property
    def name(self) -> str:
        """The name for logs."""
        return (
            f"{self.plugin.name if self.plugin else '?'} {self.id} ({self.mode.name.lower()}, {self.target})"
        )

    @property
    def slots(self) -> int:
        """The number of its slots, free or held."""
        return self.plugin.max_concurrency if self.plugin else 0

    @property
    def free(self) -> bool:
        """Whether the instance can accept one more task."""
        return self.active < self.slots

    @property
    def reachable(self) -> bool:
        """Whether there is a connection to the instance."""
        raise NotImplementedError

    @property
    def load(self) -> float:
        """The share of its slots in use, from 0 to 1."""
        return (self.active + self.foreign) / max(1, self.slots)

    @property
    def shown_state(self) -> InstanceState:
        """The state shown to operators: an open circuit of any type is unhealthy."""
        return max(map(self.state_for, list(self.breakers)), default=self.state)

    def state_for(self, key: Key) -> InstanceState:
        """The state shown to operators of one type."""
        breaker = self.breakers.get(key)
        is_open = self.state is InstanceState.ACTIVE and breaker is not None and breaker.is_open
        return InstanceState.UNHEALTHY if is_open else self.state

    def claim(self, principal: str) -> None:
        """Take a slot."""
        self.active += 1
        self.held[principal] += 1

    def release(self, principal: str, *, sent: bool) -> None:
        """End a task, and return its slot. sent: whether a task was sent."""
        self.active -= 1
        count_down(self.held, principal)

    def record_latency(self, seconds: float) -> None:
        """Add the latency of an answered task to the moving average."""
        self.last_seen = time.time()
        average = self.latency_seconds
        self.latency_seconds = seconds if average is None else average + (seconds - average) / 8

    def set_state(self, state: InstanceState, why: str = "") -> None:
        """Change the state and notify the listener. why: shown to operators."""
        if why:
            self.last_error = printable(why)
        if state is self.state:
            return
        before, self.state = self.state, state
        level = logging.WARNING if state is InstanceState.UNHEALTHY else logging.INFO
        _log.log(
            level,
            "remote instance %s: %s -> %s%s",
            self.name,
            before.name.lower(),
            state.name.lower(),
            f": {self.last_error}" if why else "",
        )
        self._changed(self)

    def log_problem(self, text: str) -> None:
        """Log the problem of an answer, at most once a second."""
        self.last_error = printable(text)
        now = time.monotonic()
        if now < self._log_problems_after:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} earlier problems were not logged)" if self._unlogged else ""
        self._log_problems_after, self._unlogged = now + _PROBLEM_LOG_SECONDS, 0
        _log.error("remote instance %s %s%s", self.name, self.last_error, more)

    def circuit_changed(self, key: Key) -> None:
        """Log that the circuit of a type has opened or closed, and notify the listener."""
        opened, only = self.breakers[key].is_open, self.breakers[key].only
        if opened:
            self.last_error = printable(f"circuit of {key[0]} opened; before: {self.last_error}")
        _log.log(
            logging.WARNING if opened else logging.INFO,
            "remote instance %s: circuit of %s %s%s%s",
            self.name,
            key[0],
            "opened" if opened else "closed",
            f" for {only}, the only one with late tasks" if only else "",
            f": {self.last_error}" if opened else "",
        )
        self._changed(self)

    async def run(self, task: RemoteTask) -> task_pb2.EvaluationOutput:
        """Send a task and return its output. A slot must have been claimed. Cancelling cancels the task.

        Raises PluginUnavailable, PluginTimeout, PluginBusy, PluginFailed or ContractError.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError
