"""EvaluateStream, for plugins that listen and claim it."""

import asyncio
from typing import Any, Final

import grpc

from evald.plugin.v1 import evaluator_plugin_service_pb2 as pb
from evald.plugin.v1 import task_pb2

from ..links import PATIENCE_SECONDS
from ..samples import new_task
from ..trial import Broken, NotShown, Trial

_TASKS: Final = 10

# Field 1999, length-delimited: a case of the oneof that nobody knows yet.
_UNKNOWN_FRAME: Final = b"\xfa\x7c\x05later"


def _stream(trial: Trial) -> Any:
    if not trial.link.can(task_pb2.CAPABILITY_EVALUATE_STREAM):
        raise NotShown("the plugin does not claim CAPABILITY_EVALUATE_STREAM")
    return trial.target.stream()


async def _send(stream: Any, frame: pb.EvaluateStreamRequest) -> None:
    try:
        await stream.write(frame)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        raise Broken(f"the stream ended with {(await stream.code()).name}") from None


async def _read(stream: Any) -> pb.EvaluateStreamResponse | None:
    """The next answer, None at the end."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await stream.read()
    except TimeoutError:
        raise Broken(f"no answer within {PATIENCE_SECONDS:g}s") from None
    except grpc.aio.AioRpcError as problem:
        raise Broken(f"the stream ended with {problem.code().name}: {problem.details()}") from None
    return None if answer is grpc.aio.EOF else answer


async def answers_by_id(trial: Trial) -> None:
    """Every task is answered once, by its id."""
    sample = trial.need_samples()[0]
    stream = _stream(trial)
    tasks = [new_task(sample) for _ in range(_TASKS)]
    open_ids: set[str] = set()
    while tasks or open_ids:
        # Never more at a time than it has places for.
        while tasks and len(open_ids) < trial.link.places:
            task = tasks.pop()
            open_ids.add(task.task_id)
            await _send(stream, pb.EvaluateStreamRequest(task=task))
        answer = await _read(stream)
        if answer is None:
            left = len(tasks) + len(open_ids)
            raise Broken(f"the stream ended with {left} of {_TASKS} tasks unanswered")
        if answer.task_id not in open_ids:
            raise Broken(f"an answer for {answer.task_id[:60]!r}, which was not open")
        open_ids.remove(answer.task_id)
        trial.link.heard(task, answer.output)
    stream.cancel()


async def skips_frames(trial: Trial) -> None:
    """Frames of a later contract are skipped."""
    sample = trial.need_samples()[0]
    stream = _stream(trial)
    await _send(stream, pb.EvaluateStreamRequest.FromString(_UNKNOWN_FRAME))
    await _send(stream, pb.EvaluateStreamRequest(cancel_task_id="conformance-no-such-task"))
    task = new_task(sample)
    await _send(stream, pb.EvaluateStreamRequest(task=task))
    answer = await _read(stream)
    if answer is None or answer.task_id != task.task_id:
        raise Broken("after a frame that it cannot know it answers no more")
    stream.cancel()


async def ends_with_its_answers(trial: Trial) -> None:
    """The caller's end of the stream does not cut off answers."""
    sample = trial.need_samples()[0]
    stream = _stream(trial)
    tasks = min(_TASKS, trial.link.places)
    for _ in range(tasks):
        await _send(stream, pb.EvaluateStreamRequest(task=new_task(sample)))
    await stream.done_writing()
    answers = 0
    while await _read(stream) is not None:
        answers += 1
    if answers != tasks:
        raise Broken(f"{answers} answers to {tasks} tasks before the stream ended")
