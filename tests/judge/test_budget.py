"""No request goes out that could break a ceiling."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from evald.result import TokenUsage
from evald_server.day_totals import DayTotals
from evald_server.judge.budget import Budget, Caller
from evald_server.judge.chat_completion import parse_completion
from evald_server.judge.prompt_request import CallSpending, JudgeError

from ..rpc.live import until
from .asking import asking, fault, question
from .wire import Answer, answer, chunk, completion, events, wire

GOOD = answer(200, completion('{"score": 0.5, "reasoning": "so so"}'))
# 100 tokens in and 10 out, as the completion says.
DEAR = {"dear": {"input": 1000, "output": 10_000}}
COST = 0.1 + 0.1


class Calendar:
    """Days that pass when told to."""

    def __init__(self) -> None:
        self.day = "2026-11-21"

    def __call__(self) -> str:
        return self.day


def test_without_a_ceiling_nothing_is_refused() -> None:
    budget, spending = Budget(), CallSpending()
    assert not budget.has_ceiling
    for most in (None, 1e9, 1e9):
        budget.reserve(most, spending).settle_unknown()


def test_requests_under_way_count_with_the_most_they_can_cost() -> None:
    budget, spending = Budget(per_day_usd=1.0), CallSpending()
    first = budget.reserve(0.6, spending)
    with pytest.raises(JudgeError, match=r"server has used \$0.6 of its limit of \$1 a day") as problem:
        budget.reserve(0.6, CallSpending())
    assert problem.value.code == "JUDGE_BUDGET_EXCEEDED"
    first.settle(0.1)
    assert spending.reserved_usd == 0
    budget.reserve(0.6, CallSpending())
    budget.reserve(0.2, spending).settle(0.1)
    with pytest.raises(JudgeError, match=r"server has used \$0.8 of its limit"):
        budget.reserve(0.3, CallSpending())


def test_requests_under_way_count_towards_the_ceiling_of_their_call() -> None:
    budget, spending = Budget(per_call_usd=1.0), CallSpending()
    first, _second = budget.reserve(0.4, spending), budget.reserve(0.4, spending)
    first.settle(0.1)
    spending.cost_usd = 0.1
    with pytest.raises(JudgeError, match=r"this evaluation has used \$0.5 of its limit"):
        budget.reserve(0.6, spending)


def test_what_nobody_knows_the_cost_of_counts_with_the_most_it_can_have_cost() -> None:
    calendar = Calendar()
    budget = Budget(per_call_usd=1.0, per_day_usd=1.0, spent=DayTotals(today=calendar))
    spending = CallSpending()
    lost = budget.reserve(0.6, spending)
    lost.settle(None)
    for _ in range(2):
        lost.settle_unknown()
    assert spending.reserved_usd == 0.6
    for other in (spending, CallSpending()):
        with pytest.raises(JudgeError, match=r"used \$0.6"):
            budget.reserve(0.6, other)
    calendar.day = "2026-11-22"
    budget.reserve(0.6, CallSpending())


def test_an_error_of_the_endpoint_costs_nothing() -> None:
    budget, spending = Budget(per_day_usd=1.0), CallSpending()
    for _ in range(5):
        charge = budget.reserve(0.6, spending)
        charge.settle(0.0)
        charge.settle(0.6)
        charge.settle_unknown()
    assert spending.reserved_usd == 0


def test_a_call_has_a_ceiling_of_its_own() -> None:
    budget = Budget(per_call_usd=1.0)
    spending = CallSpending(cost_usd=0.5)
    with pytest.raises(
        JudgeError, match=r"may cost up to \$0.6; this evaluation has used \$0.5 of its limit of \$1"
    ):
        budget.reserve(0.6, spending)
    budget.reserve(0.6, CallSpending())


def test_a_ceiling_of_nothing_lets_nothing_through() -> None:
    with pytest.raises(JudgeError):
        Budget(per_day_usd=0.0).reserve(0.000001, CallSpending())


def test_a_new_day_begins_at_nothing() -> None:
    calendar = Calendar()
    budget = Budget(per_day_usd=1.0, spent=DayTotals(today=calendar))
    budget.reserve(1.0, CallSpending()).settle(1.0)
    with pytest.raises(JudgeError):
        budget.reserve(0.1, CallSpending())
    calendar.day = "2026-11-22"
    under_way = budget.reserve(1.0, CallSpending())
    calendar.day = "2026-11-23"
    under_way.settle(0.9)  # counts for the day on which it ended
    with pytest.raises(JudgeError):
        budget.reserve(0.2, CallSpending())


def test_a_principal_has_a_ceiling_of_its_own_next_to_the_server_s(tmp_path: Path) -> None:
    calendar, limited = Calendar(), list[int]()
    who = Caller("ci", 1.0)
    path = tmp_path / "spending.json"

    def opened() -> Budget:
        return Budget(
            per_day_usd=3.0,
            spent=DayTotals(path, today=calendar),
            caller=lambda: who,
            limited=lambda: limited.append(1),
        )

    budget = opened()
    under_way = budget.reserve(0.6, CallSpending())
    with pytest.raises(JudgeError, match=r"ci has used \$0.6 of its limit of \$1 a day") as problem:
        budget.reserve(0.6, CallSpending())
    assert (problem.value.code, limited) == ("JUDGE_BUDGET_EXCEEDED", [1])
    with pytest.raises(JudgeError, match="no price"):
        budget.reserve(None, CallSpending())
    who = Caller("other", 1.5)
    budget.reserve(0.6, CallSpending()).settle(0.6)
    under_way.settle(0.5)  # by ci, whoever asks meanwhile
    budget.close()

    budget = opened()
    with pytest.raises(JudgeError, match=r"other has used \$0.6 of its limit"):
        budget.reserve(0.91, CallSpending())
    who = Caller("ci", 1.0)
    with pytest.raises(JudgeError, match=r"ci has used \$0.5 of its limit"):
        budget.reserve(0.6, CallSpending())
    who = Caller("rich", 100.0)
    with pytest.raises(JudgeError, match="server has used"):
        budget.reserve(2.0, CallSpending())
    assert limited == [1, 1, 1], "the server has used is no principal's limit"
    calendar.day = "2026-11-22"
    budget.reserve(1.0, CallSpending())
    budget.close()


def test_the_subjects_of_an_issuer_fill_no_file_and_a_ceiling_is_kept_all_the_same(tmp_path: Path) -> None:
    who = Caller()
    path = tmp_path / "spending.json"
    budget = Budget(spent=DayTotals(path), caller=lambda: who)
    for number in range(1500):
        who = Caller(f"jwt:{number}")
        budget.reserve(0.001, CallSpending()).settle(0.001)
    who = Caller("ci", 1.0)
    budget.reserve(0.9, CallSpending()).settle(0.9)
    with pytest.raises(JudgeError, match=r"ci has used \$0.9 of its limit"):
        budget.reserve(0.2, CallSpending())
    budget.close()
    kept = json.loads(path.read_text())
    assert len(kept["principals"]) <= 1001
    assert kept["usd"] == pytest.approx(2.4)


def test_a_principal_s_ceiling_needs_none_of_the_server() -> None:
    budget = Budget(caller=lambda: Caller("ci", 0.0))
    assert not budget.has_ceiling
    assert budget.limits_caller
    with pytest.raises(JudgeError):
        budget.reserve(0.000001, CallSpending())


def test_a_restart_does_not_begin_the_day_anew(tmp_path: Path) -> None:
    calendar = Calendar()
    path = tmp_path / "spending.json"
    for _ in range(2):
        budget = Budget(per_day_usd=1.0, spent=DayTotals(path, today=calendar))
        budget.reserve(0.4, CallSpending()).settle(0.4)
        budget.close()
    budget = Budget(per_day_usd=1.0, spent=DayTotals(path, today=calendar))
    with pytest.raises(JudgeError, match=r"has used \$0.8 of its limit"):
        budget.reserve(0.4, CallSpending())
    calendar.day = "2026-11-22"
    budget.reserve(0.4, CallSpending())
    budget.close()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "\0", "[" * 100_000, "{}"),
        *(f'{{"day": "2026-11-21", "usd": {total}}}' for total in ('"x"', "NaN", "-1", "9" * 400)),
    ],
    ids=lambda text: text[:35],
)
def test_a_store_that_cannot_be_read_is_told_in_one_line(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "spending.json"
    path.write_text(text)
    totals = DayTotals(path, today=Calendar())
    assert len(totals) == 0
    assert len(caplog.records) == 1
    totals.add([""], 0.25)
    totals.add(["", "ci"], 0.25)
    totals.close()
    assert json.loads(path.read_text()) == {"day": "2026-11-21", "usd": 0.5, "principals": {"ci": 0.25}}


async def test_a_store_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    totals = DayTotals(tmp_path / "missing" / "spending.json")
    totals.add([""], 0.5)
    await until(lambda: caplog.records)
    totals.add([""], 0.5)
    totals.close()
    assert len(caplog.records) == 1


async def test_a_request_is_refused_before_it_is_sent() -> None:
    async with (
        wire(GOOD) as server,
        asking(server.base_url, model="dear", prices=DEAR, budget=Budget(per_call_usd=1.0)) as judge,
    ):
        problem = await fault(judge.model().ask(question(max_tokens=100), CallSpending()))
        assert (problem.code, server.requests) == ("JUDGE_BUDGET_EXCEEDED", [])


async def test_costs_are_counted_and_used_up() -> None:
    budget = Budget(per_day_usd=12.0)
    async with (
        wire(GOOD) as server,
        asking(server.base_url, model="dear", prices=DEAR, budget=budget) as judge,
    ):
        spending, code = CallSpending(), ""
        while len(server.requests) < 100:
            try:
                await judge.model().ask(question(max_tokens=1000), spending)
            except JudgeError as problem:
                code = problem.code
                break
        assert code == "JUDGE_BUDGET_EXCEEDED"
        sent = len(server.requests)
        assert 1 < sent < 60
        assert spending.cost_usd == pytest.approx(sent * COST)
        assert spending.cost_usd <= 12.0
        assert judge.counted.costs == [pytest.approx(COST)] * sent


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        ((100, 10, 110), TokenUsage(100, 10, 110)),
        ((0, 0, 1 << 40), TokenUsage(0, 0, 1 << 40)),
        ((-100, 10, -90), TokenUsage(None, 10, None)),
        ((True, 10, 1 << 41), TokenUsage(None, 10, None)),
        (("100", 1.5, None), None),
    ],
)
def test_tokens_that_cannot_be_are_not_counted_and_so_lower_no_costs(
    counts: tuple[Any, Any, Any], read: TokenUsage | None
) -> None:
    usage = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), counts, strict=True))
    found = parse_completion(json.dumps(completion() | {"usage": usage}).encode(), "application/json")
    assert found.usage == read


async def test_many_requests_at_once_stay_below_the_ceiling_together() -> None:
    budget = Budget(per_day_usd=25.0)
    async with (
        wire(GOOD) as server,
        asking(server.base_url, model="dear", prices=DEAR, budget=budget) as judge,
    ):
        asked = [judge.model().ask(question(max_tokens=1000), CallSpending()) for _ in range(8)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        refused = [one for one in found if isinstance(one, JudgeError)]
        assert {one.code for one in refused} == {"JUDGE_BUDGET_EXCEEDED"}
        assert 0 < len(server.requests) == 8 - len(refused) < 8


async def test_an_answer_that_never_came_may_have_cost_something() -> None:
    budget = Budget(per_call_usd=15.0)
    async with (
        wire(Answer(b"", "reset")) as server,
        asking(server.base_url, model="dear", prices=DEAR, budget=budget, attempts=4) as judge,
    ):
        spending = CallSpending()
        problem = await fault(judge.model().ask(question(max_tokens=1000), spending))
        assert (problem.code, len(server.requests)) == ("JUDGE_BUDGET_EXCEEDED", 1)
        assert (spending.cost_usd, spending.reserved_usd > 10) == (None, True)


PROBLEM = {"error": {"message": "overloaded", "code": 503}}


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        (answer(503, PROBLEM), 4),
        (answer(200, PROBLEM), 4),
        (answer(200, events(PROBLEM), content_type="text/event-stream"), 4),
        (answer(200, events(chunk('{"score"'), PROBLEM), content_type="text/event-stream"), 1),
        (answer(200, events(chunk('{"score"') | PROBLEM), content_type="text/event-stream"), 1),
        (answer(200, completion("cut") | PROBLEM), 1),
        (answer(200, {"choices": [completion("cut")["choices"][0] | PROBLEM]}), 1),
    ],
)
async def test_an_answer_that_had_begun_before_an_error_may_have_cost_something(
    given: Answer, requests: int
) -> None:
    async with (
        wire(given) as server,
        asking(
            server.base_url, model="dear", prices=DEAR, budget=Budget(per_call_usd=15.0), attempts=4
        ) as judge,
    ):
        problem = await fault(judge.model().ask(question(max_tokens=1000), CallSpending()))
        assert len(server.requests) == requests
        assert problem.code == ("JUDGE_UNAVAILABLE" if requests == 4 else "JUDGE_BUDGET_EXCEEDED")


@pytest.mark.parametrize("budget", [Budget(per_call_usd=1.0), Budget(per_day_usd=1.0)], ids=["call", "day"])
async def test_a_model_without_a_price_is_refused_when_there_is_a_ceiling(budget: Budget) -> None:
    async with wire(GOOD) as server, asking(server.base_url, budget=budget) as judge:
        judge.model("gpt-4o")
        with pytest.raises(ValueError, match=r'price of model "mystery".*judges.default.prices."mystery"'):
            judge.model("mystery")
