"""A run that was cut off ends as if nothing had happened."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from evald.result import Verdict
from evald.v1.context_pb2 import Invocation
from evald.v1.run_service_pb2 import RUN_STATUS_COMPLETED, RUN_STATUS_ERROR, RUN_STATUS_RUNNING, Run
from evald_server.connectors.connector import AgentRequest
from evald_server.runs.loop import RunLoop
from evald_server.store.runs import RunEvent, run_seconds

from ..judge.scripted import criteria
from .fake_store import FakeStore
from .scripted import ScriptedAgent, Talker, engine, go_on, parts, play, queued, scenario, whole

UNMET, MET = criteria(False, why="not yet"), criteria(True, why="ok")


class _Killed(Exception):
    pass


async def _play_until(
    store: FakeStore, run_id: str, agent: ScriptedAgent, judge: object, messages: int
) -> None:
    """Play a run until it is cut off right after so many messages were stored."""

    async def save(run: Run, events: Sequence[RunEvent]) -> None:
        await store.save(run, events)
        if run.output.message_count == messages and run.status == RUN_STATUS_RUNNING:
            raise _Killed

    run = await store.get(run_id)
    assert run is not None
    events = await store.events(run_id)
    with pytest.raises(_Killed):
        await RunLoop(
            run,
            events,
            parts(judge),
            connector=agent,
            user=Talker(),
            save=save,  # type: ignore[arg-type]
        ).drive()


async def test_the_last_word_at_the_limit_is_not_answered_after_a_restart() -> None:
    store, agent, judge = FakeStore(), ScriptedAgent(), engine(UNMET, UNMET, MET)
    run = queued(scenario(successCriteria="books", maxMessages=5))
    await store.create([run])
    await _play_until(store, run.id, agent, judge, 5)
    ended = await go_on(store, run.id, agent, Talker(), parts(judge))
    assert len(agent.requests) == 2
    assert (ended.status, Verdict(ended.verdict)) == (RUN_STATUS_COMPLETED, Verdict.FAILED)
    assert len(ended.messages) == 5


async def test_an_answer_at_the_limit_is_evaluated_after_a_restart() -> None:
    store, agent, judge = FakeStore(), ScriptedAgent(), engine(UNMET)
    run = queued(scenario(successCriteria="books", maxMessages=2))
    await store.create([run])
    await _play_until(store, run.id, agent, judge, 2)
    ended = await go_on(store, run.id, agent, Talker(), parts(judge))
    assert (Verdict(ended.verdict), ended.turn_count, len(agent.requests)) == (Verdict.FAILED, 1, 1)


async def test_a_run_lasts_no_longer_than_it_is_played() -> None:
    began = time.monotonic()
    run = await play(scenario([{"type": "response-length"}], maxMessages=2))
    seconds = run_seconds(run)
    assert seconds is not None
    assert 0 <= seconds <= time.monotonic() - began


async def test_no_pause_counts_as_time_of_the_run() -> None:
    store, agent, shared = FakeStore(), ScriptedAgent(), engine()
    limit = {"type": "completed-within", "config": {"limitMs": 160_000}}
    run = queued(scenario([limit], maxMessages=8))
    await store.create([run])
    for messages in (3, 5):
        await _play_until(store, run.id, agent, shared, messages)
        row = await store.get(run.id)
        assert row is not None
        assert not row.HasField("complete_time"), "since it was resumed"
        row.complete_time.CopyFrom(row.update_time)
        if messages == 3:
            row.start_time.seconds -= 100  # the run took so long until then
        for stored in (row.start_time, row.update_time, row.complete_time):
            stored.seconds -= 3600  # the server was down for an hour
        store.rows[run.id] = row.SerializeToString()
    ended = await go_on(store, run.id, agent, Talker(), parts(shared))
    assert Verdict(ended.verdict) is Verdict.PASSED
    assert 100 <= ended.complete_time.seconds - ended.start_time.seconds < 160
    assert abs(ended.complete_time.seconds - time.time()) < 60
    assert ended.turns[-1].evaluation.results[0].value >= 100_000
    assert ended.output.average_latency.ToMilliseconds() == 5


async def test_a_run_that_is_cut_off_has_lasted_until_its_last_message() -> None:
    class SlowAgent(ScriptedAgent):
        async def invoke(self, request: AgentRequest) -> Invocation:
            await asyncio.sleep(0.05)
            return await super().invoke(request)

    store = FakeStore()
    run = queued(scenario([{"type": "response-length"}], maxMessages=6))
    await store.create([run])
    await _play_until(store, run.id, SlowAgent(), engine(), 3)
    row = await store.get(run.id)
    assert row is not None
    assert row.update_time.ToMilliseconds() - row.start_time.ToMilliseconds() >= 50


async def test_a_call_of_a_tool_is_not_asked_for_again_after_a_restart() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "find", "args": {}, "id": "1"}]}
    store, agent, shared = FakeStore(), ScriptedAgent([call], "found", pauses=True), engine()
    run = queued(scenario([{"type": "tool-call-count"}], maxMessages=3))
    await store.create([run])
    await _play_until(store, run.id, agent, shared, 2)
    ended = await go_on(store, run.id, agent, Talker(), parts(shared))
    assert [message.role for message in ended.messages] == ["user", "assistant", "assistant"]
    assert len({request.request_id for request in agent.requests}) == len(agent.requests) == 2


async def test_a_turn_is_stored_before_a_user_who_takes_time_speaks() -> None:
    store, agent, shared = FakeStore(), ScriptedAgent(), engine()
    run = queued(scenario([{"type": "response-length"}], maxMessages=4))
    await store.create([run])
    user = Talker(immediate=False, problem=_Killed(), fails_at=1)
    with pytest.raises(_Killed):
        await go_on(store, run.id, agent, user, parts(shared))
    assert len((await whole(store, run.id)).turns) == 1


async def test_a_scenario_that_became_invalid_is_an_error_and_is_not_waited_for() -> None:
    store, agent, shared = FakeStore(), ScriptedAgent(), engine()
    run = queued(scenario([{"type": "response-length"}], maxMessages=6))
    await store.create([run])
    await _play_until(store, run.id, agent, shared, 3)
    row = await store.get(run.id)
    assert row is not None
    row.scenario.evaluators[0].config["unit"] = "miles"
    events = await store.events(run.id)
    loop = RunLoop(row, events, parts(shared), connector=agent, user=Talker(), save=store.save)
    await loop.drive(wait_for_types=True)
    ended = await whole(store, run.id)
    assert (ended.status, Verdict(ended.verdict)) == (RUN_STATUS_ERROR, Verdict.ERROR)
    assert ended.error.code == "INVALID_SCENARIO"
    assert "evaluators[0].config.unit: " in ended.error.message
