"""Rules for turns of every kind, and for invalid tasks."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from evald.evaluator import compile_schema
from evald.v1 import context_pb2

from ..link import PluginReply
from ..rules import NotTestable, RuleBroken, Severity, Trial, rule
from ..samples import (
    NON_LATIN,
    ONE_MEGABYTE,
    Sample,
    misfits,
    new_task,
    of_every_form,
    schema_of,
    turn,
    with_unknown_fields,
)

# Statuses that may refuse a task instead of an ERROR verdict.
_REFUSALS = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
)


@rule("EV20", "A plain turn gets a verdict.")
async def _plain_turn(trial: Trial) -> None:
    for sample in trial.need_samples():
        reply = await trial.link.evaluate(new_task(sample))
        if not reply.gave_verdict and not _is_unknown(reply):
            raise RuleBroken(f'"{sample.type.type}": {reply}')


def _is_unknown(reply: PluginReply) -> bool:
    """Return whether the verdict is unknown, which has a rule of its own."""
    return reply.output is not None and reply.output.verdict not in (1, 2, 3, 4)


@rule("EV21", "A task that is sent again gets the same answer.")
async def _same_task_again(trial: Trial) -> None:
    for sample in trial.need_samples():
        task = new_task(sample)
        first = await trial.link.evaluate(task)
        task.attempt = 2
        again = await trial.link.evaluate(task)
        if first.output is None or again.output is None:
            raise RuleBroken(f'"{sample.type.type}": {again if first.output else first}')
        for field in ("verdict", "score", "value"):
            before, after = getattr(first.output, field), getattr(again.output, field)
            if before != after and not _both_nan(before, after):
                raise RuleBroken(f'"{sample.type.type}": {field} was {before}, and {after} the second time')


def _both_nan(*numbers: Any) -> bool:
    return all(isinstance(number, float) and math.isnan(number) for number in numbers)


def _survives(context: Callable[[], context_pb2.EvaluatorContext]) -> Callable[[Trial], Awaitable[None]]:
    """Return the check of a turn: every type must answer it, and not with EVALUATOR_EXCEPTION."""

    async def check(trial: Trial) -> None:
        for sample in trial.need_samples():
            _require_answer(sample, await trial.link.evaluate(new_task(sample, context())))

    return check


_empty_answer = rule("EV22", "An empty answer causes no exception.")(_survives(lambda: turn("")))
_null_answer = rule("EV23", "An answer that is null causes no exception.")(_survives(lambda: turn(None)))
_no_messages = rule("EV24", "A turn without messages causes no exception.")(
    _survives(context_pb2.EvaluatorContext)
)
_one_megabyte = rule("EV25", "An answer of 1 MB causes no exception.")(_survives(lambda: turn(ONE_MEGABYTE)))
_non_latin = rule("EV26", "Non-Latin scripts cause no exception.")(_survives(lambda: turn(NON_LATIN)))
_every_form = rule("EV27", "Tool calls, content blocks and unknown roles cause no exception.")(
    _survives(of_every_form)
)


def _require_answer(sample: Sample, reply: PluginReply) -> None:
    if reply.output is None or (reply.is_error and reply.output.error.code == "EVALUATOR_EXCEPTION"):
        raise RuleBroken(f'"{sample.type.type}": {reply}')


@rule("EV28", "Unknown fields are ignored.")
async def _unknown_fields(trial: Trial) -> None:
    for sample in trial.need_samples():
        plain = await trial.link.evaluate(new_task(sample))
        later = await trial.link.evaluate(with_unknown_fields(new_task(sample)))
        if later.output is None or later.is_error is not plain.is_error:
            raise RuleBroken(f'"{sample.type.type}": {later}')


@rule("EV29", "A type that is not offered gets no verdict.")
async def _unknown_type(trial: Trial) -> None:
    for sample in trial.need_samples()[:1]:
        task = new_task(sample)
        task.type, task.version = "conformance.no-such-type", ""
        _require_refusal(f'the type "{task.type}", which is not offered', await trial.link.evaluate(task))
        if not (await trial.link.evaluate(new_task(sample))).output:
            raise RuleBroken("the plugin stops answering after a task of an unknown type")


@rule("EV30", "A task with an invalid config gets no verdict.", severity=Severity.SHOULD)
async def _unfit_config(trial: Trial) -> None:
    tried = 0
    for sample in trial.need_samples():
        config = _unfit(sample)
        if config is not None:
            tried += 1
            reply = await trial.link.evaluate(new_task(sample, config=config))
            _require_refusal(f'"{sample.type.type}" with the config {config}', reply)
    if not tried:
        raise NotTestable("the schemas accept every config")


def _unfit(sample: Sample) -> dict[str, Any] | None:
    schema = schema_of(sample.type)
    if not schema:
        return None
    return next((config for config in misfits(schema) if not fits(schema, config)), None)


def fits(schema: dict[str, Any], config: dict[str, Any]) -> bool:
    """Return whether a config fits a schema, without following external references."""
    try:
        return compile_schema(schema).is_valid(config)
    except Exception:  # noqa: BLE001 - a schema that is none, or refers elsewhere, has a rule of its own
        return True


def _require_refusal(what: str, reply: PluginReply) -> None:
    if not (reply.is_error or reply.status in _REFUSALS):
        raise RuleBroken(f"{what}: {reply}; wanted ERROR, or status NOT_FOUND or INVALID_ARGUMENT")


@rule("EV31", "Concurrent tasks, up to max_concurrency, each get their own answer.")
async def _side_by_side(trial: Trial) -> None:
    sample, places = trial.need_samples()[0], trial.link.places
    tasks = [new_task(sample) for _ in range(max(4, 2 * places))]
    for task in tasks[1::2]:
        task.type, task.version = "conformance.no-such-type", ""
    replies = []
    # A plugin may refuse more tasks than it has slots for.
    for start in range(0, len(tasks), places):
        replies += await trial.link.evaluate_all(tasks[start : start + places])
    for task, reply in zip(tasks, replies, strict=True):
        if reply.output is None and reply.status not in _REFUSALS:
            raise RuleBroken(f"one of {places} concurrent tasks got {reply}")
        if reply.gave_verdict is (task.type != sample.type.type):
            raise RuleBroken(f'a task of type "{task.type}" got the answer of another one: {reply}')
