"""Run tasks: each once, even if it is sent again, and at most max_concurrency at a time."""

import asyncio
import contextvars
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias

from ..context import EvaluatorContext
from ..errors import InvalidInput
from ..evaluator import Evaluate, EvaluatorDefinition, InvalidConfig
from ..foreign import EvaluatorRaised
from ..plugin.v1 import task_pb2
from ..result import Verdict
from ..scope import SCOPE, Scope, ignore_progress
from ..structs import duration_seconds, struct_to_dict
from ..threads import Busy, Threads
from ..turn_tail import settle
from .offer import OfferedEvaluators
from .outputs import crashed, error_output, output_of

ProgressCallback: TypeAlias = Callable[[str, float | None], None]

_ConfigKey: TypeAlias = tuple[str, bytes]
_Key: TypeAlias = tuple[str, str, int, _ConfigKey]

# Cached compiled configs: a server sends few, and each may contain a model or a large pattern.
_MAX_CONFIGS: Final = 128

# Cached outputs for tasks that are sent again: a retry follows within seconds.
_MAX_OUTPUTS: Final = 1024
_MAX_OUTPUT_BYTES: Final = 8 << 20

# Queued tasks per slot: further ones would only wait until they time out.
_MAX_WAITING: Final = 16


class Tasks:
    """Runs the tasks of one process.

    own_loop: run async evaluators in an event loop in a separate thread, so that a blocking evaluator does not
        delay pongs. Otherwise they run in the caller's loop.
    """

    def __init__(self, offered: OfferedEvaluators, *, own_loop: bool = False) -> None:
        self._offered = offered
        self._own_loop = own_loop
        self._threads = Threads(offered.max_concurrency)
        self._places = asyncio.Semaphore(offered.max_concurrency)
        self._jobs: dict[_Key, _Job] = {}
        self._outputs = _OutputCache()
        self._compiled: OrderedDict[_ConfigKey, asyncio.Future[Evaluate]] = OrderedDict()

    @property
    def active(self) -> int:
        """The number of running and queued tasks."""
        return len(self._jobs)

    async def run(
        self,
        task: task_pb2.EvaluationTask,
        *,
        seconds: float | None = None,
        trace_context: Mapping[str, str] | None = None,
        progress: ProgressCallback = ignore_progress,
    ) -> task_pb2.EvaluationOutput:
        """Run a task and return its output. Raises only CancelledError.

        A task that is sent again joins the running one, or gets its cached output. Cancelling, or a timeout, stops
        the work if there are no other waiters.

        seconds: remaining time; the task's own timeout may be shorter; None means no limit.
        trace_context: the caller's trace context, if it is not in the task.
        """
        if task.HasField("timeout"):
            own = duration_seconds(task.timeout)
            seconds = own if seconds is None else min(own, seconds)
        if seconds is not None and seconds <= 0:
            return error_output("TIMEOUT", "The time limit had passed when the task arrived")
        scope = Scope(
            evaluation_id=task.task_id,
            deadline=None if seconds is None else monotonic() + seconds,
            trace_context=dict(task.trace_context) or dict(trace_context or {}),
            progress=progress,
        )
        key = _key(task)
        cached = self._outputs.get(key)
        if cached is not None:
            return cached
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) >= self._offered.max_concurrency * (1 + _MAX_WAITING):
                return error_output(
                    "EVALUATOR_BUSY", f"{len(self._jobs)} tasks are already waiting in this worker"
                )
            job = self._jobs[key] = _Job(asyncio.create_task(self._work(task, key, scope)))
            job.work.add_done_callback(partial(self._finished, key, job))
        job.waiters += 1
        try:
            done, _ = await asyncio.wait((job.work,), timeout=seconds)
        finally:
            job.waiters -= 1
            if not job.waiters and not job.work.done():
                job.work.cancel()
                # Now, not in `_finished`, so that no other call joins a cancelled task.
                self._forget(key, job)
        if done:
            return job.work.result()
        return error_output("TIMEOUT", f"No result within {seconds:.3g}s", seconds=f"{seconds:.3g}")

    def close(self) -> None:
        """Cancel running tasks. Threads of evaluators are not stopped."""
        for job in self._jobs.values():
            job.work.cancel()
        self._threads.close()

    def _forget(self, key: _Key, job: "_Job") -> None:
        if self._jobs.get(key) is job:
            del self._jobs[key]

    def _finished(self, key: _Key, job: "_Job", work: "asyncio.Task[task_pb2.EvaluationOutput]") -> None:
        self._forget(key, job)
        if not work.cancelled():
            output = work.result()
            if output.verdict != int(Verdict.ERROR) or not output.error.retryable:
                self._outputs.put(key, output)

    async def _work(
        self, task: task_pb2.EvaluationTask, key: _Key, scope: Scope
    ) -> task_pb2.EvaluationOutput:
        definition = self._offered.evaluators.get(task.type)
        if definition is None:
            known = ", ".join(self._offered.evaluators)
            return error_output(
                "UNKNOWN_TYPE",
                f'"{task.type[:100]}" is not offered by this worker, which offers {known}',
                type=task.type,
            )
        if task.version and task.version != definition.version:
            return error_output(
                "UNKNOWN_TYPE",
                f'"{task.type}" is offered in version {definition.version}, not {task.version[:40]}',
                type=task.type,
                version=task.version[:40],
            )
        try:
            settle(task.context)
        except InvalidInput as problem:
            return error_output("INVALID_ITEM", f"context.{problem}")
        async with self._places:
            SCOPE.set(scope)  # in the context of this asyncio task
            try:
                evaluate = await self._compile(definition, task, key[3])
                # The server has removed the reasoning, unless the spec wants it.
                ctx = EvaluatorContext(task.context, keeps_reasoning=True)
                outcome = await self._evaluate(definition, evaluate, ctx)
            except InvalidConfig as problem:
                return error_output("INVALID_CONFIG", str(problem))
            except Busy as problem:
                return error_output("EVALUATOR_BUSY", str(problem))
            except asyncio.CancelledError:
                # An evaluator that cancels its own task has failed; a cancelled caller is no failure.
                running = asyncio.current_task()
                if running is not None and running.cancelling():
                    raise
                return crashed(definition, EvaluatorRaised("the evaluator cancelled itself"))
            except Exception as problem:  # noqa: BLE001 - user code
                return crashed(definition, problem)
        return output_of(definition, outcome)

    async def _evaluate(
        self, definition: EvaluatorDefinition, evaluate: Evaluate, ctx: EvaluatorContext
    ) -> Any:
        outcome: Any
        if definition.inline or inspect.iscoroutinefunction(evaluate):
            outcome = evaluate(ctx)
        else:
            outcome = await self._in_thread(evaluate, ctx)
        if not inspect.isawaitable(outcome):
            return outcome
        coroutine: Any = outcome
        if self._own_loop:
            return await self._threads.run_async(definition.type, coroutine)
        # In a separate asyncio task, to distinguish an evaluator that cancels itself from a cancelled caller.
        return await asyncio.create_task(coroutine)

    async def _compile(
        self, definition: EvaluatorDefinition, task: task_pb2.EvaluationTask, key: _ConfigKey
    ) -> Evaluate:
        """Return the evaluator compiled with the task's config, from the cache if possible."""
        compiling = self._compiled.get(key)
        if compiling is None:
            config = struct_to_dict(task.config)
            compiling = asyncio.ensure_future(self._in_thread(definition.compile, config))
            compiling.add_done_callback(partial(self._forget_failure, key))
            self._compiled[key] = compiling
            if len(self._compiled) > _MAX_CONFIGS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(key)
        # Other tasks may wait for the compilation, too: cancelling this task must not cancel it.
        return await asyncio.shield(compiling)

    def _forget_failure(self, key: _ConfigKey, compiling: "asyncio.Future[Evaluate]") -> None:
        """Remove a failed compilation from the cache, unless the config is invalid.

        Other failures may be temporary, such as a model that could not be fetched.
        """
        failed = compiling.cancelled() or not isinstance(compiling.exception(), InvalidConfig | None)
        if failed and self._compiled.get(key) is compiling:
            del self._compiled[key]

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        # One name for all types, because max_concurrency applies to the process. Copies the scope to the thread.
        return await self._threads.run("", partial(contextvars.copy_context().run, function), *args)


@dataclass(eq=False, slots=True)
class _Job:
    """A running task and the number of its waiters."""

    work: "asyncio.Task[task_pb2.EvaluationOutput]"
    waiters: int = 0


class _OutputCache:
    """A cache of the outputs of recent tasks. Evicts the oldest."""

    def __init__(self) -> None:
        self._outputs: OrderedDict[_Key, task_pb2.EvaluationOutput] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key) -> task_pb2.EvaluationOutput | None:
        """Return the cached output of a task, or None."""
        return self._outputs.get(key)

    def put(self, key: _Key, output: task_pb2.EvaluationOutput) -> None:
        """Add an output."""
        before = self._outputs.pop(key, None)
        if before is not None:
            self._bytes -= before.ByteSize()
        self._outputs[key] = output
        self._bytes += output.ByteSize()
        while len(self._outputs) > _MAX_OUTPUTS or self._bytes > _MAX_OUTPUT_BYTES:
            _, forgotten = self._outputs.popitem(last=False)
            self._bytes -= forgotten.ByteSize()


def _key(task: task_pb2.EvaluationTask) -> _Key:
    """Return the identity of a task: everything except timeout, attempt and trace context.

    The id alone is unique only in one server, and a worker may serve several. The context may be large, so the key
    contains its 64-bit hash, with this process's seed.
    """
    context = hash(task.context.SerializeToString(deterministic=True))
    config = task.config.SerializeToString(deterministic=True)
    return (task.task_id, task.version, context, (task.type, config))
