"""Rules for timeouts, cancellation and busy plugins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evald.plugin.v1 import task_pb2

from ..link import PendingReply
from ..rules import NotTestable, RuleBroken, Trial, rule
from ..samples import new_task


@asynccontextmanager
async def _every_place_taken(trial: Trial, seconds: float) -> AsyncIterator[list[PendingReply]]:
    """Fill all slots of the plugin with slow tasks. Raises NotTestable if they are not slow."""
    slow = trial.need_slow()
    works = [await trial.link.start(new_task(slow, seconds=seconds)) for _ in range(trial.link.places)]
    replies = await asyncio.gather(*(work.reply(trial.timeouts.short / 2) for work in works))
    for reply in replies:
        if reply.gave_verdict:
            raise NotTestable(f'"{slow.type.type}" is not slow with that config: {reply}')
    try:
        yield works
    except RuleBroken:
        # Tasks that still run must not disturb the next rule.
        for work in works:
            await work.cancel()
        await asyncio.sleep(4 * trial.timeouts.notice)
        raise


async def _places_are_free(trial: Trial, when: str) -> None:
    """Raise RuleBroken unless a slot is free now, that is, the plugin answers a quick task in time."""
    slow = trial.need_slow().type.type
    samples = trial.need_samples()
    quick = next((sample for sample in samples if sample.type.type != slow), samples[0])
    reply = await trial.link.evaluate(new_task(quick), trial.timeouts.notice)
    if not reply.gave_verdict:
        raise RuleBroken(f"{when}, its slot was not free {trial.timeouts.notice:g}s later: {reply}")


@rule("EV40", "A task ends when its time limit is over.")
async def _time_that_is_up(trial: Trial) -> None:
    timeouts = trial.timeouts
    async with _every_place_taken(trial, timeouts.short) as works:
        for work in works:
            reply = await work.reply(timeouts.short + timeouts.notice)
            if reply.output is None and reply.status is None:
                raise RuleBroken(
                    f"a task with a time limit of {timeouts.short:g}s was not answered within {timeouts.notice:g}s after it"
                )
            if reply.gave_verdict:
                raise RuleBroken(f"a task that exceeded its time limit got {reply}, wanted ERROR TIMEOUT")
        await _places_are_free(trial, f"after the time limit of a task, {timeouts.short:g}s")


@rule("EV41", "A task ends when it is cancelled.")
async def _cancelled_tasks(trial: Trial) -> None:
    trial.need_slow()
    if not trial.link.can(task_pb2.CAPABILITY_CANCEL):
        raise NotTestable("the plugin does not claim CAPABILITY_CANCEL")
    async with _every_place_taken(trial, 4 * trial.timeouts.notice) as works:
        for work in works:
            await work.cancel()
        await _places_are_free(trial, "after a task was cancelled")


@rule("EV42", "A busy plugin still answers pings or health checks.")
async def _busy(trial: Trial) -> None:
    timeouts = trial.timeouts
    async with _every_place_taken(trial, 4 * timeouts.notice) as works:
        if not await trial.link.respond(timeouts.notice):
            how = "a ping" if trial.link.mode == "connect" else "a health check"
            raise RuleBroken(
                f"while {len(works)} tasks run, {how} was not answered within {timeouts.notice:g}s"
            )
        for work in works:
            await work.cancel()
            await work.reply(4 * timeouts.notice)
