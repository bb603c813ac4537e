"""How the kit reaches a plugin: what both ways have in common."""

import asyncio
from abc import ABC, abstractmethod
from typing import Final, Literal, NamedTuple, TypeAlias

import grpc

from evald.plugin.v1 import task_pb2

Mode: TypeAlias = Literal["target", "connect"]

# An answer that takes longer is none: a plugin that needs a model for it is given a config that does not.
PATIENCE_SECONDS: Final = 20.0
# The largest output that a server takes.
MAX_OUTPUT_BYTES: Final = 1 << 20


class Gone(Exception):
    """The plugin cannot be reached (any more)."""


class Reply(NamedTuple):
    """What came back for a task.

    output: None when there was none; then `status` says how the call ended, or nothing came in time.
    """

    output: task_pb2.EvaluationOutput | None = None
    status: grpc.StatusCode | None = None
    detail: str = ""

    @property
    def gave_verdict(self) -> bool:
        """Whether it passed, failed, measured or skipped something."""
        return self.output is not None and self.output.verdict in (1, 2, 4)

    @property
    def is_error(self) -> bool:
        """Whether it said that there is no verdict."""
        return self.output is not None and self.output.verdict == 3

    def __str__(self) -> str:
        if self.output is None:
            return f"{self.status.name}: {self.detail}" if self.status else self.detail or "no answer"
        if self.is_error:
            return f"ERROR {self.output.error.code}: {self.output.error.message[:200]}"
        names = {1: "PASSED", 2: "FAILED", 4: "SKIPPED"}
        return names.get(self.output.verdict, f"verdict {self.output.verdict}")


NO_ANSWER = Reply(detail="no answer in time")


class Said(NamedTuple):
    """One output of the plugin, for the rules that hold for all of them."""

    task: task_pb2.EvaluationTask
    output: task_pb2.EvaluationOutput | None


class Work(ABC):
    """A task that the plugin has been given."""

    @abstractmethod
    async def reply(self, seconds: float = PATIENCE_SECONDS) -> Reply:
        """What came back, or NO_ANSWER after so many seconds."""

    @abstractmethod
    async def cancel(self) -> None:
        """Ask the plugin to stop it."""


class Link(ABC):
    """A plugin that can be reached.

    info: its description. said: everything that it has answered.
    """

    mode: Mode
    info: task_pb2.PluginInfo

    def __init__(self) -> None:
        self.said: list[Said] = []

    @abstractmethod
    async def start(self, task: task_pb2.EvaluationTask) -> Work:
        """Give it a task. Raises Gone."""

    @abstractmethod
    async def respond(self, seconds: float) -> bool:
        """Whether its program answers within so many seconds: a health check, or a ping."""

    @abstractmethod
    async def recover(self, seconds: float) -> None:
        """Return when it can be given tasks again. Raises Gone when it is not back in so many seconds."""

    @abstractmethod
    async def close(self) -> None:
        """Let it go."""

    async def evaluate(self, task: task_pb2.EvaluationTask, seconds: float = PATIENCE_SECONDS) -> Reply:
        """Give it a task, as soon as it takes one, and wait for what comes back."""
        try:
            async with asyncio.timeout(seconds):
                work = await self.start(task)
                return await work.reply(seconds)
        except TimeoutError:
            return NO_ANSWER

    async def evaluate_all(self, tasks: list[task_pb2.EvaluationTask]) -> list[Reply]:
        """Give it tasks, all at the same time as far as it allows."""
        return await asyncio.gather(*map(self.evaluate, tasks))

    @property
    def places(self) -> int:
        """How many tasks it works on at a time, as it says; at most 64 are tried."""
        return max(1, min(self.info.max_concurrency, 64))

    def can(self, capability: "task_pb2.Capability") -> bool:
        """Whether it claims so."""
        return capability in self.info.capabilities

    def heard(self, task: task_pb2.EvaluationTask, output: task_pb2.EvaluationOutput) -> Reply:
        """Keep what it said."""
        self.said.append(Said(task, output))
        return Reply(output)

    def unreadable(self, task: task_pb2.EvaluationTask, data: bytes) -> Reply:
        """Keep that it said something that is no message."""
        self.said.append(Said(task, None))
        return Reply(detail=f"{len(data)} bytes that are no output")
