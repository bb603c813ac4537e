"""Answers are bought once, within bounds, and a broken cache costs nothing but money."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evald_server.judge.cache import AnswerCache, CachedAnswer, DiskCache, MemoryCache, cache_key
from evald_server.judge.prompt_request import CallSpending, ModelAnswer

from ..loop import run
from .asking import asking, fault, question, within
from .wire import Answer, answer, completion, wire

KEPT = CachedAnswer('{"a": "ä"}', {"a": "ä"}, "judge-1")
GOOD = answer(200, completion('{"score": 0.5, "reasoning": "so so"}'))

Make = Callable[[int], AnswerCache]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A cache of so many bytes."""
    if request.param == "memory":
        return MemoryCache
    seconds = iter(range(10_000))
    return lambda size: DiskCache(tmp_path / "cache.sqlite", size, now=lambda: float(next(seconds)))


def key(number: int) -> bytes:
    return cache_key(str(number))


async def test_what_was_put_is_there(make: Make) -> None:
    cache = make(10_000)
    assert await cache.get(key(1)) is None
    cache.put(key(1), KEPT)
    assert await cache.get(key(1)) == KEPT
    assert await cache.get(key(2)) is None
    cache.put(key(1), CachedAnswer("new", None, "judge-2"))
    assert await cache.get(key(1)) == CachedAnswer("new", None, "judge-2")
    half = CachedAnswer("\ud83d", {"reasoning": "\udfff"}, "m")
    cache.put(key(3), half)
    assert await cache.get(key(3)) == half, "half of a surrogate pair, which has no UTF-8"
    await cache.close()


async def test_what_was_not_used_for_longest_makes_room(make: Make) -> None:
    cache = make(18_000)  # five, of a little more than 3,000 bytes each
    large = CachedAnswer("x" * 3000, None, "m")
    for number in range(5):
        cache.put(key(number), large)
    assert await cache.get(key(0)) == large
    for number in range(5, 8):
        cache.put(key(number), large)
    there = [number for number in range(8) if await cache.get(key(number))]
    assert 0 in there, "it was used"
    assert 7 in there
    assert not {1, 2, 3} & set(there)
    cache.put(key(9), CachedAnswer("x" * 20_000, None, "m"))
    assert await cache.get(key(9)) is None, "it is larger than everything"
    assert await cache.get(key(7)) == large
    await cache.close()


async def test_a_cache_stays_within_its_bytes_however_much_is_put(make: Make) -> None:
    cache = make(20_000)
    for number in range(500):
        cache.put(key(number % 250), CachedAnswer("y" * (number % 700), None, "m"))
    sizes = [len(kept.text) for number in range(250) if (kept := await cache.get(key(number)))]
    assert 0 < sum(sizes) < 20_000
    assert await cache.get(key(249)), "the last one is there"
    await cache.close()


def test_on_disk_answers_outlive_the_server_and_only_its_user_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"

    async def main() -> None:
        for expected in (None, KEPT):
            cache = DiskCache(path, 10_000)
            assert await cache.get(key(1)) == expected
            cache.put(key(1), KEPT)
            await cache.close()
            cache.put(key(2), KEPT)
            assert await cache.get(key(2)) is None, "closed"

    run(main())
    assert path.stat().st_mode & 0o077 == 0


async def test_a_file_that_grew_under_another_limit_is_cut(tmp_path: Path) -> None:
    large = DiskCache(tmp_path / "cache.sqlite", 1_000_000)
    for number in range(100):
        large.put(key(number), CachedAnswer("x" * 800, None, "m"))
    await large.close()
    small = DiskCache(tmp_path / "cache.sqlite", 5000)
    small.put(key(1000), KEPT)
    there = [number for number in range(100) if await small.get(key(number))]
    assert len(there) <= 5
    assert await small.get(key(1000)) == KEPT
    await small.close()


async def test_another_process_may_use_the_file_too(tmp_path: Path) -> None:
    one, other = (DiskCache(tmp_path / "cache.sqlite", 10_000) for _ in range(2))
    one.put(key(1), KEPT)
    await one.get(key(1))
    assert await other.get(key(1)) == KEPT
    await one.close()
    await other.close()


def _execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def _nonsense(path: Path) -> None:
    async def made() -> None:
        cache = DiskCache(path, 10_000)
        cache.put(key(1), KEPT)
        await cache.close()

    run(made())
    _execute(path, "UPDATE answers SET answer = '[1'")


BROKEN: dict[str, Callable[[Path], None]] = {
    "no database": lambda path: path.write_bytes(b"this is no database, and never was one" * 100) and None,
    "another table": lambda path: _execute(path, "CREATE TABLE answers (something TEXT)"),
    "a folder": lambda path: path.mkdir(),
    "no folder": lambda path: path.parent.rmdir(),
    "nonsense in a row": _nonsense,
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_cache_is_an_empty_one_with_one_line_in_the_log(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data" / "cache.sqlite"
    path.parent.mkdir()
    BROKEN[how](path)
    seconds = 0.0

    async def main() -> None:
        nonlocal seconds
        cache = DiskCache(path, 10_000, clock=lambda: seconds)
        for seconds in (0.0, 1.0, 100.0):  # noqa: B007 - the clock reads it
            assert await cache.get(key(1)) is None
            cache.put(key(2), KEPT)
        await cache.close()

    run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot use the judge's cache cache.sqlite" in caplog.text


def test_a_locked_cache_is_used_again_once_it_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache.sqlite"
    seconds = 0.0

    async def main() -> None:
        nonlocal seconds
        cache = DiskCache(path, 10_000, clock=lambda: seconds)
        cache.put(key(1), KEPT)
        await cache.get(key(1))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert await cache.get(key(1)) is None
            other.execute("ROLLBACK")
        assert await cache.get(key(1)) is None, "left alone for a minute"
        seconds = 61.0
        assert await cache.get(key(1)) == KEPT
        await cache.close()

    run(main())
    assert len(caplog.records) == 1


async def test_an_answer_is_bought_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache.sqlite", 1 << 20)
    async with wire(GOOD) as server, asking(server.base_url, cache=cache) as judge:
        asked = question(cache_key="k1")
        first, second = CallSpending(), CallSpending()
        bought = await judge.model().ask(asked, first)
        found = await judge.model().ask(asked._replace(user_message="with another nonce"), second)
        assert (bought.cached, found.cached) == (False, True)
        assert found[:3] == bought[:3]
        assert found.request["messages"][1]["content"] == "with another nonce"
        assert (first.attempts, second) == (1, CallSpending())
        assert (len(server.requests), judge.counted.looks) == (1, [False, True])


async def test_another_question_sample_model_or_endpoint_is_another_answer() -> None:
    cache = MemoryCache(1 << 20)
    async with wire(GOOD) as server, wire(GOOD) as elsewhere:
        for address in (server, elsewhere):
            async with asking(address.base_url, cache=cache) as judge:
                asked = question(cache_key="k1")
                others = [asked, asked._replace(sample=1), asked._replace(cache_key="k2")]
                for other in others:
                    assert not (await judge.model().ask(other, CallSpending())).cached
                assert not (await judge.model("gpt-4o").ask(asked, CallSpending())).cached


async def test_without_a_key_nothing_is_kept() -> None:
    async with wire(GOOD) as server, asking(server.base_url, cache=MemoryCache(1 << 20)) as judge:
        for _ in range(2):
            assert not (await judge.model().ask(question(), CallSpending())).cached
        assert judge.counted.looks == []


async def test_who_wants_no_cached_answer_gets_a_new_one_which_is_kept() -> None:
    other = answer(200, completion('{"score": 1, "reasoning": "better"}'))
    async with wire(GOOD, other) as server, asking(server.base_url, cache=MemoryCache(1 << 20)) as judge:
        asked = question(cache_key="k1")
        await judge.model().ask(asked, CallSpending())
        with within(None, skip_cache=True):
            new = await judge.model().ask(asked, CallSpending())
        assert (new.cached, new.data) == (False, {"score": 1, "reasoning": "better"})
        assert (await judge.model().ask(asked, CallSpending())).data == new.data
        assert (len(server.requests), judge.counted.looks) == (2, [False, True])


UNUSABLE: dict[str, Answer] = {
    "no finish": answer(200, completion('{"score": 1, "reasoning": "r"}', None)),
    "out of range": answer(200, completion('{"score": 7, "reasoning": "r"}')),
    "missing": answer(200, completion('{"score": 1}')),
    "refused": answer(200, completion(None, refusal="no")),
    "no JSON": answer(200, completion("no")),
    "an error": answer(400, b""),
}


def in_range(given: ModelAnswer) -> bool:
    """What a judge might look at."""
    return given.data is not None and given.data.get("reasoning") == "so so" and given.data["score"] <= 1


@pytest.mark.parametrize("how", UNUSABLE)
async def test_what_is_no_finished_answer_that_the_judge_can_use_is_not_kept(how: str) -> None:
    given = UNUSABLE[how]
    async with wire(given, GOOD) as server, asking(server.base_url, cache=MemoryCache(1 << 20)) as judge:
        asked = question(cache_key="k1", is_usable=in_range)
        if how in ("out of range", "missing"):
            assert (await judge.model().ask(asked, CallSpending())).data
        else:
            await fault(judge.model().ask(asked, CallSpending()))
        assert not (await judge.model().ask(asked, CallSpending())).cached
        assert (await judge.model().ask(asked, CallSpending())).cached


async def test_a_cache_that_is_off_keeps_nothing() -> None:
    cache = MemoryCache(0)
    cache.put(key(1), KEPT)
    assert await cache.get(key(1)) is None
    await cache.close()


async def test_writing_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    """While another process holds the lock, other coroutines go on."""
    path = tmp_path / "cache.sqlite"

    cache = DiskCache(path, 10_000)
    await cache.get(key(1))
    turns = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        cache.put(key(1), KEPT)
        looked = asyncio.create_task(cache.get(key(1)))
        while not looked.done():
            await asyncio.sleep(0.001)
            turns += 1
        other.execute("ROLLBACK")
    assert turns > 20
    await cache.close()
