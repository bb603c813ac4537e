"""Interface to a plugin under test, common to both modes."""

import asyncio
from abc import ABC, abstractmethod
from typing import Final, Literal, NamedTuple, TypeAlias

import grpc

from evald.plugin.v1 import task_pb2

Mode: TypeAlias = Literal["target", "connect"]

# A later answer counts as no answer. A plugin that calls a model needs a config without a model.
PATIENCE_SECONDS: Final = 20.0


class PluginGone(Exception):
    """The plugin cannot be reached, or disconnected."""


class PluginReply(NamedTuple):
    """The reply to a task.

    output: None if there was none. status: the error of a unary call. Without both no answer arrived in time.
    """

    output: task_pb2.EvaluationOutput | None = None
    status: grpc.StatusCode | None = None
    detail: str = ""

    @property
    def gave_verdict(self) -> bool:
        """Whether the verdict is PASSED, FAILED or SKIPPED."""
        return self.output is not None and self.output.verdict in (1, 2, 4)

    @property
    def is_error(self) -> bool:
        """Whether the verdict is ERROR."""
        return self.output is not None and self.output.verdict == 3

    def __str__(self) -> str:
        if self.output is None:
            return f"{self.status.name}: {self.detail}" if self.status else self.detail or "no answer"
        if self.is_error:
            return f"ERROR {self.output.error.code}: {self.output.error.message[:200]}"
        names = {1: "PASSED", 2: "FAILED", 4: "SKIPPED"}
        return names.get(self.output.verdict, f"verdict {self.output.verdict}")


NO_ANSWER = PluginReply(detail="no answer in time")


class RecordedOutput(NamedTuple):
    """One output, for the rules that apply to all outputs. output: None if it was unreadable."""

    task: task_pb2.EvaluationTask
    output: task_pb2.EvaluationOutput | None


class PendingReply(ABC):
    """A task that has been sent."""

    @abstractmethod
    async def reply(self, seconds: float = PATIENCE_SECONDS) -> PluginReply:
        """Wait for the reply. Returns NO_ANSWER after `seconds`."""

    @abstractmethod
    async def cancel(self) -> None:
        """Cancel the task."""


class Link(ABC):
    """A connection to a plugin under test.

    info: its description. outputs: all outputs that it has sent.
    """

    mode: Mode
    info: task_pb2.PluginInfo

    def __init__(self) -> None:
        self.outputs: list[RecordedOutput] = []

    @abstractmethod
    async def start(self, task: task_pb2.EvaluationTask) -> PendingReply:
        """Send a task. Raises PluginGone."""

    @abstractmethod
    async def respond(self, seconds: float) -> bool:
        """Return whether the plugin answers a health check or ping within `seconds`."""

    @abstractmethod
    async def recover(self, seconds: float) -> None:
        """Wait until the plugin accepts tasks again. Raises PluginGone after `seconds`."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def evaluate(self, task: task_pb2.EvaluationTask, seconds: float = PATIENCE_SECONDS) -> PluginReply:
        """Send a task as soon as the plugin accepts one, and wait for the reply."""
        try:
            async with asyncio.timeout(seconds):
                work = await self.start(task)
                return await work.reply(seconds)
        except TimeoutError:
            return NO_ANSWER

    async def evaluate_all(self, tasks: list[task_pb2.EvaluationTask]) -> list[PluginReply]:
        """Send tasks concurrently, as far as the plugin accepts them."""
        return await asyncio.gather(*map(self.evaluate, tasks))

    @property
    def places(self) -> int:
        """The plugin's max_concurrency, limited to 1 to 64."""
        return max(1, min(self.info.max_concurrency, 64))

    def can(self, capability: "task_pb2.Capability") -> bool:
        """Return whether the plugin claims a capability."""
        return capability in self.info.capabilities

    def record(self, task: task_pb2.EvaluationTask, output: task_pb2.EvaluationOutput) -> PluginReply:
        """Record an output."""
        self.outputs.append(RecordedOutput(task, output))
        return PluginReply(output)

    def record_unreadable(self, task: task_pb2.EvaluationTask, data: bytes) -> PluginReply:
        """Record an unreadable output."""
        self.outputs.append(RecordedOutput(task, None))
        return PluginReply(detail=f"cannot parse an output from the {len(data)} bytes received")
