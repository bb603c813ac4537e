"""Time that is up, tasks that are cancelled, and a plugin that is busy."""

import asyncio
from typing import Final

from evald.plugin.v1 import task_pb2

from .links import Work
from .samples import Sample, new_task
from .trial import Broken, NotShown, Trial

# Given to slow tasks; and what a plugin may take on top to notice that they are over.
_SHORT_SECONDS: Final = 0.5
_NOTICE_SECONDS: Final = 1.0


async def _fill(trial: Trial, slow: Sample, seconds: float | None = None) -> list[Work]:
    """Occupy every place. Raises NotShown when the tasks are not slow."""
    works = [await trial.link.start(new_task(slow, seconds=seconds)) for _ in range(trial.link.places)]
    done, _ = await asyncio.wait(
        [asyncio.ensure_future(work.reply(0.3)) for work in works], return_when=asyncio.ALL_COMPLETED
    )
    for reply in done:
        if reply.result().gave_verdict:
            raise NotShown(f'"{slow.type.type}" is not slow with that config: {reply.result()}')
    return works


async def _places_are_free(trial: Trial, when: str) -> None:
    """A task is answered soon, although every place was taken just now."""
    quick = next((one for one in trial.samples if one.type.type != (trial.slow or one).type.type), None)
    quick = quick or trial.need_samples()[0]
    reply = await trial.link.evaluate(new_task(quick), _NOTICE_SECONDS)
    if not reply.gave_verdict:
        raise Broken(f"{when} its place was not free {_NOTICE_SECONDS:g}s later: {reply}")


async def time_that_is_up(trial: Trial) -> None:
    """A task whose time is up ends, and its place is free."""
    works = await _fill(trial, trial.need_slow(), _SHORT_SECONDS)
    for work in works:
        reply = await work.reply(_SHORT_SECONDS + _NOTICE_SECONDS)
        if reply.output is None and reply.status is None:
            raise Broken(f"a task with {_SHORT_SECONDS:g}s was not answered {_NOTICE_SECONDS:g}s after that")
        if reply.gave_verdict:
            raise Broken(f"a task whose time was up got {reply}, wanted ERROR TIMEOUT")
    await _places_are_free(trial, f"when a task's {_SHORT_SECONDS:g}s were up")


async def cancelled_tasks(trial: Trial) -> None:
    """A task that is cancelled ends, and its place is free."""
    slow = trial.need_slow()
    if not trial.link.can(task_pb2.CAPABILITY_CANCEL):
        raise NotShown("the plugin does not claim CAPABILITY_CANCEL")
    works = await _fill(trial, slow)
    for work in works:
        await work.cancel()
    await _places_are_free(trial, "when a task was cancelled")


async def busy(trial: Trial) -> None:
    """It answers, while every place is taken, whether it is alive."""
    works = await _fill(trial, trial.need_slow(), 4 * _NOTICE_SECONDS)
    alive = await trial.link.respond(_NOTICE_SECONDS)
    for work in works:
        await work.cancel()
        await work.reply(4 * _NOTICE_SECONDS)
    if not alive:
        how = "a ping" if trial.link.mode == "connect" else "a health check"
        raise Broken(f"with {len(works)} tasks at work, {how} was not answered within {_NOTICE_SECONDS:g}s")
