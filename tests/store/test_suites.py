"""Suite runs: cases in one commit with their keys, found by every filter, interrupted, resumed, deleted, kept."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from evald.v1 import result_pb2
from evald.v1 import suite_service_pb2 as pb
from evald.v1.suite_service_pb2 import CaseResult, SuiteRun
from evald_server.store.database import Database
from evald_server.store.resources import IdTaken
from evald_server.store.suites import (
    StoredCase,
    SuiteFilter,
    SuiteRunKey,
    SuiteRunNotFound,
    SuiteRunState,
    SuiteStore,
)

from .conftest import Place

RUNNING, COMPLETED = pb.SUITE_RUN_STATUS_RUNNING, pb.SUITE_RUN_STATUS_COMPLETED
INTERRUPTED = pb.SUITE_RUN_STATUS_INTERRUPTED
PASSED, FAILED = result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED
ERROR, SKIPPED = result_pb2.VERDICT_ERROR, result_pb2.VERDICT_SKIPPED

NOON = 1_700_000_000_000_000


@pytest.fixture
def store(database: Database) -> SuiteStore:
    return SuiteStore(database)


def a_run(name: str, at: int = NOON, **fields: object) -> SuiteRun:
    run = SuiteRun(id=name, **{"suite": "checkout", "target": "agent", "status": RUNNING} | fields)
    run.create_time.FromMicroseconds(at)
    return run


def a_case(name: str, verdict: int = PASSED, text: str = "hello") -> StoredCase:
    case = CaseResult(case_id=name, verdict=verdict, reason="because")
    brief = case.SerializeToString()
    case.trials.add(trial=1, reason=text)
    return StoredCase(name, verdict, brief, case.SerializeToString())


async def ended(store: SuiteStore, name: str, at: int = NOON, **fields: object) -> SuiteRunKey:
    run = a_run(name, at, **fields)
    key = await store.create(run, b"")
    run.status = fields.get("status", COMPLETED)
    await store.finish(key, run)
    return key


async def ids(store: SuiteStore, **wanted: object) -> list[str]:
    return [run.id for _, run in await store.list(SuiteFilter(**wanted))]  # type: ignore[arg-type]


async def case_ids(store: SuiteStore, run_id: str, **wanted: object) -> list[str]:
    found = await store.cases(run_id, **wanted)  # type: ignore[arg-type]
    assert found is not None
    return [case_id for case_id, _ in found]


async def test_a_suite_run_is_kept_as_it_has_ended(store: SuiteStore) -> None:
    run = a_run("one")
    key = await store.create(run, b"opening")
    assert await store.get("one") == run
    run.status, run.verdict, run.reason = COMPLETED, FAILED, "too few passed"
    await store.finish(key, run)
    assert await store.get("one") == run
    assert await store.list(SuiteFilter()) == [(key.number, run)]
    assert await store.get("none") is None
    assert await store.cases("none") is None


async def test_an_id_is_taken_once(store: SuiteStore) -> None:
    await store.create(a_run("one"), b"")
    with pytest.raises(IdTaken):
        await store.create(a_run("one"), b"")
    await store.create(a_run("two"), b"")
    assert await ids(store) == ["two", "one"]


async def test_a_case_is_whole_and_a_brief_one_has_no_trials(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    assert await store.add(key, [a_case("refund")]) == []
    [(_, data)] = await store.cases("one") or []
    whole = CaseResult.FromString(data)
    assert (whole.case_id, whole.reason, whole.trials[0].reason) == ("refund", "because", "hello")
    [(_, data)] = await store.cases("one", brief=True) or []
    assert CaseResult.FromString(data) == CaseResult(case_id="refund", verdict=PASSED, reason="because")


async def test_an_id_that_is_taken_is_named_and_the_others_are_stored(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    other = await store.create(a_run("two"), b"")
    await store.add(other, [a_case("a")])
    assert await store.add(key, [a_case("a"), a_case("b"), a_case("a", text="again")]) == ["a"]
    assert await store.add(key, [a_case("b", text="other"), a_case("c")]) == ["b"]
    assert await case_ids(store, "one") == ["a", "b", "c"]
    found = await store.find(key, ["a", "b", "z"])
    assert {name: one.whole for name, one in found.items()} == {
        "a": a_case("a").whole,
        "b": a_case("b").whole,
    }


async def test_storing_the_same_cases_again_is_no_duplicate(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    for again in (False, True):
        assert await store.add(key, [a_case("a"), a_case("b")], again=again) == []
    assert await case_ids(store, "one") == ["a", "b"]
    assert await store.add(key, [a_case("a", text="other")], again=True) == ["a"]


async def test_a_case_that_was_answered_is_a_duplicate_however_alike(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    assert await store.add(key, [a_case("a")]) == []
    assert await store.add(key, [a_case("a"), a_case("b")]) == ["a"]


async def test_cases_are_paged_by_id_and_filtered(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    names = [f"case {number:04}" for number in range(1203)] + ["é", "\U0001f600", "\uff5e"]
    cases = [a_case(name, FAILED if index % 100 == 7 else PASSED) for index, name in enumerate(names)]
    await asyncio.gather(*(store.add(key, cases[begin::7]) for begin in range(7)))
    seen: list[str] = []
    while page := await case_ids(store, "one", after=seen[-1] if seen else "", limit=100):
        seen += page
    assert seen == sorted(names)
    assert await case_ids(store, "one", verdict=FAILED) == names[7::100]
    assert await case_ids(store, "one", case_id="case 0003") == ["case 0003"]
    assert await case_ids(store, "one", case_id="case 0003", verdict=FAILED) == []
    assert len(await store.find(key, names)) == len(names)


async def test_suite_runs_are_found_by_every_filter_newest_first(store: SuiteStore) -> None:
    await ended(store, "a", NOON, verdict=PASSED)
    await ended(store, "b", NOON + 10, verdict=FAILED)
    await ended(store, "c", NOON + 20, suite="search", verdict=PASSED)
    await ended(store, "d", NOON + 30, target="other", verdict=ERROR, status=INTERRUPTED)
    assert await ids(store) == ["d", "c", "b", "a"]
    assert await ids(store, suite="checkout") == ["d", "b", "a"]
    assert await ids(store, suite="checkout", target="agent") == ["b", "a"]
    assert await ids(store, verdict=PASSED) == ["c", "a"]
    assert await ids(store, status=INTERRUPTED) == ["d"]
    assert await ids(store, since=NOON + 10, until=NOON + 30) == ["c", "b"]
    [first, second] = await store.list(SuiteFilter(), limit=2)
    assert [run.id for _, run in await store.list(SuiteFilter(), after=second[0])] == ["b", "a"]
    assert first[1].id == "d"


async def test_what_runs_is_interrupted_with_its_counts_and_no_verdict(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"")
    await ended(store, "two")
    verdicts = [PASSED, PASSED, FAILED, ERROR, SKIPPED]
    await store.add(key, [a_case(str(number), verdict) for number, verdict in enumerate(verdicts)])
    running = await store.get("one")
    assert running is not None
    assert (running.status, running.case_count, running.passed_count) == (RUNNING, 5, 2)
    assert await store.running() == ["one"]
    assert await store.interrupt("one")
    assert not await store.interrupt("one")
    assert await store.running() == []
    run = await store.get("one")
    assert run is not None
    assert (run.status, run.verdict, run.reason) == (INTERRUPTED, 0, "Interrupted after 5 cases")
    counts = (run.case_count, run.passed_count, run.failed_count, run.error_count, run.skipped_count)
    assert counts == (5, 2, 1, 1, 1)
    assert run.HasField("complete_time")
    assert await ids(store, status=COMPLETED) == ["two"]


async def test_an_interrupted_suite_run_is_resumed_once(store: SuiteStore) -> None:
    first = await store.create(a_run("one"), b"opening")
    await store.add(first, [a_case("a")])
    seen: list[bytes] = []
    with pytest.raises(SuiteRunState) as running:
        await store.resume("one", seen.append)
    assert running.value.status == RUNNING
    await store.interrupt("one")

    def refuse(opening: bytes) -> None:
        raise ValueError(opening)

    with pytest.raises(ValueError, match="opening"):
        await store.resume("one", refuse)
    key, run = await store.resume("one", seen.append)
    assert seen == [b"opening"]
    assert key == SuiteRunKey(first.number, 2)
    assert run == a_run("one")
    assert [run.id for _, run in await store.list(SuiteFilter(status=RUNNING))] == ["one"]
    await store.add(key, [a_case("b")])
    found = await store.find(key, ["a", "b"])
    assert {name: one.attempt for name, one in found.items()} == {"a": 1, "b": 2}
    with pytest.raises(SuiteRunNotFound):
        await store.resume("none", seen.append)


async def test_a_suite_run_with_cases_in_error_is_resumed_without_them(store: SuiteStore) -> None:
    key = await store.create(a_run("one"), b"opening")
    await store.add(key, [a_case("a"), a_case("b", ERROR), a_case("c", FAILED), a_case("d", 77)])
    done = a_run("one")
    done.status, done.verdict, done.error_count, done.case_count = COMPLETED, PASSED, 2, 4
    done.pass_rate.value = 1.0
    done.complete_time.GetCurrentTime()
    await store.finish(key, done)
    again, run = await store.resume("one", lambda _opening: None)
    assert (again, run) == (SuiteRunKey(key.number, 2), a_run("one"))
    assert await case_ids(store, "one") == ["a", "c"]
    await ended(store, "clean")
    with pytest.raises(SuiteRunState):
        await store.resume("clean", lambda _opening: None)


async def test_both_sides_of_a_comparison_are_ordered_by_id(store: SuiteStore) -> None:
    base, new = await ended(store, "base"), await ended(store, "new")
    left = [f"{number:05}" for number in range(0, 3000, 2)] + ["\uff5e", "a"]
    right = [f"{number:05}" for number in range(0, 3000, 3)] + ["\U0001f600", "\uff5e"]
    await store.add(base, [a_case(name) for name in left])
    await store.add(new, [a_case(name, FAILED) for name in right])

    def consume(before: SuiteRun, after: SuiteRun, *sides: Iterator[bytes]) -> list[list[str]]:
        assert (before.id, after.id) == ("base", "new")
        return [[CaseResult.FromString(data).case_id for data in side] for side in sides]

    assert await store.both("base", "new", consume) == [sorted(left), sorted(right)]
    with pytest.raises(SuiteRunNotFound):
        await store.both("base", "none", consume)


async def test_a_deletion_takes_nothing_from_a_comparison_that_goes_on(
    lasting_place: Place, open_database: Callable[[Place], Database]
) -> None:
    database = open_database(lasting_place)
    await database.start()
    store = SuiteStore(database)
    loop = asyncio.get_running_loop()
    for name in ("base", "new"):
        key = await ended(store, name)
        await store.add(key, [a_case(f"{number:05}") for number in range(1200)])

    def consume(_base: SuiteRun, _new: SuiteRun, base: Iterator[bytes], new: Iterator[bytes]) -> list[int]:
        next(base)
        assert asyncio.run_coroutine_threadsafe(store.delete("base"), loop).result()
        return [1 + len(list(base)), len(list(new))]

    assert await store.both("base", "new", consume) == [1200, 1200]
    assert await store.get("base") is None


async def test_a_deleted_suite_run_leaves_nothing_and_its_id_is_free(
    store: SuiteStore, database: Database
) -> None:
    key = await store.create(a_run("one"), b"")
    await store.add(key, [a_case(str(number)) for number in range(1700)])
    with pytest.raises(SuiteRunState):
        await store.delete("one")
    await store.interrupt("one")
    assert await store.delete("one")
    assert not await store.delete("one")
    assert await store.get("one") is None
    assert await store.cases("one") is None
    assert await ids(store) == []
    assert await store.find(key, ["1"]) == {}
    await store.create(a_run("one"), b"")


async def test_no_id_that_a_caller_gives_is_in_the_way_of_a_deletion(store: SuiteStore) -> None:
    for name in ("one", f"deleted {NOON}", f"deleted {NOON + 1}"):
        await ended(store, name)
    assert await store.delete("one")
    assert await store.trim(max_age=0, max_count=None) == 2
    assert await ids(store) == []


async def test_a_deletion_that_was_cut_off_is_finished_later(
    lasting_place: Place, open_database: Callable[[Place], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(lasting_place)
    await database.start()
    store = SuiteStore(database)
    key = await ended(store, "one")
    await store.add(key, [a_case("a")])

    async def cut_off(_self: SuiteStore) -> None:
        pass

    with monkeypatch.context() as patched:
        patched.setattr(SuiteStore, "purge", cut_off)
        assert await store.delete("one")
    assert await ids(store) == []
    assert list(await store.find(key, ["a"])) == ["a"]
    for buried in (f"deleted {key.number}", f"\n{key.number}"):
        assert await store.get(buried) is None
        assert await store.cases(buried) is None
        assert not await store.delete(buried)
    await store.purge()
    assert await store.find(key, ["a"]) == {}


async def test_retention_keeps_the_newest_and_what_runs(store: SuiteStore) -> None:
    now = time.time_ns() // 1000
    await store.create(a_run("runs", now - 900_000_000), b"")
    for age in (800, 500, 300, 100):
        await ended(store, str(age), now - 1_000_000 * age)
    assert await store.trim(max_age=None, max_count=None) == 0
    assert await store.trim(max_age=600, max_count=None) == 1
    assert await ids(store) == ["100", "300", "500", "runs"]
    assert await store.trim(max_age=None, max_count=2) == 1
    assert await ids(store) == ["100", "300", "runs"]
