"""Many runs at once, and what happens to a run from outside."""

import asyncio
import time
from contextvars import Context, ContextVar
from typing import Any

import pytest

from evald.result import Verdict
from evald.v1 import run_service_pb2
from evald.v1.context_pb2 import Invocation, Persona
from evald.v1.run_service_pb2 import Run
from evald_server.auth.current_call import PRINCIPAL
from evald_server.auth.principal import Principal
from evald_server.connectors.connector import AgentRequest, ConnectorFailure
from evald_server.engine.registry import Origin
from evald_server.monitoring import Telemetry
from evald_server.rpc.admission import Admission
from evald_server.runs import runner as runner_module
from evald_server.runs.runner import FairQueue, Runner, RunStateProblem
from evald_server.store.database import MEMORY, Database, StoreProblem
from evald_server.store.runs import RunEventKind, RunStore

from ..engine.scripted import SCRIPTED
from ..monitoring.scrape import families
from ..rpc.live import until
from .fake_store import FULL, FakeStore
from .scripted import Answer, ScriptedAgent, engine, queued, scenario, whole

QUEUED, RUNNING = run_service_pb2.RUN_STATUS_QUEUED, run_service_pb2.RUN_STATUS_RUNNING
COMPLETED, ERROR = run_service_pb2.RUN_STATUS_COMPLETED, run_service_pb2.RUN_STATUS_ERROR
INTERRUPTED, CANCELLED = run_service_pb2.RUN_STATUS_INTERRUPTED, run_service_pb2.RUN_STATUS_CANCELLED

PASSES = [{"type": "scripted", "config": {"do": "pass"}}]
# It waits, so that the agent's answer is stored before the turn.
WAITS = [{"type": "waiting", "config": {"do": "pass"}}]

# Every commit of a run but its last, after that of its creation.
COMMITS = [
    *((PASSES, commits) for commits in range(1, 6)),
    *((WAITS, commits) for commits in range(1, 9)),
]


class Gate(ScriptedAgent):
    """An agent that answers only when it is let through; everything that was asked waits in `asked`."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__(*answers)
        self.asked: asyncio.Queue[AgentRequest] = asyncio.Queue()
        self._passes = asyncio.Semaphore(0)
        self.most = self.now = 0

    def open(self, count: int = 10_000) -> None:
        """Let so many answers through."""
        for _ in range(count):
            self._passes.release()

    async def invoke(self, request: AgentRequest) -> Invocation:
        """When let through."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.asked.put_nowait(request)
        try:
            await self._passes.acquire()
        finally:
            self.now -= 1
        return await super().invoke(request)


class House:
    """A runner over a store that stays when the runner goes."""

    def __init__(self, agent: ScriptedAgent, store: FakeStore | RunStore | None = None, **more: Any) -> None:
        self.agent = agent
        self.store = store or FakeStore()
        self.telemetry = Telemetry()
        self.engine = engine()
        self.runner = Runner(
            self.store,
            self,
            self.engine.models,  # type: ignore[attr-defined]
            self.engine,
            Admission(256, 256, 1.0),
            self.telemetry,
            **more,
        )

    def build(self, pb: Any) -> ScriptedAgent:
        """The one agent; a connector of type "broken" cannot be built."""
        if pb.type == "broken":
            raise ConnectorFailure("CONNECTOR_CONFIG", "config.path: wrong")
        return self.agent

    async def submit(self, count: int = 1, **fields: Any) -> list[str]:
        """Store and queue runs with a script of three lines."""
        made = scenario(fields.pop("evaluators", PASSES), maxMessages=20)
        runs = [queued(made, Persona(script=["one", "two", "three"]), **fields) for _ in range(count)]
        await self.store.create(runs)
        self.runner.submit(runs)
        return [run.id for run in runs]

    async def until(self, run_id: str, *statuses: int) -> Run:
        """The run, once it has one of these statuses."""
        with self.runner.watch(run_id) as changed:
            while True:
                changed.clear()
                run = await whole(self.store, run_id)
                if run.status in statuses:
                    return run
                await changed.wait()

    def counted(self, family: str) -> dict[str, float]:
        """Samples of a counter by their only label."""
        return {
            "".join(sample.labels.values()): sample.value
            for found in families(self.telemetry)
            if found.name == family
            for sample in found.samples
            if sample.value
        }


def numbers(run_id: str, store: FakeStore) -> list[int]:
    return [event.sequence for event in store.log[run_id]]


async def test_runs_are_played_within_the_limit() -> None:
    house = House(Gate(), max_runs=4)
    ids = await house.submit(12)
    for _ in range(4):
        await house.agent.asked.get()
    gauges = {
        f.name: f.samples[0].value for f in families(house.telemetry) if f.name.startswith("evald_runs_")
    }
    assert gauges == {"evald_runs_running": 4, "evald_runs_queued": 8}
    house.agent.open()
    for run_id in ids:
        run = await house.until(run_id, COMPLETED, ERROR)
        assert (Verdict(run.verdict), run.turn_count) == (Verdict.PASSED, 3)
        assert run.result.reason == "The conversation ended after 6 messages. All evaluators passed."
    assert house.agent.most == 4
    assert house.agent.closed
    assert house.counted("evald_runs") == {"passed": 12}
    assert house.counted("evald_run_turns") == {"": 36}
    assert house.counted("evald_evaluations") == {"Runpassed": 36}


async def test_a_run_gives_way_before_it_calls_its_agent_and_before_it_evaluates() -> None:
    times = 0

    async def yield_to_calls() -> None:
        nonlocal times
        times += 1

    house = House(ScriptedAgent(), yield_to_calls=yield_to_calls)
    (run_id,) = await house.submit()
    assert (await house.until(run_id, COMPLETED, ERROR)).turn_count == 3
    assert times == 6


WHO: ContextVar[str] = ContextVar("who", default="nobody")


class Witness(ScriptedAgent):
    """An agent that notes in whose context it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[str]] = {}

    async def invoke(self, request: AgentRequest) -> Invocation:
        """Whoever asks."""
        self.seen.setdefault(request.thread_id, set()).add(WHO.get())
        return await super().invoke(request)


async def test_a_run_is_played_in_the_context_of_who_started_it() -> None:
    agent = Witness()
    house = House(agent, max_runs=1)
    ids: dict[str, str] = {}
    for name in ("one", "two", "three"):

        async def submit(name: str = name) -> None:
            WHO.set(name)
            [ids[name]] = await house.submit()

        await asyncio.create_task(submit())
    for run_id in ids.values():
        await house.until(run_id, COMPLETED)
    assert list(agent.seen.values()) == [{"one"}, {"two"}, {"three"}]


def test_principals_take_turns_and_so_do_their_groups() -> None:
    queue = FairQueue()

    def put(who: str, group: str, *runs: str) -> None:
        context = Context()
        if who:
            context.run(PRINCIPAL.set, Principal(who, frozenset()))
        for run_id in runs:
            context.run(queue.put, group, run_id)

    put("a", "big", "a0", "a1", "a2", "a3")
    put("a", "small", "a4")
    put("b", "big", "b0", "b0")
    put("", "big", "local")
    put("full", "big", "never")
    queue.remove("a1")
    queue.remove("nobody")
    assert len(queue) == 7
    taken = [run.run_id for _ in range(7) if (run := queue.take(lambda principal: principal != "full"))]
    assert taken == ["a0", "b0", "local", "a4", "a2", "a3"]
    assert len(queue) == 1
    queue.remove("never")
    assert queue.take(lambda _: True) is None


async def test_a_run_that_is_cancelled_ends_there() -> None:
    house = House(Gate(), max_runs=1)
    first, second = await house.submit(2)
    house.agent.open(1)
    await house.agent.asked.get()
    await house.agent.asked.get()  # the first one's second turn
    for run_id, turns in ((first, 1), (second, 0)):
        run = await house.runner.cancel(run_id)
        assert run is not None
        assert (run.status, run.verdict, run.turn_count) == (CANCELLED, 0, turns)
        assert house.store.log[run_id][-1].kind is RunEventKind.END
        with pytest.raises(RunStateProblem, match="cancelled"):
            await house.runner.cancel(run_id)
    assert house.agent.closed
    assert house.agent.now == 0
    assert await house.runner.cancel("nobody") is None
    assert house.counted("evald_runs") == {"cancelled": 2}


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("end", ["completed", "cancelled", "interrupted"])
async def test_a_clock_that_is_set_changes_no_duration(
    monkeypatch: pytest.MonkeyPatch, hours: int, end: str
) -> None:
    house = House(Gate())
    (run_id,) = await house.submit()
    house.agent.open(1)
    for _ in range(2):
        await house.agent.asked.get()
    time_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + hours * 3_600_000_000_000)
    if end == "cancelled":
        await house.runner.cancel(run_id)
    elif end == "interrupted":
        await house.runner.drain(0)
    house.agent.open()
    run = await house.until(run_id, COMPLETED, CANCELLED, INTERRUPTED)
    seconds = run.complete_time.seconds - run.start_time.seconds
    assert seconds >= 0
    if not (end == "cancelled" and hours > 0):  # its time is the clock's
        assert seconds < 1800


async def test_a_run_in_error_is_retried_from_the_start() -> None:
    agent = ScriptedAgent("fine", ConnectorFailure("CONNECTOR_TIMEOUT", "no answer within 30 s"), "fine")
    house = House(agent)
    (run_id,) = await house.submit()
    run = await house.until(run_id, ERROR)
    assert (run.error.code, run.error.message) == ("CONNECTOR_TIMEOUT", "no answer within 30 s")
    assert Verdict(run.verdict) is Verdict.ERROR
    last, thread = run.last_sequence, run.thread_id
    with pytest.raises(RunStateProblem, match="error"):
        await house.runner.resume(run_id)
    again = await house.runner.retry(run_id)
    assert again is not None
    assert (again.status, again.attempt, again.turn_count, again.last_sequence) == (QUEUED, 2, 0, last + 1)
    run = await house.until(run_id, COMPLETED)
    assert (Verdict(run.verdict), run.turn_count, run.attempt) == (Verdict.PASSED, 3, 2)
    assert not run.HasField("error")
    assert run.thread_id != thread
    assert len(run.messages) == 6
    assert numbers(run_id, house.store)[0] == last + 1
    with pytest.raises(RunStateProblem, match="completed"):
        await house.runner.retry(run_id)


async def test_a_run_that_is_queued_twice_plays_once_and_keeps_one_slot() -> None:
    """A repeated StartRuns returns the same runs, and they are queued again."""
    house = House(Gate(), max_runs=2)
    (first,) = await house.submit()
    again = await whole(house.store, first)
    await house.agent.asked.get()
    again.status = QUEUED
    house.runner.submit([again])
    second, third = await house.submit(2)
    await house.agent.asked.get()
    house.runner.submit([again])  # no slot is free, so it waits until its task has ended
    house.agent.open()
    for run_id in (first, second, third):
        assert (await house.until(run_id, COMPLETED)).turn_count == 3
    await until(lambda: not house.runner._tasks)
    assert len(house.agent.requests) == 9
    assert house.counted("evald_runs") == {"passed": 3}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"execution_id": 1, "connector_id": "one"}, {"execution_id": 2, "connector_id": "one"}),
        ({"experiment_id": "a", "connector_id": "one"}, {"experiment_id": "b", "connector_id": "one"}),
        ({"connector_id": "one"}, {"connector_id": "two"}),
    ],
    ids=["execution", "experiment", "connector"],
)
async def test_groups_of_runs_take_turns(first: dict[str, Any], second: dict[str, Any]) -> None:
    house = House(Gate(), max_runs=1)
    runs = [*await house.submit(3, **first), *await house.submit(1, **second)]
    house.agent.open()
    for run_id in runs:
        await house.until(run_id, COMPLETED)
    begun = [house.store.rows[run_id] for run_id in runs]
    times = [Run.FromString(row).start_time.ToNanoseconds() for row in begun]
    assert sorted(range(4), key=times.__getitem__) == [0, 1, 3, 2]


async def test_a_run_that_has_ended_keeps_its_verdict_when_its_connector_breaks() -> None:
    class Breaks(ScriptedAgent):
        async def aclose(self) -> None:
            await super().aclose()
            raise KeyError("bug")

    house = House(Breaks())
    (run_id,) = await house.submit()
    await until(lambda: house.agent.closed and not house.runner._tasks)
    run = await whole(house.store, run_id)
    assert (run.status, Verdict(run.verdict)) == (COMPLETED, Verdict.PASSED)
    assert not run.HasField("error")


async def test_a_connector_that_cannot_be_built_is_an_error() -> None:
    house = House(ScriptedAgent())
    run = queued(scenario(PASSES), connector_id="c")
    run.connector.type = "broken"
    await house.store.create([run])
    house.runner.submit([run])
    ended = await house.until(run.id, ERROR)
    assert ended.error.code == "CONNECTOR_CONFIG"
    assert Verdict(ended.verdict) is Verdict.ERROR


async def test_a_bug_ends_its_run_alone_and_tells_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    house = House(ScriptedAgent(KeyError("secret-7f3a at /etc/passwd"), "fine"), max_runs=1)
    first, second = await house.submit(2)
    run = await house.until(first, ERROR)
    assert run.error.code == "INTERNAL"
    assert Verdict(run.verdict) is Verdict.ERROR
    assert "secret" not in str(run.error)
    assert run.error.message.split("incident ")[1][:12] in caplog.text
    assert (await house.until(second, COMPLETED)).verdict == Verdict.PASSED


async def test_draining_interrupts_and_the_next_server_goes_on() -> None:
    first = House(Gate(), max_runs=2)
    ids = await first.submit(3)
    first.agent.open(1)
    for _ in range(3):
        await first.agent.asked.get()
    await first.runner.drain(0)
    runs = [await whole(first.store, run_id) for run_id in ids]
    assert sorted(run.status for run in runs) == [QUEUED, INTERRUPTED, INTERRUPTED]
    assert first.counted("evald_runs") == {"interrupted": 2}
    before = {run.id: [turn.SerializeToString() for turn in run.turns] for run in runs}

    second = House(ScriptedAgent(), first.store)
    await second.runner.start()
    second.runner.begin()
    for run in runs:
        if run.status == INTERRUPTED:
            assert await second.runner.resume(run.id) is not None
        ended = await second.until(run.id, COMPLETED)
        assert (Verdict(ended.verdict), ended.turn_count) == (Verdict.PASSED, 3)
        assert [turn.SerializeToString() for turn in ended.turns][: len(before[run.id])] == before[run.id]
        assert [m.text for m in ended.messages if m.role == "user"] == ["one", "two", "three"]
    # The queued run was not begun by the first server while that was draining.
    assert first.counted("evald_runs") == {"interrupted": 2}


async def test_draining_lets_a_step_end() -> None:
    house = House(Gate())
    (run_id,) = await house.submit()
    await house.agent.asked.get()
    draining = asyncio.create_task(house.runner.drain(30))
    await asyncio.sleep(0.05)
    house.agent.open(1)
    await draining
    run = await whole(house.store, run_id)
    assert (run.status, run.turn_count) == (INTERRUPTED, 1)
    assert [message.role for message in run.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(("evaluators", "commits"), [one for one in COMMITS if one[1] > 1])
async def test_a_run_goes_on_wherever_the_server_was_killed(evaluators: Any, commits: int) -> None:
    """Kill: nothing is written any more. What was committed is never asked for or evaluated again."""
    store = FakeStore()
    first = House(ScriptedAgent("a", "b", "c"), store, store_seconds=0)
    alive = True

    def die() -> None:
        nonlocal alive
        alive = alive and store.commits < commits
        if not alive:
            raise FULL

    store.before_write = die
    (run_id,) = await first.submit(evaluators=evaluators)
    await until(lambda: not alive)
    await first.runner.drain(0)
    killed = await whole(store, run_id)
    events = list(store.log[run_id])
    store.before_write = lambda: None
    assert killed.status in (RUNNING, QUEUED)

    second = House(ScriptedAgent("a", "b", "c"), store)
    await second.runner.start()
    second.runner.begin()
    if killed.status == RUNNING:
        assert (await whole(store, run_id)).status == INTERRUPTED
        assert await second.runner.resume(run_id) is not None
    run = await second.until(run_id, COMPLETED)
    assert (Verdict(run.verdict), run.turn_count, len(run.messages)) == (Verdict.PASSED, 3, 6)
    assert store.log[run_id][: len(events)] == events
    answered = sum(message.role == "assistant" for message in killed.messages)
    assert len(second.agent.requests) == 3 - answered
    assert [turn.turn for turn in run.turns] == [1, 2, 3]


async def test_nothing_is_played_between_start_and_begin() -> None:
    house = House(ScriptedAgent())
    await house.runner.start()
    (run_id,) = await house.submit()
    gauges = {f.name: f.samples[0].value for f in families(house.telemetry) if f.name == "evald_runs_running"}
    assert gauges == {"evald_runs_running": 0}
    house.runner.begin()
    await house.until(run_id, COMPLETED)


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
async def test_a_run_waits_for_evaluators_that_come_back_after_a_restart(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_AWAY_SECONDS", 0.01)
    store = FakeStore()
    later = SCRIPTED._replace(type="later")
    spec = [{"type": "later", "config": {"do": "pass"}}]
    (run_id,) = await House(ScriptedAgent(), store, max_runs=0).submit(evaluators=spec)
    if begun:
        run = await store.get(run_id)
        assert run is not None
        run.start_time.GetCurrentTime()
        await store.save(run)
    house = House(ScriptedAgent(), store)
    looked = asyncio.Queue[None]()
    get = store.get

    async def counted(wanted: str) -> Run | None:
        looked.put_nowait(None)
        return await get(wanted)

    store.get = counted  # type: ignore[method-assign]
    await house.runner.start()
    house.runner.begin()
    for _ in range(3):
        await looked.get()
    found = await get(run_id)
    assert found is not None
    assert found.status == QUEUED
    house.engine.registry.register(later, Origin.PLUGIN)  # type: ignore[attr-defined]
    ended = await house.until(run_id, COMPLETED, ERROR, INTERRUPTED)
    assert (ended.status, Verdict(ended.verdict)) == (COMPLETED, Verdict.PASSED)


@pytest.mark.parametrize(("begun", "status"), [(False, ERROR), (True, INTERRUPTED)], ids=["new", "begun"])
async def test_a_run_does_not_wait_for_ever_for_evaluators(
    begun: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_RETURN_SECONDS", 0.0)
    house = House(ScriptedAgent())
    await house.runner.start()
    (run_id,) = await house.submit(evaluators=[{"type": "later", "config": {}}])
    if begun:
        run = await house.store.get(run_id)
        assert run is not None
        run.start_time.GetCurrentTime()
        await house.store.save(run)
    house.runner.begin()
    ended = await house.until(run_id, status)
    assert ended.error.code == "INVALID_SCENARIO"
    assert '"later"' in ended.error.message


async def test_a_resumed_turn_keeps_what_its_answer_cost() -> None:
    store = FakeStore()
    first = House(ScriptedAgent(), store, store_seconds=0)
    store.before_write = lambda: _fail_from(store, 4)
    budget = {"type": "latency-budget", "config": {"maxMs": 10}}
    (run_id,) = await first.submit(evaluators=[budget, *WAITS])
    await until(lambda: store.commits >= 4)
    await first.runner.drain(0)
    stored = await whole(store, run_id)
    assert (len(stored.messages), stored.turn_count) == (2, 0)
    store.before_write = lambda: None
    second = House(ScriptedAgent(), store)
    await second.runner.start()
    second.runner.begin()
    await second.runner.resume(run_id)
    run = await second.until(run_id, COMPLETED)
    assert run.turns[0].evaluation.results[0].value == 5
    assert run.output.total_latency.ToMilliseconds() == 15
    assert run.output.average_latency.ToMilliseconds() == 5


def _fail_from(store: FakeStore, commits: int) -> None:
    if store.commits >= commits:
        raise FULL


@pytest.mark.parametrize(("evaluators", "commits"), COMMITS)
async def test_a_store_that_comes_back_is_waited_for(evaluators: Any, commits: int) -> None:
    store = FakeStore()
    failures = iter([FULL, StoreProblem("STORAGE_UNAVAILABLE", "locked")])

    def fail_twice() -> None:
        if store.commits == commits:
            for problem in failures:
                raise problem

    store.before_write = fail_twice
    house = House(ScriptedAgent(), store)
    (run_id,) = await house.submit(evaluators=evaluators)
    run = await house.until(run_id, COMPLETED)
    assert (Verdict(run.verdict), run.turn_count) == (Verdict.PASSED, 3)
    assert len(house.agent.requests) == 3
    assert next(failures, None) is None


async def test_a_commit_whose_answer_was_lost_is_not_repeated() -> None:
    store = FakeStore()
    save, lost = store.save, []

    async def lose(run: Run, events: Any = ()) -> None:
        await save(run, events)
        if len(lost) < 3:
            lost.append(run.last_sequence)
            raise StoreProblem("STORAGE_UNAVAILABLE", "the connection was lost")

    store.save = lose  # type: ignore[method-assign]
    house = House(ScriptedAgent(), store)
    (run_id,) = await house.submit()
    run = await house.until(run_id, COMPLETED)
    assert len(lost) == 3
    assert len(run.messages) == 6
    assert numbers(run_id, store) == sorted(set(numbers(run_id, store)))


async def test_nothing_is_acknowledged_that_the_store_does_not_take() -> None:
    store = FakeStore()
    house = House(Gate(), store, store_seconds=0)
    (run_id,) = await house.submit()
    await house.agent.asked.get()
    stored = list(store.log[run_id])
    store.before_write = lambda: _fail_from(store, 0)
    house.agent.open(1)
    await until(lambda: not house.agent.now)
    with pytest.raises(StoreProblem):
        await house.runner.cancel(run_id)
    assert store.log[run_id] == stored
    store.before_write = lambda: None
    cancelled = await house.runner.cancel(run_id)
    assert cancelled is not None
    assert cancelled.status == CANCELLED
    assert store.log[run_id][:-1] == stored


async def test_an_interrupted_run_says_so_when_the_store_is_back() -> None:
    store = FakeStore()
    house = House(Gate(), store, store_seconds=0)
    (run_id,) = await house.submit()
    await house.agent.asked.get()
    store.before_write = lambda: _fail_from(store, 0)
    house.agent.open()
    for _ in range(100):
        await asyncio.sleep(0)
    store.before_write = lambda: None
    run = await house.until(run_id, INTERRUPTED)
    assert await house.runner.resume(run_id) is not None
    run = await house.until(run_id, COMPLETED)
    assert (Verdict(run.verdict), run.turn_count) == (Verdict.PASSED, 3)


async def test_a_change_is_made_to_its_end_when_its_caller_goes_away() -> None:
    agent = ScriptedAgent(ConnectorFailure("CONNECTOR_TIMEOUT", "late"), "fine")
    house = House(agent)
    (run_id,) = await house.submit()
    await house.until(run_id, ERROR)
    calling = asyncio.create_task(house.runner.retry(run_id))
    await asyncio.sleep(0)
    calling.cancel()
    assert (await house.until(run_id, COMPLETED)).attempt == 2


async def test_a_queued_run_waits_however_long_the_store_is_away() -> None:
    house = House(ScriptedAgent(), store_seconds=0)
    get, failures = house.store.get, [FULL]

    async def away(run_id: str) -> Run | None:
        if failures:
            raise failures.pop()
        return await get(run_id)

    house.store.get = away  # type: ignore[method-assign]
    (run_id,) = await house.submit()
    await until(lambda: not failures)
    assert (await house.until(run_id, COMPLETED)).turn_count == 3


async def test_a_bug_while_the_store_is_away_leaves_an_interrupted_run() -> None:
    store = FakeStore()
    house = House(Gate(KeyError("bug"), "fine"), store, store_seconds=0)
    (run_id,) = await house.submit()
    await house.agent.asked.get()
    failures = iter([FULL])

    def fail_once() -> None:
        for problem in failures:
            raise problem

    store.before_write = fail_once
    house.agent.open()
    await house.until(run_id, INTERRUPTED)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_that_could_not_be_cancelled_is_not_left_in_limbo(begun: bool) -> None:
    store = FakeStore()
    house = House(Gate(), store, max_runs=1)
    runs = await house.submit(2)
    await house.agent.asked.get()
    store.before_write = lambda: _fail_from(store, 0)
    with pytest.raises(StoreProblem):
        await house.runner.cancel(runs[not begun])
    store.before_write = lambda: None
    house.agent.open()
    await house.until(runs[not begun], INTERRUPTED if begun else COMPLETED)


async def test_a_run_is_settled_once_however_often_it_was_changed_without_a_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(Gate(), max_runs=1)
    (run_id,) = await house.submit()
    await house.agent.asked.get()
    await house.runner.drain(0)
    assert (await whole(house.store, run_id)).status == INTERRUPTED

    house = House(Gate(), house.store, max_runs=1)
    get, failures = house.store.get, [FULL, FULL]

    async def away(run_id: str) -> Run | None:
        if failures:
            raise failures.pop()
        return await get(run_id)

    house.store.get = away  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreProblem):
            await house.runner.resume(run_id)
    assert await house.runner.resume(run_id) is not None
    PRINCIPAL.set(Principal("other", frozenset()))  # who has a share of the slots to himself
    others = await house.submit(2)
    await house.agent.asked.get()
    for _ in range(100):
        await asyncio.sleep(0)
    house.agent.open()
    for one in (run_id, *others):
        await house.until(one, COMPLETED)
    assert house.agent.most == 1
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_run_that_ends_while_it_is_cancelled_wakes_its_watchers_and_is_counted() -> None:
    store = FakeStore()
    house = House(ScriptedAgent(), store)
    save, saving, go_on = store.save, asyncio.Event(), asyncio.Event()

    async def slow(run: Run, events: Any = ()) -> None:
        if run.status == COMPLETED:
            saving.set()
            await go_on.wait()
        await save(run, events)

    store.save = slow  # type: ignore[method-assign]
    (run_id,) = await house.submit()
    await saving.wait()
    with house.runner.watch(run_id) as changed:
        cancelling = asyncio.create_task(house.runner.cancel(run_id))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(RunStateProblem, match="completed"):
            await cancelling
        assert changed.is_set()
    assert not house.runner._watchers
    assert house.counted("evald_runs") == {"passed": 1}


async def test_nothing_is_played_before_the_server_is_ready() -> None:
    house = House(Gate())
    run = queued(scenario(PASSES, maxMessages=4))
    await house.store.create([run])
    await house.runner.start()
    await asyncio.sleep(0)
    gauges = {
        f.name: f.samples[0].value for f in families(house.telemetry) if f.name.startswith("evald_runs_")
    }
    assert gauges == {"evald_runs_running": 0, "evald_runs_queued": 1}
    house.runner.begin()
    await house.agent.asked.get()
    await house.runner.drain(0)


async def test_a_run_keeps_its_conversation_until_its_evaluators_are_there() -> None:
    store = FakeStore()
    house = House(ScriptedAgent(), store)
    run = queued(scenario([{"type": "from-remote"}], maxMessages=4), Persona(script=["one"]))
    run.start_time.GetCurrentTime()
    await store.create([run])
    house.runner.submit([run])
    held = await house.until(run.id, INTERRUPTED, ERROR)
    assert held.status == INTERRUPTED
    assert "from-remote" in held.error.message

    row = await store.get(run.id)
    assert row is not None
    row.scenario.evaluators[0].type = "response-length"
    store.rows[run.id] = row.SerializeToString()
    await house.runner.resume(run.id)
    assert not (await house.until(run.id, COMPLETED)).HasField("error")


async def test_a_run_that_another_server_has_taken_over_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = Database(MEMORY)
    await database.start()
    try:
        store = RunStore(database)
        first = House(Gate(), store)
        (run_id,) = await first.submit()
        await first.agent.asked.get()
        second = House(ScriptedAgent(), store)
        await second.runner.start()
        second.runner.begin()
        assert await second.runner.resume(run_id) is not None
        ended = await second.until(run_id, COMPLETED)
        first.agent.open()
        await first.runner.drain(30)
        assert await whole(store, run_id) == ended
        assert "exception" not in caplog.text
    finally:
        await database.close()
