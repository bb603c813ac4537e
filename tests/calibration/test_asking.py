"""Questions are asked several at a time, each once, and never beyond the ceiling of cost."""

import asyncio
from typing import Any

import pytest

from evald_server.calibration.asking import CostUnknown, Outcome, ask_all
from evald_server.calibration.asks import Answer, Ask, plan_asks

from .scripted import ScriptedJudge, case, cases, pairs


def _ask(judge: Any, some: Any, **options: Any) -> Outcome:
    return asyncio.run(ask_all(plan_asks(some), judge, **options))


def test_labelled_cases_are_repeated_pairs_swapped_and_attacks_asked_once() -> None:
    some = [case("one"), case("two", "a"), case("three", "fail", family="direct")]
    asks = plan_asks(some, repeats=3)
    found = sorted((ask.case.id, ask.repeat, ask.swapped) for ask in asks)
    assert found == [
        *(("one", repeat, False) for repeat in range(3)),
        ("three", 0, False),
        *(("two", repeat, swapped) for repeat in range(3) for swapped in (False, True)),
    ]


def test_the_order_of_questions_is_mixed_and_always_the_same() -> None:
    some = cases(30, 30)
    asks = plan_asks(some)
    assert asks == plan_asks(list(reversed(some)))
    first_half = sum(ask.wanted for ask in asks[:30])
    assert 5 < first_half < 25


def test_every_question_is_asked_once_and_never_more_than_allowed_at_a_time() -> None:
    open_now = most = 0

    async def judge(ask: Ask) -> Answer:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        return Answer(passed=True)

    some = cases(20, 20)
    outcome = _ask(judge, some, concurrency=5)
    assert sorted(found.ask.case.id for found in outcome.asked) == sorted(one.id for one in some)
    assert outcome.left_out == 0
    assert most == 5


def test_what_a_judge_raises_ends_it_and_leaves_nothing_running() -> None:
    running: set[int] = set()

    async def judge(ask: Ask) -> Answer:
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
        _ask(judge, cases(10, 10), concurrency=8)
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
    outcome = _ask(judge, cases(20, 20), concurrency=concurrency, ceiling_usd=ceiling)
    assert len(outcome.asked) == len(judge.asked) == asked
    assert outcome.left_out == 40 - asked


def test_one_dear_question_does_not_end_it_while_there_is_room() -> None:
    async def judge(ask: Ask) -> Answer:
        await asyncio.sleep(0)
        return Answer(passed=True, cost_usd=0.5 if ask.case.id == "good-0" else 0.001)

    outcome = _ask(judge, cases(20, 20), concurrency=8, ceiling_usd=1.5)
    assert outcome.left_out == 0


def test_a_judge_that_hides_its_cost_is_refused_under_a_ceiling() -> None:
    async def judge(ask: Ask) -> Answer:
        return Answer(passed=True, input_tokens=100)

    with pytest.raises(CostUnknown):
        _ask(judge, cases(3, 3), ceiling_usd=1.0)
    assert len(_ask(judge, cases(3, 3)).asked) == 6


def test_verdicts_that_took_no_model_may_cost_nothing_but_not_all_of_them() -> None:
    async def sometimes(ask: Ask) -> Answer:
        free = ask.case.label == "fail"
        return Answer(passed=False) if free else Answer(passed=True, cost_usd=0.01, input_tokens=9)

    assert len(_ask(sometimes, cases(10, 10), ceiling_usd=1.0).asked) == 20
    with pytest.raises(CostUnknown):
        _ask(ScriptedJudge(), cases(20, 20), ceiling_usd=1.0)


def test_errors_without_a_cost_do_not_count_as_hidden_ones() -> None:
    async def judge(ask: Ask) -> Answer:
        return Answer(None, "JUDGE_UNAVAILABLE")

    assert len(_ask(judge, pairs(20, 20), ceiling_usd=1.0).asked) == 80
