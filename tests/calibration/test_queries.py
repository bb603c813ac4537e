"""Questions are asked several at a time, each once, and never beyond the ceiling of cost."""

import asyncio
from typing import Any

import pytest

from evald_server.calibration.queries import (
    CostUnknown,
    Query,
    QueryAnswer,
    QueryResults,
    plan_queries,
    run_queries,
)

from .scripted import ScriptedJudge, case, cases, pairs


def _run(judge: Any, some: Any, **options: Any) -> QueryResults:
    return asyncio.run(run_queries(plan_queries(some), judge, **options))


def test_labelled_cases_are_repeated_pairs_swapped_and_attacks_asked_once() -> None:
    some = [case("one"), case("two", "a"), case("three", "fail", family="direct")]
    queries = plan_queries(some, repeats=3)
    found = sorted((query.case.id, query.repeat, query.swapped) for query in queries)
    assert found == [
        *(("one", repeat, False) for repeat in range(3)),
        ("three", 0, False),
        *(("two", repeat, swapped) for repeat in range(3) for swapped in (False, True)),
    ]


def test_the_order_of_questions_is_mixed_and_always_the_same() -> None:
    some = cases(30, 30)
    queries = plan_queries(some)
    assert queries == plan_queries(list(reversed(some)))
    first_half = sum(query.expected_verdict for query in queries[:30])
    assert 5 < first_half < 25


def test_every_question_is_asked_once_and_never_more_than_allowed_at_a_time() -> None:
    open_now = most = 0

    async def judge(query: Query) -> QueryAnswer:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        return QueryAnswer(passed=True)

    some = cases(20, 20)
    results = _run(judge, some, concurrency=5)
    assert sorted(found.query.case.id for found in results.answered) == sorted(one.id for one in some)
    assert results.left_out == 0
    assert most == 5


def test_what_a_judge_raises_ends_it_and_leaves_nothing_running() -> None:
    running: set[int] = set()

    async def judge(query: Query) -> QueryAnswer:
        number = len(running)
        running.add(number)
        try:
            if number == 3:
                raise ConnectionError("gone")
            await asyncio.Event().wait()
        finally:
            running.discard(number)
        raise AssertionError("nobody sets the event")

    with pytest.raises(ConnectionError, match="gone"):
        _run(judge, cases(10, 10), concurrency=8)
    assert not running


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("ceiling", "asked"),
    [
        pytest.param(0.0, 1, id="nothing, but nobody knows before asking"),
        pytest.param(0.01, 1, id="one"),
        pytest.param(0.1, 10, id="ten"),
        pytest.param(5.0, 40, id="all"),
    ],
)
def test_the_ceiling_is_never_exceeded_once_the_cost_is_known(
    ceiling: float, asked: int, concurrency: int
) -> None:
    judge = ScriptedJudge(cost_usd=0.01)
    results = _run(judge, cases(20, 20), concurrency=concurrency, ceiling_usd=ceiling)
    assert len(results.answered) == len(judge.asked) == asked
    assert results.left_out == 40 - asked


def test_one_dear_question_does_not_end_it_while_there_is_room() -> None:
    async def judge(query: Query) -> QueryAnswer:
        await asyncio.sleep(0)
        return QueryAnswer(passed=True, cost_usd=0.5 if query.case.id == "good-0" else 0.001)

    results = _run(judge, cases(20, 20), concurrency=8, ceiling_usd=1.5)
    assert results.left_out == 0


def test_a_judge_that_hides_its_cost_is_refused_under_a_ceiling() -> None:
    async def judge(query: Query) -> QueryAnswer:
        return QueryAnswer(passed=True, input_tokens=100)

    with pytest.raises(CostUnknown):
        _run(judge, cases(3, 3), ceiling_usd=1.0)
    assert len(_run(judge, cases(3, 3)).answered) == 6


def test_verdicts_that_took_no_model_may_cost_nothing_but_not_all_of_them() -> None:
    async def sometimes(query: Query) -> QueryAnswer:
        free = query.case.label == "fail"
        return QueryAnswer(passed=False) if free else QueryAnswer(passed=True, cost_usd=0.01, input_tokens=9)

    assert len(_run(sometimes, cases(10, 10), ceiling_usd=1.0).answered) == 20
    with pytest.raises(CostUnknown):
        _run(ScriptedJudge(), cases(20, 20), ceiling_usd=1.0)


def test_errors_without_a_cost_do_not_count_as_hidden_ones() -> None:
    async def judge(query: Query) -> QueryAnswer:
        return QueryAnswer(None, "JUDGE_UNAVAILABLE")

    assert len(_run(judge, pairs(20, 20), ceiling_usd=1.0).answered) == 80
