"""Stored events in the shapes that watchers and readers get."""

from evald.v1.context_pb2 import Invocation
from evald.v1.run_service_pb2 import RUN_STATUS_RUNNING
from evald_server.runs.turn_events import watch_responses, whole_run

from .fake_store import FakeStore
from .scripted import ScriptedAgent, Talker, engine, go_on, parts, play, queued, scenario

SPECS = [{"type": "scripted", "config": {"do": "pass"}}, {"type": "response-length"}]


async def _played() -> tuple[FakeStore, str]:
    store = FakeStore()
    run = queued(scenario(SPECS, maxMessages=4))
    await store.create([run])
    await go_on(store, run.id, ScriptedAgent(), Talker(), parts(engine()))
    return store, run.id


async def test_every_number_is_given_once_in_order() -> None:
    store, run_id = await _played()
    run = await store.get(run_id)
    assert run is not None
    seen = [one for event in await store.events(run_id) for one in watch_responses(event, run)]
    assert [one.sequence for one in seen] == list(range(1, run.last_sequence + 1))
    kinds = [one.WhichOneof("event") for one in seen]
    turn = ["message", "message", "result", "result", "turn"]
    assert kinds == ["status", "status", *turn, *turn, "end"]
    assert seen[-1].end == run
    turns = [one.turn for one in seen if one.HasField("turn")]
    assert not any(one.evaluation.results for one in turns)
    assert [one.is_final for one in turns] == [False, True]
    assert [one.message.invocation.latency.ToMilliseconds() for one in seen if one.HasField("message")] == [
        0,
        5,
    ] * 2


async def test_a_watcher_may_go_on_after_any_number() -> None:
    store, run_id = await _played()
    run = await store.get(run_id)
    assert run is not None
    for after in range(run.last_sequence + 1):
        events = await store.events(run_id, after)
        seen = [one.sequence for event in events for one in watch_responses(event, run, after)]
        assert seen == list(range(after + 1, run.last_sequence + 1))


async def test_a_run_that_goes_on_shows_its_last_turn() -> None:
    store, run_id = await _played()
    run = await store.get(run_id)
    assert run is not None
    run.status = RUN_STATUS_RUNNING
    run.output.ClearField("evaluator_results")
    whole = whole_run(run, (await store.events(run_id))[:5])
    assert len(whole.turns) == 1
    assert list(whole.output.evaluator_results) == list(whole.turns[0].evaluation.results)
    assert whole.output.metrics["response-length"] == len("an answer")
    assert not run.messages


async def test_what_calls_spent_adds_up_and_what_one_does_not_say_is_not_zero() -> None:
    call = Invocation()
    call.messages.add(role="assistant").tool_calls.add(id="1").function.name = "find"
    call.latency.FromMilliseconds(10)
    call.token_usage.input_tokens, call.token_usage.output_tokens = 100, 5
    call.cost.amount, call.cost.currency_code = 0.25, "USD"
    tool = Invocation()
    tool.CopyFrom(call)
    done = Invocation()
    done.CopyFrom(call)
    done.ClearField("messages")
    done.messages.add(role="assistant", text="done")
    done.ClearField("cost")
    run = await play(scenario(SPECS, maxMessages=4), ScriptedAgent(call, tool, done, pauses=True))
    turn = run.turns[0]
    assert turn.latency.ToMilliseconds() == 30
    assert (turn.token_usage.input_tokens, turn.token_usage.output_tokens) == (300, 15)
    assert not turn.token_usage.HasField("total_tokens")
    assert not turn.HasField("cost")
    assert run.cost.amount == 0.5
    assert run.token_usage.input_tokens == 300


async def test_the_average_latency_is_that_of_the_turns_that_have_one() -> None:
    silent = Invocation()
    silent.messages.add(role="assistant", text="fine")
    timed = Invocation()
    timed.CopyFrom(silent)
    timed.latency.FromMilliseconds(100)
    run = await play(scenario(SPECS, maxMessages=4), ScriptedAgent(silent, timed))
    assert run.turn_count == 2
    assert run.output.average_latency.ToMilliseconds() == 100
    assert not (await play(scenario(SPECS, maxMessages=2), ScriptedAgent(silent))).output.HasField(
        "total_latency"
    )
