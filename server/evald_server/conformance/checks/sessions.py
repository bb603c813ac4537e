"""Rules for the protocol of plugins that dial out."""

import asyncio
from typing import Final

from evald.plugin.v1 import registry_service_pb2 as pb
from evald_server.remote.errors import Refusal
from evald_server.remote.instances import check_instance_id

from ..link import PluginGone
from ..rules import CONNECT, RuleBroken, Trial, rule
from ..samples import new_task
from ..session_link import AttachStream

# Field 1999, length-delimited: a case of the oneof that no contract defines yet.
_UNKNOWN_FRAME: Final = b"\xfa\x7c\x05later"


@rule("EV60", "A session begins with hello.", CONNECT)
async def _begins_with_hello(trial: Trial) -> None:
    hello = trial.session.stream.hello
    if hello is None:
        raise RuleBroken("the first frame is not hello")
    try:
        check_instance_id(hello.instance_id, "hello.instance_id")
    except Refusal as problem:
        raise RuleBroken(str(problem)) from None


@rule("EV67", "Credit is at least 1, and never above max_concurrency.", CONNECT, looks_back=True)
async def _allows_what_it_can_take(trial: Trial) -> None:
    link = trial.session
    first = link.streams[0].hello
    if first is None or first.initial_credit < 1:
        given = 0 if first is None else first.initial_credit
        raise RuleBroken(f"hello.initial_credit is {given}, wanted 1 or more")
    wanted = max(1, link.info.max_concurrency)
    for stream in link.streams:
        if stream.most_credit > wanted:
            raise RuleBroken(
                f"the server could have had {stream.most_credit} tasks open, but max_concurrency is {wanted}"
            )


@rule("EV61", "A ping is answered within a second.", CONNECT)
async def _answers_pings(trial: Trial) -> None:
    pong = await trial.session.ping(trial.timeouts.notice)
    if pong is None:
        raise RuleBroken(f"no pong with the ping's nonce within {trial.timeouts.notice:g}s")


@rule(
    "EV68", "Each task is completed once, and progress is sent only for open tasks.", CONNECT, looks_back=True
)
async def _keeps_to_the_protocol(trial: Trial) -> None:
    for stream in trial.session.streams:
        for problem in stream.problems:
            raise RuleBroken(problem)


@rule("EV62", "A session ignores unknown frames.", CONNECT)
async def _skips_frames(trial: Trial) -> None:
    stream = trial.session.stream
    await stream.send_bytes(_UNKNOWN_FRAME)
    await stream.send(cancel_task_id="conformance-no-such-task")
    reply = await trial.link.evaluate(new_task(trial.need_samples()[0]))
    if reply.output is None or stream.ended.is_set():
        raise RuleBroken("the plugin stops answering after an unknown frame")


@rule("EV63", "Open tasks are finished when the server stops.", CONNECT)
async def _drains(trial: Trial) -> None:
    link = trial.session
    stream, count = link.stream, len(link.streams)
    sample = trial.need_samples()[0]
    # Sent just before ServerDraining, so that they are open when it arrives.
    works = [await link.start(new_task(sample)) for _ in range(link.places)]
    draining = pb.ServerDraining(reason="conformance")
    draining.reconnect_delay.FromMilliseconds(round(1000 * trial.timeouts.away))
    draining.grace_period.FromMilliseconds(round(1000 * trial.timeouts.grace))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await stream.send(draining=draining)
    for work in works:
        if (await work.reply(trial.timeouts.grace)).output is None:
            raise RuleBroken("a task that was open when the server began to stop was not finished")
    if not await stream.until(lambda: stream.closed_by_plugin, trial.timeouts.grace):
        raise RuleBroken(
            f"the plugin has not closed its stream within the grace of {trial.timeouts.grace:g}s"
        )
    stream.end()
    await _back(trial, count)
    if loop.time() - began < 0.9 * trial.timeouts.away:
        raise RuleBroken(
            f"reconnected after {loop.time() - began:.2f}s, wanted at least reconnect_delay, {trial.timeouts.away:g}s"
        )


@rule("EV64", "A new session is opened within 10 s after one breaks.", CONNECT)
async def _comes_back(trial: Trial) -> None:
    link = trial.session
    stream, count = link.stream, len(link.streams)
    stream.end()
    again = await _back(trial, count)
    before = stream.hello.instance_id if stream.hello else ""
    now = again.hello.instance_id if again.hello else ""
    if now != before:
        raise RuleBroken(f"instance_id was {before[:60]!r}, and is {now[:60]!r} after the stream broke")


# EV65 is retired: it was about resuming sessions, which no server does.


@rule("EV66", "The plugin reconnects within 10 s after the server is back.", CONNECT)
async def _outlives_the_server(trial: Trial) -> None:
    link = trial.session
    count = len(link.streams)
    await link.go_away()
    await asyncio.sleep(trial.timeouts.away)
    await link.open()
    await _back(trial, count)
    reply = await link.evaluate(new_task(trial.need_samples()[0]))
    if reply.output is None:
        raise RuleBroken(f"the plugin reconnected, but does not answer: {reply}")


async def _back(trial: Trial, count: int) -> AttachStream:
    """Wait for the next stream. Raises RuleBroken if it does not arrive in time."""
    try:
        return await trial.session.arrived(trial.timeouts.back, after=count)
    except PluginGone:
        raise RuleBroken(f"the plugin did not reconnect within {trial.timeouts.back:g}s") from None
