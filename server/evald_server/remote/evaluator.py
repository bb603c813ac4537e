"""A remote evaluator as the engine sees it: a definition whose function sends the turn away."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from evald.context import EvaluatorContext
from evald.evaluator import Evaluate, EvaluatorDefinition
from evald.plugin.v1 import task_pb2
from evald.result import Result, errored
from evald.scope import Scope, current_scope
from evald.structs import dict_to_struct
from evald_server.encoding import delimited, size, timestamp
from evald_server.later import later

from .instance import Instance, printable
from .limits import Limits
from .offer import Offer
from .output import read_output
from .pool import NoPlace, Pool, Slot
from .task import Broken, Busy, Failed, Late, Lost, Task, TaskIds

_DEFAULT_SECONDS: Final = 60.0

# Our own clock runs out a little before the engine's, so that we, who know which instance it was, can say so.
_RESERVE_SECONDS: Final = 0.005

# A call with less time than the instance usually takes says nothing about the instance: else one hasty caller
# would open the circuit for everyone.
_FAIR_SECONDS: Final = 0.1
_FAIR_FACTOR: Final = 3

# A worker that has lost its stream, or a plugin that restarts, is usually back within this.
_COME_BACK_SECONDS: Final = 1.0

# Fields of evald.plugin.v1.EvaluationTask, as they begin on the wire, and the values of `attempt`.
_TASK_ID: Final = 1
_CONTEXT, _TIMEOUT = b"\x22", b"\x32"
_FIRST, _SECOND = b"\x40\x01", b"\x40\x02"


class TaskTally(Protocol):
    """Counts the tasks of one type."""

    def observe(self, seconds: float) -> None:
        """One attempt is over."""


class RemoteEvaluator:
    """One type in one version, bound to the pool of its instances."""

    def __init__(
        self,
        pool: Pool,
        limits: Limits,
        ids: TaskIds,
        tally: TaskTally,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._ids = ids
        self._tally = tally

    def definition(self) -> EvaluatorDefinition:
        """For the registry. A remote neither runs on every call by its own wish nor takes other names."""
        offer = self._pool.offer
        return EvaluatorDefinition(
            type=offer.type,
            kind=offer.kind,
            label=offer.label,
            description=offer.description,
            config_schema=offer.schema,
            config_schema_json=offer.schema_json,
            compile=self._compile,
            version=offer.version,
            deterministic=offer.deterministic,
            final_turn_only=offer.final_turn_only,
            metric=offer.metric,
            required_data=offer.required_data,
            is_async=True,
        )

    def _compile(self, config: Mapping[str, Any]) -> Evaluate:
        offer = self._pool.offer
        offer.check_config(config)
        task = task_pb2.EvaluationTask(type=offer.type, version=offer.version)
        dict_to_struct(config, task.config)
        head = task.SerializeToString()
        return partial(self._run, offer, head)

    async def _run(self, offer: Offer, head: bytes, ctx: EvaluatorContext) -> Result:
        """The result of a task. head: what all tasks of a config have in common."""
        scope = current_scope()
        deadline = scope.deadline
        if deadline is None:
            deadline = time.monotonic() + _DEFAULT_SECONDS
        context = ctx.serialized()
        length = len(head) + len(context)
        if length > self._limits.task_bytes:
            return errored(
                "INPUT_TOO_LARGE",
                f"The task has {length} bytes; at most {self._limits.task_bytes} are sent to a remote evaluator",
                size=str(length),
                limit=str(self._limits.task_bytes),
            )
        pool = self._pool
        pool.budget.offer()
        try:
            slot = pool.enter() or await pool.wait(deadline - time.monotonic())
        except NoPlace as problem:
            return errored(problem.code, problem.message)
        task_id = self._ids.new()
        parts = [head, _CONTEXT, size(context), context, delimited(_TASK_ID, task_id.encode())]
        if scope.trace_context:
            traced = task_pb2.EvaluationTask(trace_context=scope.trace_context)
            parts.append(traced.SerializeToString())
        try:
            return await self._attempt(offer, slot, task_id, parts, _FIRST, deadline, scope)
        except Lost as problem:
            lost = _note(slot.instance, problem)
        if not pool.budget.take():
            return lost
        try:
            slot = await self._enter_again(slot.instance, deadline)
        except NoPlace:
            return lost
        try:
            return await self._attempt(offer, slot, task_id, parts, _SECOND, deadline, scope)
        except Lost as problem:
            return _note(slot.instance, problem)

    async def _enter_again(self, failed: Instance, deadline: float) -> Slot:
        """A place for the second attempt: on another instance, or on one that comes back soon."""
        seconds = deadline - time.monotonic()
        try:
            return self._pool.enter(failed) or await self._pool.wait(seconds, failed)
        except NoPlace:
            if failed.reachable:
                raise
        return await self._pool.wait(min(_COME_BACK_SECONDS, seconds / 2), patient=True)

    async def _attempt(
        self,
        offer: Offer,
        slot: Slot,
        task_id: str,
        parts: Sequence[bytes],
        attempt: bytes,
        deadline: float,
        scope: Scope,
    ) -> Result:
        """What an instance says. Raises Lost.

        parts: of the serialised task, but for what an attempt adds. attempt: which one, likewise.
        """
        instance = slot.instance
        began = time.monotonic()
        seconds = deadline - began - _RESERVE_SECONDS
        if seconds <= 0:
            self._pool.leave(slot, worked=None, used=False)
            return _late(instance, 0)
        worked: bool | None = None
        try:
            data = b"".join((*parts, _TIMEOUT, timestamp(int(seconds * 1e9)), attempt))
            headers = tuple(scope.trace_context.items())
            data = await instance.run(Task(task_id, data, seconds, headers, scope.progress))
            worked = True
            result = read_output(data, offer.kind, most_bytes=self._limits.output_bytes)
        except Lost:
            worked = False
            raise
        except Late:
            worked = _judged(instance, seconds)
            instance.last_error = f"no answer within {seconds:.3g}s"
            return _late(instance, seconds)
        except asyncio.CancelledError:
            # The engine's clock was faster, or the caller went away.
            if time.monotonic() >= deadline - _RESERVE_SECONDS:
                worked = _judged(instance, seconds)
            raise
        except Broken as problem:
            worked = True
            return _broken(offer, instance, problem)
        except Busy as problem:
            instance.last_error = printable(f"busy: {problem}")
            return _of(instance, errored("EVALUATOR_BUSY", "The instance has no room for the task"))
        except Failed as problem:
            worked = True
            return _failed(offer, instance, problem)
        finally:
            if worked:
                later(self._over, slot, worked, time.monotonic() - began)
            else:
                # At once: who tries again must find it as it is.
                self._over(slot, worked, time.monotonic() - began)
        result.instance_id = instance.id
        return result

    def _over(self, slot: Slot, worked: bool | None, seconds: float) -> None:
        """An attempt is over, and took so long."""
        if worked:
            slot.instance.took(seconds)
        self._pool.leave(slot, worked=worked)
        self._tally.observe(seconds)


def _judged(instance: Instance, seconds: float) -> bool | None:
    """Whether an instance that did not answer within so many seconds has failed."""
    usual = instance.usual_seconds or 0.0
    return False if seconds >= max(_FAIR_SECONDS, _FAIR_FACTOR * usual) else None


def _note(instance: Instance, problem: Lost) -> Result:
    instance.last_error = printable(str(problem))
    return _of(instance, errored("REMOTE_UNAVAILABLE", "The instance went away, or could not be reached"))


def _late(instance: Instance, seconds: float) -> Result:
    return _of(
        instance,
        errored(
            "TIMEOUT", f"No answer from the remote evaluator within {seconds:.3g}s", seconds=f"{seconds:.3g}"
        ),
    )


def _broken(offer: Offer, instance: Instance, problem: Broken) -> Result:
    instance.complain(f"broke the contract of {offer.type}: {problem}")
    return _of(
        instance, errored("CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")
    )


def _failed(offer: Offer, instance: Instance, problem: Failed) -> Result:
    incident = secrets.token_hex(6)
    instance.complain(f"failed on {offer.type}, incident {incident}: {problem}")
    return _of(
        instance,
        errored(
            "EVALUATOR_EXCEPTION",
            f"The remote evaluator failed (incident {incident}; the server's log has the details)",
            incident=incident,
        ),
    )


def _of(instance: Instance, result: Result) -> Result:
    result.instance_id = instance.id
    return result
