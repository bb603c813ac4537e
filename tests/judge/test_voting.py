"""Panels and samples: strict majority, withheld votes, and no question more than is needed."""

import asyncio
from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from evald.result import Verdict
from evald.scope import SCOPE, Scope
from evald_server.engine.invoke import adjust
from evald_server.judge.prompt_request import JudgeError
from evald_server.judge.rubric_modes import Judgement
from evald_server.judge.voting import Decision, Vote, VoteCount, collect_votes, deciding_vote

from .scripted import TURN, Reply, ScriptedModels, criteria, fault, judge, judge_later, later, score

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR

YES, NO, DOWN = criteria(True), criteria(False), fault("JUDGE_UNAVAILABLE")


def vote(stand: bool | None, number: float = 0.5) -> Vote:
    if stand is None:
        return Vote(None, JudgeError("JUDGE_UNAVAILABLE", "down"), None)
    return Vote(Judgement(stand, number, "because"), None, None)


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        ([YES, YES, YES], PASSED),
        ([YES, YES, NO], PASSED),
        ([YES, NO, NO], FAILED),
        ([YES, NO], FAILED),
        ([YES, YES, NO, NO], FAILED),
        ([YES, YES, YES, NO], PASSED),
        ([YES, YES, DOWN], PASSED),
        ([NO, NO, DOWN], FAILED),
        ([YES, NO, DOWN], ERROR),
        ([YES, DOWN, DOWN], ERROR),
        ([NO, DOWN, DOWN], ERROR),
        ([YES, DOWN], ERROR),
        ([NO, DOWN], FAILED),
        ([DOWN, DOWN], ERROR),
        ([YES], PASSED),
        ([NO], FAILED),
        ([DOWN], ERROR),
    ],
    ids=lambda value: None if isinstance(value, Verdict) else f"{len(value)}",
)
def test_a_panel_decides_by_strict_majority_of_all_its_seats(replies: list[Reply], verdict: Verdict) -> None:
    names = {f"j{number}": [reply] for number, reply in enumerate(replies)}
    result = judge(ScriptedModels(**names), {"successCriteria": "s", "judges": list(names)})
    assert result.verdict is verdict
    assert (result.error is not None) is (verdict is ERROR)


@pytest.mark.parametrize("seats", range(1, 6))
def test_a_fault_never_changes_what_the_judges_would_have_said_to_another_verdict(seats: int) -> None:
    """Over all panels: whatever the withheld votes would have been, the verdict is the same or is none."""
    for stands in product((True, False, None), repeat=seats):
        said = VoteCount.of(seats, map(vote, stands)).decision
        assert said is not Decision.OPEN
        held = stands.count(None)
        could_be = set()
        for filled in product((True, False), repeat=held):
            rest = iter(filled)
            full = [next(rest) if stand is None else stand for stand in stands]
            more = 2 * sum(full) - seats
            could_be.add(Decision.PASSES if more > 0 else Decision.FAILS if more < 0 else Decision.TIED)
        if could_be == {Decision.FAILS, Decision.TIED}:
            could_be = {Decision.TIED}  # no pass, and none for who negates it
        assert said is (could_be.pop() if len(could_be) == 1 else Decision.UNDECIDABLE)


@pytest.mark.parametrize("seats", range(1, 6))
def test_the_vote_that_speaks_for_all_stands_as_the_majority_does(seats: int) -> None:
    for stands in product((True, False, None), repeat=seats):
        votes = [vote(stand, number / 10) for number, stand in enumerate(stands)]
        outcome = VoteCount.of(seats, votes).decision
        wanted = {Decision.PASSES: True, Decision.UNDECIDABLE: None}.get(outcome, False)
        assert deciding_vote(votes).passes is wanted


async def _asked(stands: Sequence[bool | None]) -> list[Vote]:
    async def ask(seat: int) -> Vote:
        return vote(stands[seat])

    votes = await collect_votes(len(stands), ask, all_at_once=False)
    return [one for one in votes if one is not None]


@pytest.mark.parametrize("seats", range(1, 8))
async def test_asking_stops_with_the_verdict_that_all_votes_would_give(seats: int) -> None:
    for stands in product((True, False, None), repeat=seats):
        given = await _asked(stands)
        assert VoteCount.of(seats, given).decision is VoteCount.of(seats, map(vote, stands)).decision


@pytest.mark.parametrize(
    ("seats", "to_pass", "to_fail"), [(1, 1, 1), (2, 2, 2), (3, 2, 2), (4, 3, 3), (5, 3, 3)]
)
def test_of_votes_that_agree_no_more_are_asked_for_than_decide(
    seats: int, to_pass: int, to_fail: int
) -> None:
    assert len(asyncio.run(_asked([True] * seats))) == to_pass
    assert len(asyncio.run(_asked([False] * seats))) == to_fail


@pytest.mark.parametrize(
    ("replies", "asked", "verdict"),
    [
        ([YES, YES, YES], 2, PASSED),
        ([NO, NO, NO], 2, FAILED),
        ([YES, NO, YES], 3, PASSED),
        ([NO, YES, NO], 3, FAILED),
        ([DOWN, YES, YES], 3, PASSED),
        ([DOWN, DOWN, YES], 2, ERROR),
    ],
)
def test_of_three_samples_the_third_is_taken_only_when_two_disagree(
    replies: list[Reply], asked: int, verdict: Verdict
) -> None:
    models = ScriptedModels(*replies)
    result = judge(models, {"successCriteria": "s", "samples": 3, "temperature": 1})
    assert result.verdict is verdict
    assert [question.sample for question in models.default.questions] == list(range(asked))
    assert result.token_usage is not None
    assert result.token_usage.input_tokens == 10 * asked


def test_who_is_no_longer_needed_is_cancelled_and_what_it_cost_so_far_is_counted() -> None:
    models = ScriptedModels(a=[YES], b=[YES], c=[later(60, NO)])
    result = judge(models, {"successCriteria": "s", "judges": ["a", "b", "c"]})
    assert result.verdict is PASSED
    assert models.by_name["c"].cancelled == 1
    assert result.metadata is not None
    assert [one["vote"] for one in result.metadata["judge"]["votes"]] == ["passed", "passed", "not needed"]
    assert result.metadata["judge"]["attempts"] == 3


def test_judges_are_asked_at_the_same_time() -> None:
    async def main() -> Verdict:
        gathered = asyncio.Barrier(3)

        async def meet() -> Reply:
            await gathered.wait()
            return YES

        models = ScriptedModels(**{name: [lambda _question: meet()] for name in "abc"})
        async with asyncio.timeout(5):
            config = {"successCriteria": "s", "judges": ["a", "b", "c"]}
            return (await judge_later(models, config, TURN.context)).verdict

    assert asyncio.run(main()) is PASSED


def test_the_score_reason_and_checks_are_those_of_the_judge_in_the_middle() -> None:
    models = ScriptedModels(a=[score(0.9, "high")], b=[score(0.2, "low")], c=[score(0.6, "middle")])
    result = judge(models, {"criteria": "c", "threshold": 0.5, "judges": ["a", "b", "c"]})
    # The third is needed, because the first two disagree.
    assert (result.verdict, result.score) == (PASSED, 0.6)
    assert result.reason == "middle (2 of 3 judges agree)"
    assert result.metadata is not None
    found = result.metadata["judge"]
    assert (found["endpoint"], found["agreement"]) == ("c", pytest.approx(2 / 3))
    assert [(one["endpoint"], one["vote"], one["score"]) for one in found["votes"]] == [
        ("a", "passed", 0.9),
        ("b", "failed", 0.2),
        ("c", "passed", 0.6),
    ]


@pytest.mark.parametrize(
    ("replies", "config", "votes", "agreement"),
    [
        ({"a": [YES], "b": [YES], "c": [DOWN]}, {}, ["passed", "passed", "withheld"], 1.0),
        ({"a": [YES, NO, YES]}, {"samples": 3}, ["passed", "failed", "passed"], 2 / 3),
        ({"a": [YES]}, {}, None, None),
    ],
)
def test_the_metadata_have_the_votes_of_many_and_how_many_of_those_cast_agree(
    replies: dict[str, list[Reply]], config: dict[str, Any], votes: list[str] | None, agreement: float | None
) -> None:
    # The judge that is down answers first: the others would decide without it.
    given = {
        name: [later(0.2, YES)] if "c" in replies and name != "c" else told for name, told in replies.items()
    }
    result = judge(ScriptedModels(**given), {"successCriteria": "s", "judges": list(replies), **config})
    assert result.metadata is not None
    found = result.metadata["judge"]
    assert [one["vote"] for one in found["votes"]] == votes if votes else "votes" not in found
    assert found.get("agreement") == (agreement and pytest.approx(agreement))


def test_an_even_panel_that_is_divided_fails_with_the_words_of_who_fails_it() -> None:
    models = ScriptedModels(a=[score(1, "good")], b=[score(0.1, "bad")])
    result = judge(models, {"criteria": "c", "judges": ["a", "b"]})
    reason = "bad (1 of 2 judges agree, a tie does not pass)"
    assert (result.verdict, result.score, result.reason) == (FAILED, 0.1, reason)


@pytest.mark.parametrize(
    ("replies", "config", "negated"),
    [
        pytest.param({"a": [YES], "b": [NO]}, {}, FAILED, id="two judges"),
        pytest.param(
            {"a": [NO], "b": [DOWN]}, {}, FAILED, id="a vote is missing that could have made it a tie"
        ),
        pytest.param({"a": [YES, NO]}, {"samples": 2}, FAILED, id="two samples"),
        pytest.param(
            {"a": [YES, NO], "b": [YES] * 2, "c": [NO] * 2}, {"samples": 2}, FAILED, id="a tied judge"
        ),
        pytest.param({"a": [YES, NO], "b": [NO] * 2, "c": [NO] * 2}, {"samples": 2}, PASSED, id="outvoted"),
        pytest.param({"a": [NO], "b": [NO]}, {}, PASSED, id="no tie"),
    ],
)
def test_a_tie_passes_neither_plain_nor_negated_nor_by_a_threshold(
    replies: dict[str, list[Reply]], config: dict[str, Any], negated: Verdict
) -> None:
    result = judge(ScriptedModels(**replies), {"successCriteria": "s", "judges": list(replies), **config})
    assert result.verdict is FAILED
    for threshold, negate, verdict in ((None, True, negated), (0.0, False, PASSED)):
        spec: Any = SimpleNamespace(threshold=threshold, negate=negate)
        assert adjust(spec, result).verdict is (FAILED if negated is FAILED else verdict)


def test_an_undecidable_panel_says_how_many_votes_are_missing_and_who_voted_how() -> None:
    models = ScriptedModels(a=[YES], b=[NO], c=[DOWN])
    result = judge(models, {"successCriteria": "s", "judges": ["a", "b", "c"]})
    assert result.error is not None
    assert result.error.code == "JUDGE_UNAVAILABLE"
    assert "1 of 3 judges gave no vote, which could have changed the decision" in result.error.message
    assert result.metadata is not None
    assert [one["vote"] for one in result.metadata["judge"]["votes"]] == ["passed", "failed", "withheld"]
    assert result.score is None
    assert result.cost_usd == pytest.approx(0.003)


def test_each_judge_votes_as_most_of_its_samples_do() -> None:
    models = ScriptedModels(a=[YES, NO, NO], b=[NO, YES, YES], c=[YES, YES])
    config = {"successCriteria": "s", "judges": ["a", "b", "c"], "samples": 3}
    result = judge(models, config)
    assert result.verdict is PASSED
    assert result.metadata is not None
    votes = [one["vote"] for one in result.metadata["judge"]["votes"]]
    assert votes[1:] == ["passed", "passed"]
    assert votes[0] in {"failed", "not needed"}  # its third sample and the others' last ones race


def test_every_judge_and_sample_has_its_own_temperature_and_number() -> None:
    models = ScriptedModels(a=[YES, NO, YES], b=[YES, NO, YES])
    judges = ["a", {"judge": "b", "temperature": 0.7}]
    judge(
        models,
        {"successCriteria": "s", "judges": judges, "samples": 3, "temperature": 0.2, "maxOutputTokens": 9},
    )
    for name, temperature in (("a", 0.2), ("b", 0.7)):
        questions = models.by_name[name].questions
        assert [question.sample for question in questions] == [0, 1, 2]
        assert {question.temperature for question in questions} == {temperature}
        assert {question.max_tokens for question in questions} == {9}
        assert len({question.user_message for question in questions}) == 3  # a nonce each


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"judges": ["a", "b", "c"]}, ["asked 1 of 3 judges", "asked 2 of 3 judges", "asked 3 of 3 judges"]),
        (
            {"judge": "a", "samples": 5},
            ["asked 1 of 5 samples", "asked 2 of 5 samples", "asked 3 of 5 samples"],
        ),
        ({"judge": "a"}, []),
    ],
    ids=["judges", "samples", "one"],
)
def test_the_caller_is_told_how_far_it_is(config: dict[str, Any], wanted: list[str]) -> None:
    told: list[str] = []

    async def main() -> None:
        turns = [asyncio.Event() for _ in range(4)]
        turns[0].set()

        def tell(message: str, fraction: float | None = None) -> None:
            told.append(message)
            turns[len(told)].set()

        async def in_turn(number: int, reply: Reply) -> Reply:
            await turns[number].wait()
            return reply

        def reply(number: int, says: Reply) -> Reply:
            return lambda _question: in_turn(number, says)

        samples = [reply(number, YES) for number in range(3)]
        models = ScriptedModels(a=samples, b=[reply(1, NO)], c=[reply(2, YES)])
        SCOPE.set(Scope(progress=tell))
        await judge_later(models, {"successCriteria": "s", **config}, TURN.context)

    asyncio.run(main())
    assert told == wanted
