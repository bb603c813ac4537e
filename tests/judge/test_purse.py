"""No request goes out that could break a ceiling."""

import asyncio
import json
from pathlib import Path

import pytest

from evald_server.judge.ledger import FileLedger
from evald_server.judge.prices import Price
from evald_server.judge.purse import Purse
from evald_server.judge.question import JudgeFault, Spending

from ..rpc.live import run
from .asking import asking, fault, question
from .wire import Answer, answer, completion, wire

GOOD = answer(200, completion('{"score": 0.5, "reasoning": "so so"}'))
# 100 tokens in and 10 out, as the completion says.
DEAR = {"dear": Price(1000, 10_000)}
COST = 0.1 + 0.1


class Calendar:
    """Days that pass when told to."""

    def __init__(self) -> None:
        self.day = "2026-11-21"

    def __call__(self) -> str:
        return self.day


def test_without_a_ceiling_nothing_is_refused() -> None:
    purse, spending = Purse(), Spending()
    assert not purse.limited
    for most in (None, 1e9, 1e9):
        purse.reserve(most, spending).lost()


def test_requests_under_way_count_with_the_most_they_can_cost() -> None:
    purse, spending = Purse(per_day_usd=1.0), Spending()
    first = purse.reserve(0.6, spending)
    with pytest.raises(JudgeFault, match=r"ceiling of \$1 a day .* used up to \$0.6") as problem:
        purse.reserve(0.6, Spending())
    assert problem.value.code == "JUDGE_BUDGET_EXCEEDED"
    first.paid(0.1)
    assert spending.reserved_usd == 0
    purse.reserve(0.6, Spending())


def test_what_nobody_knows_the_cost_of_counts_with_the_most_it_can_have_cost() -> None:
    purse, spending = Purse(per_call_usd=1.0, per_day_usd=1.0), Spending()
    lost = purse.reserve(0.6, spending)
    lost.paid(None)
    lost.lost()
    assert spending.reserved_usd == 0.6
    for other in (spending, Spending()):
        with pytest.raises(JudgeFault, match="used"):
            purse.reserve(0.6, other)


def test_an_error_of_the_endpoint_costs_nothing() -> None:
    purse, spending = Purse(per_day_usd=1.0), Spending()
    for _ in range(5):
        charge = purse.reserve(0.6, spending)
        charge.paid(0.0)
        charge.lost()
    assert spending.reserved_usd == 0


def test_a_call_has_a_ceiling_of_its_own() -> None:
    purse = Purse(per_call_usd=1.0)
    spending = Spending(cost_usd=0.5)
    with pytest.raises(JudgeFault, match=r"may cost up to \$0.6; this evaluation has used \$0.5 of the \$1"):
        purse.reserve(0.6, spending)
    purse.reserve(0.6, Spending())


def test_a_ceiling_of_nothing_lets_nothing_through() -> None:
    with pytest.raises(JudgeFault):
        Purse(per_day_usd=0.0).reserve(0.000001, Spending())


def test_a_new_day_begins_at_nothing() -> None:
    calendar = Calendar()
    purse = Purse(per_day_usd=1.0, today=calendar)
    purse.reserve(1.0, Spending()).paid(1.0)
    with pytest.raises(JudgeFault):
        purse.reserve(0.1, Spending())
    calendar.day = "2026-11-22"
    purse.reserve(1.0, Spending())


def test_a_restart_does_not_begin_the_day_anew(tmp_path: Path) -> None:
    calendar = Calendar()
    path = tmp_path / "spending.json"
    for _ in range(2):
        ledger = FileLedger(path)
        purse = Purse(per_day_usd=1.0, ledger=ledger, today=calendar)
        purse.reserve(0.4, Spending()).paid(0.4)
        purse.close()
    purse = Purse(per_day_usd=1.0, ledger=FileLedger(path), today=calendar)
    with pytest.raises(JudgeFault, match=r"used up to \$0.8"):
        purse.reserve(0.4, Spending())
    calendar.day = "2026-11-22"
    purse.reserve(0.4, Spending())
    purse.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"day": 1}', '{"day": "2026-11-21", "usd": "x"}', "\0"])
def test_a_ledger_that_cannot_be_read_is_told_in_one_line(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "spending.json"
    path.write_text(text)
    ledger = FileLedger(path)
    assert ledger.spent("2026-11-21") == 0
    ledger.spent("2026-11-21")
    assert len(caplog.records) <= 1
    ledger.note("2026-11-21", 0.5)
    ledger.close()
    assert json.loads(path.read_text()) == {"day": "2026-11-21", "usd": 0.5}


def test_a_ledger_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = FileLedger(tmp_path / "missing" / "spending.json")
    ledger.note("2026-11-21", 0.5)
    ledger.close()
    assert len(caplog.records) == 1


def test_a_request_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with (
            wire(GOOD) as server,
            asking(server.base_url, model="dear", prices=DEAR, purse=Purse(per_call_usd=1.0)) as judge,
        ):
            problem = await fault(judge.asker().ask(question(max_tokens=100), Spending()))
            assert (problem.code, server.requests) == ("JUDGE_BUDGET_EXCEEDED", [])

    run(main())


def test_costs_are_counted_and_used_up() -> None:
    async def main() -> None:
        purse = Purse(per_day_usd=12.0)
        async with (
            wire(GOOD) as server,
            asking(server.base_url, model="dear", prices=DEAR, purse=purse) as judge,
        ):
            spending, code = Spending(), ""
            while len(server.requests) < 100:
                try:
                    await judge.asker().ask(question(max_tokens=1000), spending)
                except JudgeFault as problem:
                    code = problem.code
                    break
            assert code == "JUDGE_BUDGET_EXCEEDED"
            sent = len(server.requests)
            assert 1 < sent < 60
            assert spending.cost_usd == pytest.approx(sent * COST)
            assert spending.cost_usd <= 12.0
            assert judge.counted.costs == [pytest.approx(COST)] * sent

    run(main())


def test_many_requests_at_once_stay_below_the_ceiling_together() -> None:
    async def main() -> None:
        purse = Purse(per_day_usd=25.0)
        async with (
            wire(GOOD) as server,
            asking(server.base_url, model="dear", prices=DEAR, purse=purse) as judge,
        ):
            asked = [judge.asker().ask(question(max_tokens=1000), Spending()) for _ in range(8)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            refused = [one for one in found if isinstance(one, JudgeFault)]
            assert {one.code for one in refused} == {"JUDGE_BUDGET_EXCEEDED"}
            assert 0 < len(server.requests) == 8 - len(refused) < 8

    run(main())


def test_an_answer_that_never_came_may_have_cost_something() -> None:
    async def main() -> None:
        purse = Purse(per_call_usd=15.0)
        async with (
            wire(Answer(b"", "reset")) as server,
            asking(server.base_url, model="dear", prices=DEAR, purse=purse, attempts=4) as judge,
        ):
            spending = Spending()
            problem = await fault(judge.asker().ask(question(max_tokens=1000), spending))
            assert (problem.code, len(server.requests)) == ("JUDGE_BUDGET_EXCEEDED", 1)
            assert (spending.cost_usd, spending.reserved_usd > 10) == (None, True)

    run(main())


@pytest.mark.parametrize("purse", [Purse(per_call_usd=1.0), Purse(per_day_usd=1.0)], ids=["call", "day"])
def test_a_model_without_a_price_is_refused_when_there_is_a_ceiling(purse: Purse) -> None:
    async def main() -> None:
        async with wire(GOOD) as server, asking(server.base_url, purse=purse) as judge:
            judge.asker("gpt-4o")
            with pytest.raises(
                ValueError, match=r'price of model "mystery".*judges.default.prices."mystery"'
            ):
                judge.asker("mystery")

    run(main())
