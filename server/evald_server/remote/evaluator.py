"""A remote evaluator for the engine: a definition whose function sends the turn to an instance."""

import asyncio
import math
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol

from evald.context import EvaluatorContext
from evald.contract import ContractViolation, checked
from evald.evaluator import Evaluate, EvaluatorDefinition
from evald.plugin.v1 import task_pb2
from evald.result import Check, ErrorInfo, Kind, Result, TokenUsage, Verdict, errored
from evald.scope import Scope, current_scope
from evald.structs import dict_to_struct, struct_to_dict
from evald_server.config import Settings

from .errors import (
    ContractError,
    NoCapacity,
    PluginBusy,
    PluginFailed,
    PluginTimeout,
    PluginUnavailable,
    printable,
)
from .instance import Instance, RemoteTask, TaskIds
from .plugin_type import PluginType
from .pool import InstancePool, Slot

_DEFAULT_SECONDS: Final = 60.0

# Time out slightly before the engine, because only this module knows which instance was late.
_RESERVE_SECONDS: Final = 0.005

# A timeout after less time than this, or less than three times the usual latency, shows nothing about the instance.
_FAIR_SECONDS: Final = 0.1
_FAIR_FACTOR: Final = 3

# Largest output that is converted in the event loop: 40 ms at worst, for metadata of empty values.
_MAX_INLINE_BYTES: Final = 16 << 10

# A worker that lost its stream, or a plugin that restarts, is usually back within this time.
_RECONNECT_SECONDS: Final = 1.0

_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}


class LatencyObserver(Protocol):
    """Records the latencies of one type's tasks."""

    def observe(self, seconds: float, /) -> None:
        """Record the duration of one attempt."""


class RemoteEvaluator:
    """One type in one version, bound to the pool of its instances."""

    def __init__(
        self, pool: InstancePool, settings: Settings, ids: TaskIds, latencies: LatencyObserver
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._ids = ids
        self._latencies = latencies

    def definition(self) -> EvaluatorDefinition:
        """Return the definition for the registry."""
        plugin_type = self._pool.plugin_type
        return EvaluatorDefinition(
            type=plugin_type.name,
            kind=plugin_type.kind,
            label=plugin_type.label,
            description=plugin_type.description,
            config_schema=lambda: plugin_type.schema_json,
            compile=self._compile,
            version=plugin_type.version,
            deterministic=plugin_type.deterministic,
            final_turn_only=plugin_type.final_turn_only,
            metric=plugin_type.metric,
            required_data=plugin_type.required_data,
            is_async=True,
        )

    def _compile(self, config: Mapping[str, Any]) -> Evaluate:
        plugin_type = self._pool.plugin_type
        plugin_type.check_config(config)
        template = task_pb2.EvaluationTask(type=plugin_type.name, version=plugin_type.version)
        dict_to_struct(config, template.config)
        return partial(self._evaluate, plugin_type, template)

    async def _evaluate(
        self, plugin_type: PluginType, template: task_pb2.EvaluationTask, ctx: EvaluatorContext
    ) -> Result:
        """Evaluate a turn, with at most one retry. template: the task without the turn."""
        scope = current_scope()
        deadline = scope.deadline
        if deadline is None:
            deadline = time.monotonic() + _DEFAULT_SECONDS
        context = ctx.serialized()
        size = template.ByteSize() + len(context)
        most = self._settings.remote_max_task_bytes
        if size > most:
            return errored(
                "INPUT_TOO_LARGE",
                f"The task has {size} bytes; a remote evaluator gets at most {most}",
                size=str(size),
                limit=str(most),
            )
        pool = self._pool
        pool.retry_budget.record_call()
        try:
            slot = await pool.acquire_first(deadline - time.monotonic())
        except NoCapacity as problem:
            return errored(problem.code, problem.message)
        task = task_pb2.EvaluationTask(task_id=self._ids.new(), attempt=1, trace_context=scope.trace_context)
        task.MergeFrom(template)
        task.context.MergeFromString(context)
        try:
            return await self._attempt(plugin_type, slot, task, deadline, scope)
        except PluginUnavailable as problem:
            unavailable = _unavailable(slot.instance, problem)
        if not pool.retry_budget.take():
            return unavailable
        try:
            slot = await self._acquire_again(slot.instance, deadline)
        except NoCapacity:
            return unavailable
        task.attempt = 2
        try:
            return await self._attempt(plugin_type, slot, task, deadline, scope)
        except PluginUnavailable as problem:
            return _unavailable(slot.instance, problem)

    async def _acquire_again(self, failed: Instance, deadline: float) -> Slot:
        """Acquire a slot for the second attempt: on another instance, or on an instance that reconnects soon."""
        seconds = min(deadline - time.monotonic(), self._settings.remote_max_queue_seconds)
        try:
            return self._pool.try_acquire(failed) or await self._pool.acquire(seconds, failed)
        except NoCapacity:
            if failed.reachable:
                raise
        return await self._pool.acquire(min(_RECONNECT_SECONDS, seconds / 2), patient=True)

    async def _attempt(
        self,
        plugin_type: PluginType,
        slot: Slot,
        task: task_pb2.EvaluationTask,
        deadline: float,
        scope: Scope,
    ) -> Result:
        """Send the task to an instance and return its result. Raises PluginUnavailable."""
        instance = slot.instance
        start = time.monotonic()
        seconds = deadline - start - _RESERVE_SECONDS
        if seconds <= 0:
            self._pool.release(slot, worked=None, sent=False)
            return _timeout(instance, 0)
        if self._pool.plugin_type.fingerprint != plugin_type.fingerprint:
            self._pool.release(slot, worked=None, sent=False)
            return _changed(plugin_type, instance)
        task.timeout.FromNanoseconds(int(seconds * 1e9))
        headers = tuple(scope.trace_context.items())
        worked: bool | None = None
        late = False
        try:
            output = await instance.run(RemoteTask(task, seconds, slot.principal, headers, scope.progress))
            worked = True
            if output.ByteSize() <= _MAX_INLINE_BYTES:
                result = read_output(output, plugin_type.kind)
            else:
                result = await asyncio.to_thread(read_output, output, plugin_type.kind)
        except PluginUnavailable:
            worked = False
            raise
        except PluginTimeout:
            late = _is_fair(instance, seconds)
            instance.last_error = f"no answer within {seconds:.3g}s"
            return _timeout(instance, seconds)
        except asyncio.CancelledError:
            # The engine timed out first, or the caller disconnected.
            late = time.monotonic() >= deadline - _RESERVE_SECONDS and _is_fair(instance, seconds)
            raise
        except ContractError as problem:
            worked = True
            return _contract_violation(plugin_type, instance, problem)
        except PluginBusy as problem:
            instance.last_error = printable(f"busy: {problem}")
            return _errored(
                instance, "EVALUATOR_BUSY", "The instance of the remote evaluator is at its limit of tasks"
            )
        except PluginFailed as problem:
            worked = True
            return _failed(plugin_type, instance, problem)
        finally:
            elapsed = time.monotonic() - start
            if worked:
                instance.record_latency(elapsed)
            self._pool.release(slot, worked=False if late else worked, late=late)
            self._latencies.observe(elapsed)
        result.instance_id = instance.id
        return result


def read_output(pb: task_pb2.EvaluationOutput, kind: Kind) -> Result:
    """Convert an output to a result that satisfies the contract. Raises ContractError that names the field."""
    if not pb.ByteSize():
        raise ContractError("output: missing, or empty; wanted a verdict")
    verdict = _VERDICTS.get(pb.verdict)
    if verdict is None:
        raise ContractError(f"verdict: got {pb.verdict}, wanted PASSED, FAILED, ERROR or SKIPPED")
    result = Result(
        verdict,
        pb.reason,
        pb.score if pb.HasField("score") else None,
        pb.value if pb.HasField("value") else None,
    )
    if pb.HasField("metadata"):
        result.metadata = struct_to_dict(pb.metadata)
    if pb.checks:
        result.checks = [Check(check.text, check.met, check.evidence) for check in pb.checks]
    result.pending, result.unproven = pb.pending, pb.unproven
    if pb.HasField("error"):
        result.error = ErrorInfo(pb.error.code, pb.error.message, pb.error.metadata)
    if pb.HasField("token_usage"):
        usage = pb.token_usage
        result.token_usage = TokenUsage(
            *(getattr(usage, name) if usage.HasField(name) else None for name in TokenUsage._fields)
        )
    if pb.HasField("cost"):
        result.cost_usd = _read_cost(pb)
    try:
        return checked(kind, result)
    except ContractViolation as problem:
        raise ContractError(str(problem)) from None


def _read_cost(pb: task_pb2.EvaluationOutput) -> float | None:
    amount = pb.cost.amount
    if not (math.isfinite(amount) and amount >= 0):
        raise ContractError(f"cost.amount: got {amount}, wanted 0 or more")
    # Amounts in other currencies cannot be added to amounts in US dollars.
    return amount if pb.cost.currency_code in ("USD", "") else None


def _is_fair(instance: Instance, seconds: float) -> bool:
    """Return whether a timeout after this time counts as a failure of the instance."""
    return seconds >= max(_FAIR_SECONDS, _FAIR_FACTOR * (instance.latency_seconds or 0.0))


def _unavailable(instance: Instance, problem: PluginUnavailable) -> Result:
    instance.last_error = printable(str(problem))
    return _errored(
        instance,
        "REMOTE_UNAVAILABLE",
        "The instance of the remote evaluator disconnected or could not be reached",
    )


def _timeout(instance: Instance, seconds: float) -> Result:
    text = f"No answer from the remote evaluator within {seconds:.3g}s"
    return _errored(instance, "TIMEOUT", text, seconds=f"{seconds:.3g}")


def _contract_violation(plugin_type: PluginType, instance: Instance, problem: ContractError) -> Result:
    instance.log_problem(f"broke the contract of {plugin_type.name}: {problem}")
    return _errored(instance, "CONTRACT_VIOLATION", f"The evaluator's answer breaks the contract: {problem}")


def _changed(plugin_type: PluginType, instance: Instance) -> Result:
    return _errored(
        instance,
        "CONTRACT_VIOLATION",
        f'The kind or config schema of "{plugin_type.name}" {plugin_type.version} has changed since the call or '
        "session began. Start a new one; a plugin that changes a type should change its version, too",
    )


def _failed(plugin_type: PluginType, instance: Instance, problem: PluginFailed) -> Result:
    incident = secrets.token_hex(6)
    instance.log_problem(f"failed on {plugin_type.name}, incident {incident}: {problem}")
    text = f"The remote evaluator failed (incident {incident}; the server's log has the details)"
    return _errored(instance, "EVALUATOR_EXCEPTION", text, incident=incident)


def _errored(instance: Instance, code: str, text: str, **details: str) -> Result:
    result = errored(code, text, **details)
    result.instance_id = instance.id
    return result
