"""Runs: a row and its events in one commit, found by every filter, kept as long as retention says."""

import asyncio
import operator
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from evald.v1 import context_pb2, evaluator_pb2, result_pb2, run_service_pb2
from evald_server.runs.turn_events import status_event
from evald_server.store.database import Database
from evald_server.store.resources import IdTaken
from evald_server.store.rollups import DAY, HOUR, ROUNDING, Rollup, rounded
from evald_server.store.runs import RunActive, RunEvent, RunEventKind, RunFilter, RunNotFound, RunStore

Run = run_service_pb2.Run

QUEUED = run_service_pb2.RUN_STATUS_QUEUED
RUNNING = run_service_pb2.RUN_STATUS_RUNNING
COMPLETED = run_service_pb2.RUN_STATUS_COMPLETED
BROKE = run_service_pb2.RUN_STATUS_ERROR
INTERRUPTED = run_service_pb2.RUN_STATUS_INTERRUPTED

PASSED, FAILED = result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED
ERROR, SKIPPED = result_pb2.VERDICT_ERROR, result_pb2.VERDICT_SKIPPED

METRIC = evaluator_pb2.EVALUATOR_KIND_METRIC
ASSERTION = evaluator_pb2.EVALUATOR_KIND_ASSERTION

# Unix microseconds of a full hour.
NOON = 1_700_000_000_000_000 // HOUR * HOUR


@pytest.fixture
def store(database: Database) -> RunStore:
    return RunStore(database)


def a_run(name: str, at: int = NOON, **fields: object) -> Run:
    run = Run(id=name, **{"scenario_id": "scenario", "status": QUEUED, "attempt": 1} | fields)
    run.create_time.FromMicroseconds(at)
    return run


def message(sequence: int) -> RunEvent:
    return RunEvent(sequence, RunEventKind.MESSAGE, f"message {sequence}".encode())


def turn(sequence: int, *results: result_pb2.EvaluationResult) -> RunEvent:
    body = run_service_pb2.RunTurn(turn=1)
    body.evaluation.results.extend(results)
    return RunEvent(sequence, RunEventKind.TURN, body.SerializeToString())


def result(name: str, verdict: int, **fields: object) -> result_pb2.EvaluationResult:
    return result_pb2.EvaluationResult(
        **{"name": name, "type": f"type-of-{name}", "kind": ASSERTION, "verdict": verdict} | fields
    )


async def ids(store: RunStore, **wanted: object) -> list[str]:
    return [run.id for _, run in await store.list(RunFilter(**wanted))]  # type: ignore[arg-type]


async def test_a_new_run_has_its_snapshots_and_a_status_event(store: RunStore) -> None:
    run = a_run("one", persona_id="p")
    run.scenario.CopyFrom(context_pb2.Scenario(name="Booking", instructions="Be terse.", persona_ids=["p"]))
    run.persona.CopyFrom(context_pb2.Persona(name="Ann", script=["hello", "bye"]))
    run.connector.name, run.connector.type = "Agent", "http"
    run.connector.headers["authorization"] = "Bearer ${AGENT_KEY}"
    [stored] = await store.create([run])
    assert stored.last_sequence == 1
    got = await store.get("one")
    assert got == stored
    assert got.scenario == run.scenario
    assert got.persona == run.persona
    assert got.connector == run.connector
    [event] = await store.events("one")
    assert (event.sequence, event.kind) == (1, RunEventKind.STATUS)
    assert run_service_pb2.RunStatusChange.FromString(event.body).status == QUEUED
    [(_, listed)] = await store.list(RunFilter())
    assert listed.scenario == context_pb2.Scenario(name="Booking")
    assert listed.persona == context_pb2.Persona(name="Ann")
    assert (listed.connector.name, listed.connector.type, len(listed.connector.headers)) == (
        "Agent",
        "http",
        0,
    )
    assert await store.get("none") is None
    assert await store.events("none") == []


async def test_runs_are_created_all_or_none_and_keep_their_order(store: RunStore) -> None:
    many = [a_run(str(number)) for number in range(50)]
    assert [run.id for run in await store.create(many)] == [run.id for run in many]
    with pytest.raises(IdTaken, match="7"):
        await store.create([a_run("7")])
    with pytest.raises(IdTaken):
        await store.create([a_run("new"), a_run("8")])
    assert await store.get("new") is None
    assert await ids(store) == [run.id for run in reversed(many)]
    assert await store.create([]) == []


async def test_a_request_id_makes_creation_safe_to_repeat(store: RunStore) -> None:
    outcomes = await asyncio.gather(
        *(store.create([a_run(f"{number}-a"), a_run(f"{number}-b")], "request") for number in range(5))
    )
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert len(await ids(store)) == 2
    assert len(await store.create([a_run("other")], "other request")) == 1
    assert len(await store.create([a_run("without")])) == 1


async def test_a_save_is_one_commit_that_can_be_repeated(store: RunStore) -> None:
    [run] = await store.create([a_run("one")])
    run.status, run.last_sequence = RUNNING, 4
    run.turn_count = 1
    events = [message(2), turn(4, result("a", FAILED))]
    for _ in range(2):
        await store.save(run, events)
    assert await store.get("one") == run
    assert (await store.events("one"))[1:] == events
    # A place in the middle of a turn's numbers, whose results are 3 and the turn 4.
    assert await store.events("one", after=3) == [events[1]]
    assert await store.events("one", after=4) == []
    assert await store.events("one", limit=1, after=1) == [events[0]]
    [counted] = await store.rollups(0, 2**60)
    assert counted.failed == 1
    with pytest.raises(RunNotFound):
        await store.save(a_run("deleted"), [message(2)])


async def test_of_two_servers_that_go_on_with_a_run_the_later_one_is_refused(store: RunStore) -> None:
    [mine] = await store.create([a_run("one", status=RUNNING)])
    theirs = Run.FromString(mine.SerializeToString())
    await store.save(theirs, [status_event(theirs, INTERRUPTED)])
    mine.last_sequence = 2
    with pytest.raises(RunNotFound):
        await store.save(mine, [message(2)])
    assert await store.get("one") == theirs
    assert [event.kind for event in await store.events("one")] == [RunEventKind.STATUS] * 2


async def test_messages_and_turns_of_a_run_are_not_stored_twice(store: RunStore) -> None:
    run = a_run("one")
    run.messages.add(text="x" * 10_000)
    run.turns.add().turn = 1
    [stored] = await store.create([run])
    assert not stored.messages
    run.last_sequence = stored.last_sequence
    await store.save(run)
    got = await store.get("one")
    assert got is not None
    assert got.ByteSize() < 1000


async def test_a_restart_drops_what_was_and_counts_on(store: RunStore) -> None:
    run = a_run("one")
    run.scenario.instructions = "kept"
    [run] = await store.create([run])
    run.status, run.last_sequence = BROKE, 4
    await store.save(run, [message(2), turn(4, result("a", ERROR))])
    assert await ids(store, failed_evaluator="a") == ["one"]
    run.status, run.attempt, run.last_sequence = QUEUED, 2, 5
    await store.restart(run, [RunEvent(5, RunEventKind.STATUS, b"")])
    assert [event.sequence for event in await store.events("one")] == [5]
    assert await ids(store, failed_evaluator="a") == []
    assert await store.get("one") == run
    assert run.scenario.instructions == "kept"
    with pytest.raises(RunNotFound):
        await store.restart(a_run("none"))


async def test_every_filter_alone_and_together(store: RunStore) -> None:
    fields = {"scenario_id": "s", "persona_id": "p", "connector_id": "c", "experiment_id": "e"}
    await store.create(
        [
            a_run("all", **fields, execution_id=3),
            *(a_run(name, **fields | {name: "other"}, execution_id=4) for name in fields),
        ]
    )
    for name, value in fields.items():
        assert set(await ids(store, **{name: value})) == {"all", *(fields.keys() - {name})}
        assert await ids(store, **{name: "other"}) == [name]
    assert await ids(store, **fields) == ["connector_id", "all"][1:]
    assert await ids(store, execution_id=3) == ["all"]
    assert await ids(store, scenario_id="none") == []


async def test_a_run_is_found_by_what_it_is_now(store: RunStore) -> None:
    [run] = await store.create([a_run("one")])
    assert await ids(store, status=QUEUED) == ["one"]
    run.status, run.verdict = COMPLETED, FAILED
    await store.save(run)
    assert await ids(store, status=QUEUED) == []
    assert await ids(store, status=COMPLETED, verdict=FAILED) == ["one"]


async def test_who_failed_or_broke_is_found_by_name_and_by_type(store: RunStore) -> None:
    for number, results in enumerate(
        [
            [result("good", PASSED), result("bad", FAILED)],
            [result("bad", FAILED), result("broken", ERROR), result("broken", ERROR)],
            # A later turn decides, and nothing was found.
            [result("waits", FAILED, pending=True), result("skipped", SKIPPED)],
        ]
    ):
        [run] = await store.create([a_run(str(number), NOON + number)])
        run.last_sequence = 9
        await store.save(run, [turn(5, *results), turn(9, *results)])
    assert await ids(store, failed_evaluator="bad") == ["1", "0"]
    assert await ids(store, failed_evaluator="type-of-broken") == ["1"]
    assert await ids(store, failed_evaluator="bad", since=NOON + 1) == ["1"]
    for name in ("good", "waits", "skipped", "x" * 10_000, "\0"):
        assert await ids(store, failed_evaluator=name) == []


async def test_an_evaluator_with_a_very_long_name_is_stored(store: RunStore) -> None:
    name = "".join(chr(1000 + number % 5000) for number in range(20_000))
    [run] = await store.create([a_run("one")])
    run.last_sequence = 3
    await store.save(run, [turn(3, result(name, FAILED))])
    assert await ids(store, failed_evaluator=name) == ["one"]
    assert (await store.events("one", after=1))[0].sequence == 3


async def test_times_bound_the_creation_exactly(store: RunStore) -> None:
    # All at once, twice: their numbers differ from their times.
    await store.create([a_run(f"a{number}") for number in range(10)])
    await store.create([a_run(f"b{number}") for number in range(10)])
    await store.create([a_run("before", NOON - 1), a_run("also before", NOON - 2)][:1])
    await store.create([a_run("after", NOON + 1)])
    assert await ids(store, until=NOON) == ["before"]
    assert await ids(store, since=NOON + 1) == ["after"]
    assert len(await ids(store, since=NOON, until=NOON + 1)) == 20


async def test_pages_are_complete_both_ways(store: RunStore) -> None:
    for number in range(25):
        await store.create([a_run(f"{number:02}", NOON + 1000 * number, status=number % 2 + 1)])
    for oldest_first in (False, True):
        for wanted in (RunFilter(), RunFilter(status=QUEUED)):
            seen: list[str] = []
            after = None
            while page := await store.list(wanted, after=after, limit=4, oldest_first=oldest_first):
                seen += [run.id for _, run in page]
                after = page[-1][0]
            step = 2 if wanted.status else 1
            assert seen == sorted((f"{number:02}" for number in range(0, 25, step)), reverse=not oldest_first)


@pytest.mark.thorough
async def test_a_thousand_imports_of_the_same_second_find_their_places(store: RunStore) -> None:
    await asyncio.gather(*(store.import_run(a_run(str(number)), []) for number in range(1000)))
    assert len(await store.list(RunFilter(since=NOON, until=NOON + 1), limit=2000)) == 1000


async def test_an_import_is_a_run_with_its_events_and_counts(store: RunStore) -> None:
    run = a_run("imported", NOON - 5 * HOUR, status=COMPLETED, verdict=FAILED, last_sequence=4)
    run.complete_time.FromMicroseconds(NOON - HOUR)
    events = [message(1), turn(3, result("a", FAILED)), RunEvent(4, RunEventKind.END, b"")]
    await store.import_run(run, events)
    assert await store.get("imported") == run
    assert await store.events("imported") == events
    assert await ids(store, failed_evaluator="a") == ["imported"]
    assert {(one.hour, one.scope, one.failed) for one in await store.rollups(0, NOON)} == {
        (NOON - HOUR, "run", 1),
        (NOON - HOUR, "assertion", 1),
    }
    with pytest.raises(IdTaken):
        await store.import_run(run, events)


async def test_rollups_count_verdicts_scores_and_values_by_the_hour(store: RunStore) -> None:
    [run] = await store.create([a_run("one")])
    run.update_time.FromMicroseconds(NOON + 1)
    run.status, run.last_sequence = RUNNING, 7
    results = [
        result("a", PASSED, score=1.0),
        result("a", FAILED, score=0.5),
        result("a", ERROR),
        result("waits", FAILED, pending=True),
        result("m", PASSED, kind=METRIC, value=12.5),
        result("m", PASSED, kind=METRIC, value=float("inf")),
        result("m", PASSED, kind=METRIC, value=0.0),
    ]
    results[-1].metadata["available"] = False
    await store.save(run, [turn(7, *results)])
    run.update_time.FromMicroseconds(NOON + HOUR)
    run.status, run.verdict, run.result.score = COMPLETED, PASSED, 0.75
    for _ in range(2):  # the second one has ended already
        await store.save(run)
    assert await store.rollups(NOON, NOON + 2 * HOUR) == [
        Rollup(NOON, "assertion", "a", 1, 1, 1, 0, 2, 1.5),
        Rollup(NOON, "metric", "m", 3, 0, 0, 0, 1, 12.5),
        Rollup(NOON + HOUR, "run", "", 1, 0, 0, 0, 1, 0.75),
    ]
    assert len(await store.rollups(NOON + 1, NOON + HOUR)) == 2
    assert await store.rollups(NOON + HOUR, NOON + HOUR) == []
    assert await store.metric_values(NOON, NOON + HOUR, HOUR, ["a", "m"]) == [("m", 12.0, 1)]
    await store.delete("one")
    assert len(await store.rollups(NOON, NOON + 2 * HOUR)) == 3
    assert len(await store.metric_values(NOON, NOON + HOUR, HOUR, ["m"])) == 1


async def test_values_are_counted_by_the_hour_and_by_the_day_within_a_ninth(store: RunStore) -> None:
    chance = random.Random(3)
    measured = [*range(9), *(chance.choice((-1, 1)) * 10 ** chance.uniform(-9, 280) for _ in range(300))]

    async def measure(name: str, at: int, value: float) -> None:
        run = a_run(name, status=COMPLETED, verdict=PASSED)
        run.complete_time.FromMicroseconds(at)
        results = [result(metric, PASSED, kind=METRIC, value=value) for metric in ("m", "m", "other")]
        await store.import_run(run, [turn(4, *results)])

    hours = range(NOON, NOON + 30 * HOUR, HOUR)
    await asyncio.gather(*(measure(str(n), hours[n % 30], value) for n, value in enumerate(measured)))

    async def stored(since: int, until: int, width: int) -> Counter[float]:
        rows = await store.metric_values(since, until, width, ["m", "none"])
        assert rows == sorted(rows)
        assert {name for name, _, _ in rows} == {"m"}
        return Counter({value: times for _, value, times in rows})

    expected = Counter(rounded(value) for value in measured for _ in range(2))
    assert await stored(NOON, NOON + 30 * HOUR, HOUR) == expected
    assert await stored(NOON, NOON + 30 * HOUR, DAY) == expected
    assert await stored(hours[3] + 1, hours[4], HOUR) == Counter(
        rounded(v) for v in measured[3::30] for _ in range(2)
    )
    for value in measured:
        assert abs(rounded(value) - value) <= abs(value) * ROUNDING
    assert [rounded(value) for value in range(9)] == list(range(9))


async def test_values_whose_sum_is_no_number_keep_no_run_from_being_stored(store: RunStore) -> None:
    async def add(name: str, *values: float) -> None:
        run = a_run(name, NOON, status=COMPLETED, verdict=PASSED)
        run.complete_time.FromMicroseconds(NOON)
        results = [result("m", PASSED, kind=METRIC, value=value) for value in values]
        await store.import_run(run, [turn(len(values) + 1, *results)])

    for number, large in enumerate((1.7e308, 1.7e308, -1.7e308, -1.7e308)):
        await add(str(number), large, large)
        await asyncio.gather(add(f"{number}, large", large), add(f"{number}, beside it", 2.0))
    [metric] = [one for one in await store.rollups(0, 2**60) if one.scope == "metric"]
    assert (metric.passed, metric.value_count, metric.value_sum) == (16, 4, 8.0)


async def test_a_day_has_the_sums_of_its_hours_and_keeps_them(store: RunStore) -> None:
    chance = random.Random(7)
    for number in range(60):
        run = a_run(str(number), NOON, status=COMPLETED, verdict=chance.choice((PASSED, FAILED, ERROR)))
        run.scenario_id = f"scenario-{number % 3}"
        run.complete_time.FromMicroseconds(NOON + chance.randrange(-5 * DAY, 5 * DAY))
        results = [
            result("a", chance.choice((PASSED, FAILED)), score=0.5),
            result("m", PASSED, kind=METRIC, value=2.0),
        ]
        await store.import_run(run, [turn(3, *results)])
    sums: dict[tuple[int, str, str], list[float]] = {}
    for hour in await store.rollups(NOON - 10 * DAY, NOON + 10 * DAY):
        counts = sums.setdefault((hour.hour - hour.hour % DAY, hour.scope, hour.key), [0] * 6)
        counts[:] = map(operator.add, counts, hour[3:])
    days = await store.rollups(NOON - 10 * DAY, NOON + 10 * DAY, DAY)
    assert {day[:3]: list(day[3:]) for day in days} == sums
    assert len(days) < 60
    # The day of `since` whole, that of `until` only if it begins before.
    within = await store.rollups(NOON, NOON - NOON % DAY + DAY, DAY)
    assert {day.hour for day in within} == {NOON - NOON % DAY}
    assert await store.trim(max_age=None, max_count=10) == 50
    assert await store.delete((await store.list(RunFilter()))[0][1].id)
    assert await store.rollups(NOON - 10 * DAY, NOON + 10 * DAY, DAY) == days


async def test_a_run_that_broke_counts_as_error_and_one_that_was_stopped_as_nothing(store: RunStore) -> None:
    for name, status in (("broke", BROKE), ("stopped", INTERRUPTED)):
        [run] = await store.create([a_run(name)])
        run.status = status
        await store.save(run)
    assert [(one.error, one.failed, one.passed) for one in await store.rollups(0, 2**60)] == [(1, 0, 0)]


@pytest.mark.parametrize("status", [QUEUED, RUNNING])
async def test_a_run_that_goes_on_is_not_deleted(store: RunStore, status: int) -> None:
    await store.create([a_run("one", status=status)])
    with pytest.raises(RunActive):
        await store.delete("one")
    assert await store.get("one") is not None


async def test_delete_leaves_nothing_of_a_run(store: RunStore) -> None:
    for name in ("one", "two"):
        [run] = await store.create([a_run(name)])
        run.last_sequence, run.status = 3, COMPLETED
        await store.save(run, [turn(3, result("a", FAILED))])
    assert await store.delete("one")
    assert not await store.delete("one")
    assert await store.get("one") is None
    assert await store.events("one") == []
    assert await ids(store, failed_evaluator="a") == ["two"]
    # The place of the one that was deleted may be taken again.
    await store.create([a_run("one")])
    assert [event.sequence for event in await store.events("one")] == [1]


async def test_unfinished_runs_are_found_oldest_first_with_names(store: RunStore) -> None:
    statuses = [QUEUED, COMPLETED, RUNNING, INTERRUPTED, BROKE, QUEUED]
    for number, status in enumerate(statuses):
        run = a_run(str(number), NOON - number, status=status)
        run.scenario.name, run.scenario.instructions = f"of {number}", "long"
        await store.create([run])
    found = await store.unfinished()
    assert [(run.id, run.scenario) for run in found] == [
        (number, context_pb2.Scenario(name=f"of {number}")) for number in ("0", "2", "5")
    ]


async def test_execution_ids_are_never_given_twice(store: RunStore) -> None:
    numbers = await asyncio.gather(*(store.next_execution_id() for _ in range(20)))
    assert sorted(numbers) == list(range(1, 21))


async def make(store: RunStore, statuses: Sequence[int]) -> None:
    now = time.time_ns() // 1000
    for number, status in enumerate(statuses):
        await store.create([a_run(str(number), now - 1_000_000 * (1000 - number), status=status)])


async def test_retention_deletes_the_oldest_that_have_ended(store: RunStore) -> None:
    await make(store, [COMPLETED, RUNNING, INTERRUPTED, QUEUED, *[COMPLETED] * 246])
    assert await store.trim(max_age=None, max_count=None) == 0
    assert await store.trim(max_age=None, max_count=250) == 0
    assert await store.trim(max_age=None, max_count=10) == 238
    assert await ids(store) == [*(str(number) for number in range(249, 239, -1)), "3", "1"]


async def test_runs_after_a_clock_was_set_back_are_the_newest_and_found_by_their_time(
    store: RunStore, database: Database
) -> None:
    now, year = time.time_ns() // 1000, 365 * DAY
    await store.create([a_run(f"ahead-{n}", now + year + n, status=COMPLETED) for n in range(3)])
    for n in range(3):
        await store.create([a_run(f"now-{n}", now + n, status=COMPLETED)])
    newest_first = ["now-2", "now-1", "now-0", "ahead-2", "ahead-1", "ahead-0"]
    assert await ids(store) == newest_first
    assert await ids(store, until=now + DAY) == newest_first[:3]
    assert await ids(store, since=now, until=now + 2) == ["now-1", "now-0"]
    assert await ids(store, since=now + DAY) == newest_first[3:]
    # One more, from another server, which is as old as it says.
    await store.import_run(a_run("older", now - DAY, status=COMPLETED), [])
    assert await ids(store) == [*newest_first, "older"]
    assert await store.trim(max_age=3600, max_count=None) == 1
    assert await store.trim(max_age=None, max_count=4) == 2
    assert await ids(store) == newest_first[:4]
    # Once more, farther back.
    await store.create([a_run("last", now - 2 * year, status=COMPLETED)])
    assert await ids(store, until=now) == ["last"]
    assert await store.trim(max_age=3600, max_count=None) == 1
    assert await ids(store) == newest_first[:4]


async def test_retention_goes_by_age(store: RunStore) -> None:
    await make(store, [COMPLETED] * 10)
    assert await store.trim(max_age=994.95, max_count=1000) == 6
    assert len(await ids(store)) == 4
    assert await store.trim(max_age=0, max_count=None) == 4
