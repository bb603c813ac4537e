"""When a run stops, and with which verdict."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from evald.context import EvaluatorContext
from evald.result import Kind, Result, Verdict, failed, measured, passed
from evald.v1.context_pb2 import EvaluatorContext as PbContext
from evald.v1.context_pb2 import Invocation, Persona, Scenario
from evald.v1.run_service_pb2 import RUN_STATUS_COMPLETED, RUN_STATUS_ERROR, RunTurn
from evald_server.engine.registry import Origin

from ..engine.scripted import definition
from ..judge.scripted import Reply, criteria, fault, score
from .fake_store import FakeStore
from .scripted import ScriptedAgent, Talker, engine, go_on, parts, play, queued, scenario

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

Spec = Mapping[str, Any]


def does(what: str, **more: Any) -> Spec:
    """A spec that does so on every turn."""
    return {"type": "scripted", "config": {"do": what}, **more}


def contains(text: str, **more: Any) -> Spec:
    """The answer contains a text."""
    return {"type": "contains", "config": {"text": text}, **more}


def judge(**config: Any) -> Spec:
    """Criteria in the list."""
    return {"type": "llm-judge", "config": config}


MET, UNMET = criteria(True, why="ok"), criteria(False, why="not yet")
FAILURE, BOTH = criteria(False, True, why="gave up"), criteria(True, True, why="both")
SUCCESS = {"successCriteria": "books"}
EITHER = {**SUCCESS, "failureCriteria": "gives up"}
EVERY_TURN = {"failureCriteriaMode": "every_turn"}
EVERY = {"failureCriteriaMode": "FAILURE_CRITERIA_MODE_EVERY_TURN"}
CONTINUE = {"onAssertionFailure": "ASSERTION_FAILURE_POLICY_CONTINUE"}


class Row(NamedTuple):
    """A run, and what comes of it. judge: its answers. reason: how the reason begins."""

    fields: Mapping[str, Any]
    verdict: Verdict
    turns: int
    reason: str
    evaluators: Sequence[Spec] = ()
    answers: Sequence[str] = ("one", "two", "three", "four", "five")
    judge: Sequence[Reply] = ()
    lines: int = 1000
    limit_reached: bool = False
    seeds: Sequence[Mapping[str, Any]] = ()


SIX = {"maxMessages": 6}

ROWS = {
    "success met": Row({**SIX, **SUCCESS}, PASSED, 1, "ok", judge=[MET]),
    "success met later": Row({**SIX, **SUCCESS}, PASSED, 2, "ok", judge=[UNMET, MET]),
    "success met with the last message": Row({"maxMessages": 2, **SUCCESS}, PASSED, 1, "ok", judge=[MET]),
    "limit without success": Row(
        {**SIX, **SUCCESS},
        FAILED,
        3,
        "Max messages (6) reached without meeting success criteria. not yet",
        judge=[UNMET],
        limit_reached=True,
    ),
    "failure every turn": Row(
        {**SIX, **EITHER, **EVERY}, FAILED, 1, "Failure criteria was triggered. gave up", judge=[FAILURE]
    ),
    "failure outranks success": Row(
        {**SIX, **EITHER, **EVERY}, FAILED, 1, "Failure criteria was triggered. both", judge=[BOTH]
    ),
    "failure counts at the limit only": Row({**SIX, **EITHER}, PASSED, 2, "ok", judge=[FAILURE, MET]),
    "failure met with success, which ends the run": Row(
        {**SIX, **EITHER}, FAILED, 2, "Failure criteria was triggered. both", judge=[UNMET, BOTH]
    ),
    "the same in the list, beside what waits for the end": Row(
        SIX,
        FAILED,
        2,
        "Failure criteria was triggered. both",
        [contains("two", when="final"), judge(**EITHER)],
        judge=[UNMET, BOTH],
    ),
    "success alone has no failure that counts": Row({**SIX, **SUCCESS}, PASSED, 1, "both", judge=[BOTH]),
    "failure at the limit": Row(
        {"maxMessages": 4, **EITHER},
        FAILED,
        2,
        "Failure criteria was triggered. gave up",
        judge=[UNMET, FAILURE],
        limit_reached=True,
    ),
    "only failure criteria, never met": Row(
        {"maxMessages": 4, "failureCriteria": "rude"},
        PASSED,
        2,
        "polite",
        judge=[criteria(False, why="polite")],
        limit_reached=True,
    ),
    "only failure criteria, met at the end": Row(
        {"maxMessages": 4, "failureCriteria": "rude"},
        FAILED,
        2,
        "Failure criteria was triggered. gave up",
        judge=[FAILURE],
        limit_reached=True,
    ),
    "only failure criteria, met on a turn": Row(
        {**SIX, "failureCriteria": "rude", **EVERY},
        FAILED,
        2,
        "Failure criteria was triggered. gave up",
        judge=[UNMET, FAILURE],
    ),
    "criteria in the list": Row(SIX, PASSED, 2, "ok", [judge(successCriteria="books")], judge=[UNMET, MET]),
    "two criteria in the list, met one after the other": Row(
        SIX,
        PASSED,
        2,
        "ok",
        [judge(successCriteria="books"), judge(successCriteria="pays")],
        judge=[MET, UNMET, MET],
    ),
    "failure on the last turn that would have ended it anywhere": Row(
        {"maxMessages": 2, **EITHER, **EVERY},
        FAILED,
        1,
        "Failure criteria was triggered. gave up",
        judge=[FAILURE],
    ),
    "criteria in the list, limit": Row(
        SIX,
        FAILED,
        3,
        "Max messages (6) reached without meeting success criteria. not yet",
        [judge(success_criteria="books")],
        judge=[UNMET],
        limit_reached=True,
    ),
    "criteria in the list, failure": Row(
        SIX,
        FAILED,
        1,
        "Failure criteria was triggered. gave up",
        [judge(successCriteria="books", failureCriteria="gives up", failureCriteriaMode="every_turn")],
        judge=[FAILURE],
    ),
    "criteria in the list, failure at the limit": Row(
        {"maxMessages": 2},
        FAILED,
        1,
        "Failure criteria was triggered. gave up",
        [judge(**EITHER, failureCriteriaMode="on_max_messages")],
        judge=[FAILURE],
        limit_reached=True,
    ),
    "negated criteria end nothing": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. ",
        [{**judge(successCriteria="books"), "negate": True}],
        judge=[UNMET],
        limit_reached=True,
    ),
    "criteria that count on any turn are judged once": Row(
        {**SIX, **EITHER}, PASSED, 1, "ok", judge=[MET, BOTH]
    ),
    "criteria in shadow end nothing": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. ",
        [{**judge(successCriteria="books"), "enforcement": "shadow"}, does("pass")],
        judge=[MET],
        limit_reached=True,
    ),
    "a judge that scores is an assertion": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. All evaluators passed.",
        [judge(criteria="polite")],
        judge=[{"score": 0.9, "hits": [], "misses": [], "reasoning": "fine"}],
        limit_reached=True,
    ),
    "evaluators only": Row(
        SIX, PASSED, 3, "Completed 6 messages. All evaluators passed.", [does("pass")], limit_reached=True
    ),
    "ten messages, unless told otherwise": Row(
        {}, PASSED, 5, "Completed 10 messages. All evaluators passed.", [does("pass")], limit_reached=True
    ),
    "metrics only": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. No assertion counted: 1 metric only.",
        [{"type": "response-length"}],
        limit_reached=True,
    ),
    "an assertion fails": Row(
        SIX,
        FAILED,
        2,
        "Evaluator assertion failed. ",
        [{"type": "contains", "config": {"text": "two"}, "negate": True}],
    ),
    "an assertion in shadow fails": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. ",
        [does("fail", enforcement="shadow"), does("pass")],
        limit_reached=True,
    ),
    "a pending assertion goes on": Row(
        SIX,
        FAILED,
        3,
        "Evaluator assertion failed. ",
        [{"type": "tool-use", "config": {"expectations": [{"name": "book"}]}}],
    ),
    "an assertion fails beside a pending one": Row(
        SIX,
        FAILED,
        1,
        "Evaluator assertion failed. failed",
        [{"type": "tool-use", "config": {"expectations": [{"name": "book"}]}}, does("fail")],
    ),
    "success met and an assertion failed": Row(
        {**SIX, **SUCCESS}, FAILED, 1, "Evaluator assertion failed. failed", [does("fail")], judge=[MET]
    ),
    "success met and an assertion pending": Row(
        {**SIX, **SUCCESS},
        FAILED,
        3,
        "Evaluator assertion failed. ",
        [{"type": "tool-use", "config": {"expectations": [{"name": "book"}]}}],
        judge=[MET],
    ),
    "go on after a failure": Row(
        {**SIX, **CONTINUE},
        FAILED,
        3,
        "Evaluator assertion failed. ",
        [{"type": "contains", "config": {"text": "two"}, "negate": True}],
        limit_reached=True,
    ),
    "go on after a failure of the first turn": Row(
        {**SIX, **CONTINUE},
        FAILED,
        3,
        "Evaluator assertion failed. ",
        [{"type": "contains", "config": {"text": "one"}, "negate": True}],
        limit_reached=True,
    ),
    "go on after a failure until the goal": Row(
        {**SIX, **SUCCESS, **CONTINUE},
        FAILED,
        2,
        "Evaluator assertion failed. ",
        [{"type": "contains", "config": {"text": "one"}, "negate": True}],
        judge=[MET],
    ),
    "evaluators only, by policy": Row(
        {**SIX, **SUCCESS, "criteriaPolicy": "CRITERIA_POLICY_EVALUATORS_ONLY"},
        PASSED,
        3,
        "Completed 6 messages. ",
        [does("pass")],
        limit_reached=True,
    ),
    "policy without evaluators": Row(
        {**SIX, **SUCCESS, "criteriaPolicy": "CRITERIA_POLICY_EVALUATORS_ONLY"}, PASSED, 1, "ok", judge=[MET]
    ),
    "the script ends without success": Row(
        {**SIX, **SUCCESS},
        FAILED,
        2,
        "The conversation ended after 4 messages without meeting success criteria. not yet",
        judge=[UNMET],
        lines=2,
    ),
    "the script ends": Row(
        SIX,
        PASSED,
        2,
        "The conversation ended after 4 messages. All evaluators passed.",
        [does("pass")],
        lines=2,
    ),
    "final only, at the limit": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. ",
        [contains("three", turn_policy="final")],
        limit_reached=True,
    ),
    "final only, when success ends it": Row(
        {**SIX, **SUCCESS},
        FAILED,
        1,
        "Evaluator assertion failed. ",
        [contains("three", turn_policy="final")],
        judge=[MET],
    ),
    "final only by config, when success ends it": Row(
        {**SIX, **SUCCESS},
        FAILED,
        1,
        "Evaluator assertion failed. ",
        [{"type": "json-schema", "config": {"schema": {"type": "object"}, "onlyFinal": True}}],
        judge=[MET],
    ),
    "a judge of the final turn alone, when success ends it": Row(
        {**SIX, **SUCCESS},
        FAILED,
        1,
        "Evaluator assertion failed. ",
        [judge(criteria="polite", onlyFinal=True)],
        judge=[MET, score(0.1)],
    ),
    "final only in a combinator, when success ends it": Row(
        {**SIX, **SUCCESS},
        FAILED,
        1,
        "Evaluator assertion failed. ",
        [
            {
                "type": "all-of",
                "config": {
                    "evaluators": [
                        does("pass"),
                        {
                            "type": "any-of",
                            "config": {"evaluators": [contains("three", turn_policy="final")]},
                        },
                    ]
                },
            }
        ],
        judge=[MET],
    ),
    "failure criteria at the end, when success ends it": Row(
        SIX,
        FAILED,
        1,
        "Failure criteria was triggered. both",
        [judge(successCriteria="books"), judge(failureCriteria="rude")],
        judge=[MET, BOTH],
    ),
    "all skipped": Row(SIX, SKIPPED, 3, "All assertions were skipped", [does("skip")], limit_reached=True),
    "the agent's greeting needs the user": Row(
        SIX,
        PASSED,
        2,
        "Completed 6 messages. ",
        [does("pass")],
        seeds=[{"role": "assistant", "content": "Hello!"}],
        limit_reached=True,
    ),
    "the scenario greets and asks": Row(
        {"maxMessages": 3},
        PASSED,
        1,
        "Completed 3 messages. ",
        [does("pass")],
        seeds=[{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Hi"}],
        limit_reached=True,
    ),
    "the scenario alone asks": Row(
        SIX,
        PASSED,
        1,
        "The conversation ended after 2 messages. ",
        [does("pass")],
        seeds=[{"role": "user", "content": "Hello?"}],
        lines=0,
    ),
    "the scenario asks first": Row(
        SIX,
        PASSED,
        3,
        "Completed 6 messages. ",
        [does("pass")],
        seeds=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "Hello?"}],
        limit_reached=True,
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_run_ends_as_the_rules_say(row: Row) -> None:
    made = scenario(row.evaluators, row.seeds, **row.fields)
    run = await play(made, ScriptedAgent(*row.answers), Talker(row.lines), *row.judge)
    assert (Verdict(run.verdict), run.turn_count) == (row.verdict, row.turns), run
    assert run.status == RUN_STATUS_COMPLETED
    assert run.result.reason.startswith(row.reason), run.result.reason
    assert run.result.success is (row.verdict is PASSED)
    assert run.output.max_messages_reached is row.limit_reached
    assert [turn.is_final for turn in run.turns] == [False] * (row.turns - 1) + [True]
    assert not any(result.pending for result in run.turns[-1].evaluation.results)
    assert all(run.messages[turn.first_message].role == "user" for turn in run.turns)
    last = run.turns[-1].evaluation
    assert (run.result.HasField("score"), run.result.score) == (last.HasField("score"), last.score)
    assert list(run.output.evaluator_results) == list(run.turns[-1].evaluation.results)
    assert run.output.message_count == sum(m.role in ("user", "assistant") for m in run.messages)


@pytest.mark.parametrize("mode", ["list", "fields"])
async def test_criteria_end_a_run_at_the_same_turn_wherever_they_are_written(mode: str) -> None:
    given: Any = {"success_criteria": "books", "failure_criteria": "gives up"}
    made = scenario([judge(**given)], maxMessages=8) if mode == "list" else scenario(maxMessages=8, **given)
    run = await play(made, None, None, UNMET, FAILURE, MET)
    assert (run.turn_count, Verdict(run.verdict), run.result.reason) == (3, PASSED, "ok")
    assert run.output.evaluation.success_met
    assert run.output.evaluation.confidence == pytest.approx(0.9)


async def test_criteria_that_are_null_are_none() -> None:
    made = scenario([judge(successCriteria=None, failureCriteria="is rude", **EVERY_TURN)], maxMessages=6)
    run = await play(made, None, None, UNMET)
    assert (run.turn_count, Verdict(run.verdict)) == (3, PASSED)


async def test_the_user_has_the_last_word_where_the_limit_leaves_room_for_it() -> None:
    made = scenario([does("pass")], maxMessages=3)
    run = await play(made)
    assert [message.role for message in run.messages] == ["user", "assistant", "user"]
    assert run.turns[0].is_final
    assert run.output.max_messages_reached


async def test_an_agent_that_pauses_at_its_tools_goes_on_in_the_same_turn() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "find", "args": {}, "id": "1"}]}
    agent = ScriptedAgent(
        [call], [{"role": "tool", "content": "[]", "tool_call_id": "1"}], "none", pauses=True
    )
    run = await play(scenario([{"type": "tool-call-count"}], maxMessages=9), agent, Talker(1))
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.turn_count == 1
    assert [request.turn for request in agent.requests] == [1, 1, 1]
    assert run.turns[0].latency.ToMilliseconds() == 15
    assert run.turns[0].evaluation.metrics["tool-call-count"] == 1
    assert len({request.request_id for request in agent.requests}) == 3


WHOLE_ANSWERS: dict[str, list[dict[str, Any]]] = {
    "a call": [{"role": "assistant", "tool_calls": [{"name": "find", "args": {}, "id": "1"}]}],
    "two calls": [
        {"role": "assistant", "tool_calls": [{"name": "find", "args": {}, "id": "1"}]},
        {"role": "assistant", "tool_calls": [{"name": "look", "args": {}, "id": "2"}]},
    ],
    "a call and its result": [
        {"role": "assistant", "tool_calls": [{"name": "find", "args": {}, "id": "1"}]},
        {"role": "tool", "content": "[]", "tool_call_id": "1"},
    ],
}


@pytest.mark.parametrize("answer", WHOLE_ANSWERS.values(), ids=WHOLE_ANSWERS)
async def test_an_answer_that_ends_with_tool_calls_is_whole_where_the_agent_does_not_pause(
    answer: Any,
) -> None:
    agent = ScriptedAgent(answer)
    run = await play(scenario([{"type": "tool-call-count"}], maxMessages=9), agent, Talker(2))
    assert [request.turn for request in agent.requests] == [1, 2]
    assert [turn.message_count for turn in run.turns] == [1 + len(answer)] * 2
    assert {turn.evaluation.metrics["tool-call-count"] for turn in run.turns} == {
        sum("tool_calls" in message for message in answer)
    }


async def test_only_what_waits_for_the_last_turn_is_evaluated_again_when_success_makes_it_the_last() -> None:
    evaluated = []

    def once(ctx: EvaluatorContext) -> Result:
        evaluated.append((ctx.turn, ctx.is_final))
        return passed("fine")

    made = scenario([{"type": "once"}, contains("one", when="final")], **SIX, **SUCCESS)
    run = await play(made, ScriptedAgent("one"), Talker(), MET, definitions=[definition("once", once)])
    assert (Verdict(run.verdict), evaluated) == (PASSED, [(1, False)])


async def test_evaluators_see_no_headers_and_nothing_else_that_only_the_run_uses() -> None:
    seen = []

    def look(ctx: EvaluatorContext) -> Result:
        seen.append(PbContext.FromString(ctx.serialized()))
        return passed("fine")

    made = scenario([{"type": "look"}], maxMessages=2, goal="a slot", id="s1", instructions="book")
    persona = Persona(name="Ann", description="calm", headers={"x-user": "hush"}, judge="j", script=["hi"])
    await play(made, None, Talker(), persona=persona, definitions=[definition("look", look)])
    (context,) = seen
    assert context.persona == Persona(name="Ann", description="calm")
    assert context.scenario == Scenario(name="booking", instructions="book", max_messages=2)


async def test_what_waits_for_the_last_turn_is_evaluated_once() -> None:
    evaluated = []

    def once(ctx: EvaluatorContext) -> Result:
        evaluated.append((ctx.turn, ctx.is_final))
        return passed("fine")

    agent = ScriptedAgent()
    made = scenario([{"type": "once", "when": "final"}], maxMessages=4)
    await play(made, agent, Talker(), definitions=[definition("once", once)])
    assert evaluated == [(2, True)]
    assert [request.turn for request in agent.requests] == [1, 2]


CALL: Any = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "find"}}]}
IN, OUT = {"input_tokens": 3}, {"output_tokens": 1}
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "both say all": (
        {"token_usage": {**IN, **OUT}, "cost": {"currency_code": "USD", "amount": 0.25}},
        {"token_usage": {**IN, **OUT}, "cost": {"currency_code": "USD", "amount": 0.5}},
        {
            "token_usage": {"input_tokens": 6, "output_tokens": 2},
            "cost": {"currency_code": "USD", "amount": 0.75},
        },
    ),
    "the second lacks tokens": ({"token_usage": IN}, {}, {}),
    "the first lacks tokens": ({}, {"token_usage": IN}, {}),
    "the second lacks some tokens": (
        {"token_usage": {**IN, **OUT}},
        {"token_usage": IN},
        {"token_usage": {"input_tokens": 6}},
    ),
    "the second lacks its cost": ({"cost": {"currency_code": "USD", "amount": 0.25}}, {}, {}),
    "the first lacks its cost": ({}, {"cost": {"currency_code": "USD", "amount": 0.25}}, {}),
    "both say how long": (
        {"latency": {"nanos": 3}, "time_to_first_token": {"nanos": 1}},
        {"latency": {"nanos": 4}, "time_to_first_token": {"nanos": 2}},
        {"latency": {"nanos": 7}, "time_to_first_token": {"nanos": 1}},
    ),
    "the second lacks its time": ({"latency": {"nanos": 3}}, {}, {}),
    "the first lacks its times": ({}, {"latency": {"nanos": 3}, "time_to_first_token": {"nanos": 1}}, {}),
}


@pytest.mark.parametrize("row", CALLS.values(), ids=CALLS)
async def test_what_one_of_a_turn_s_calls_does_not_report_is_not_known(row: Any) -> None:
    first, second, whole = row
    agent = ScriptedAgent(
        Invocation(messages=[CALL], **first),
        Invocation(messages=[{"role": "assistant", "text": "found"}], **second),
        pauses=True,
    )
    run = await play(scenario([{"type": "tool-call-count"}], maxMessages=3), agent)
    (turn,), expected = run.turns, RunTurn(**whole)
    for name in ("token_usage", "cost", "latency", "time_to_first_token"):
        assert turn.HasField(name) is expected.HasField(name), name
        assert getattr(turn, name) == getattr(expected, name)
    for name in ("input_tokens", "output_tokens"):  # of the run: what was spent at least
        said = [call["token_usage"][name] for call in (first, second) if name in call.get("token_usage", {})]
        assert (run.token_usage.HasField(name), getattr(run.token_usage, name)) == (bool(said), sum(said))
    costs = [call["cost"]["amount"] for call in (first, second) if "cost" in call]
    assert (run.HasField("cost"), run.cost.amount) == (bool(costs), sum(costs))
    assert run.cost.currency_code == ("USD" if costs else "")


async def test_an_agent_that_never_stops_calling_tools_ends_at_the_limit() -> None:
    agent = ScriptedAgent([{"role": "tool", "content": "[]", "tool_call_id": "1"}], pauses=True)
    run = await play(scenario([{"type": "tool-call-count"}], maxMessages=4), agent)
    assert len(agent.requests) <= 16
    assert run.output.max_messages_reached


FAULTS = {
    "unjudged": ({**SIX, **SUCCESS}, [], [fault("JUDGE_UNAVAILABLE")], "JUDGE_UNAVAILABLE", 1),
    "broken": (SIX, [does("error")], [], "REMOTE_UNAVAILABLE", 1),
    "raised": (SIX, [does("raise")], [], "EVALUATOR_EXCEPTION", 1),
    "broken once, required, though it may fail open": (
        SIX,
        [{**judge(criteria="polite"), "error_policy": "fail_open", "required": True}, does("pass")],
        [fault("JUDGE_UNAVAILABLE"), {"score": 1, "hits": [], "misses": [], "reasoning": "fine"}],
        "JUDGE_UNAVAILABLE",
        1,
    ),
    "broken beside success": ({**SIX, **SUCCESS}, [does("error")], [MET], "REMOTE_UNAVAILABLE", 1),
    "broken beside what is not met yet": (
        {**SIX, **SUCCESS},
        [does("error")],
        [UNMET],
        "REMOTE_UNAVAILABLE",
        1,
    ),
    "broken beside what waits for the end": (
        SIX,
        [does("error"), contains("three", turn_policy="final")],
        [],
        "REMOTE_UNAVAILABLE",
        1,
    ),
    "broken at the end": (SIX, [does("error", turn_policy="final")], [], "REMOTE_UNAVAILABLE", 3),
    "broken at the end that success makes": (
        {**SIX, **SUCCESS},
        [does("error", turn_policy="final")],
        [MET],
        "REMOTE_UNAVAILABLE",
        1,
    ),
    "broken once, and gone on": (
        {**SIX, **SUCCESS, **CONTINUE},
        [],
        [fault("JUDGE_UNAVAILABLE"), MET],
        "JUDGE_UNAVAILABLE",
        2,
    ),
    "broken on the first of three turns, and gone on": (
        {**SIX, **SUCCESS, **CONTINUE},
        [],
        [fault("JUDGE_UNAVAILABLE"), UNMET, MET],
        "JUDGE_UNAVAILABLE",
        3,
    ),
    "broken beside success, and gone on": (
        {**SIX, **SUCCESS, **CONTINUE},
        [does("error")],
        [MET] * 3,
        "REMOTE_UNAVAILABLE",
        3,
    ),
    "failure met with success, and the judge is gone when it counts": (
        {**SIX, **EITHER},
        [],
        [BOTH, fault("JUDGE_UNAVAILABLE")],
        "JUDGE_UNAVAILABLE",
        1,
    ),
    "the same with a judge that may fail open": (
        SIX,
        [{**judge(**EITHER), "error_policy": "fail_open"}, does("pass")],
        [BOTH, fault("JUDGE_UNAVAILABLE")],
        "JUDGE_UNAVAILABLE",
        1,
    ),
    "criteria fail open, to the limit": (
        {"maxMessages": 2},
        [{**judge(successCriteria="books"), "error_policy": "fail_open"}, does("pass")],
        [fault("JUDGE_UNAVAILABLE")],
        "JUDGE_UNAVAILABLE",
        1,
    ),
}


@pytest.mark.parametrize("row", FAULTS.values(), ids=FAULTS)
async def test_a_fault_of_an_evaluator_is_neither_passed_nor_failed(row: Any) -> None:
    fields, evaluators, replies, code, turns = row
    run = await play(scenario(evaluators, **fields), ScriptedAgent("one", "two", "three"), Talker(), *replies)
    assert (run.status, Verdict(run.verdict)) == (RUN_STATUS_ERROR, ERROR), run
    assert run.error.code == code
    assert run.error.message
    assert not run.HasField("result")
    assert run.turn_count == turns


async def test_an_assertion_that_becomes_a_metric_meanwhile_passes_no_run() -> None:
    def swap(_ctx: EvaluatorContext) -> Result:
        made.registry.remove("strict")  # type: ignore[attr-defined]
        made.registry.register(  # type: ignore[attr-defined]
            definition("strict", lambda _ctx: measured(1), Kind.METRIC), Origin.PLUGIN
        )
        return passed("swapped")

    strict = definition("strict", lambda _ctx: failed("no"))
    made = engine(MET, definitions=[strict, definition("swap", swap)])
    run = queued(scenario([{"type": "swap"}, {"type": "strict", "when": "final"}], **SIX, **SUCCESS))
    store = FakeStore()
    await store.create([run])
    ended = await go_on(store, run.id, ScriptedAgent("one"), Talker(), parts(made))
    assert (ended.status, ended.error.code) == (RUN_STATUS_ERROR, "INVALID_SCENARIO"), ended
    assert "its type is a metric now" in ended.error.message


async def test_what_failed_beside_a_fault_has_failed() -> None:
    run = await play(scenario([does("error"), does("fail")], maxMessages=6))
    assert (run.status, Verdict(run.verdict)) == (RUN_STATUS_COMPLETED, FAILED)


async def test_a_fault_of_a_metric_or_in_shadow_changes_nothing() -> None:
    specs = [
        {"type": "gauge", "config": {"do": "error"}},
        does("error", enforcement="shadow"),
        does("error", error_policy="fail_open"),
        does("pass"),
    ]
    run = await play(scenario(specs, maxMessages=2))
    assert (run.status, Verdict(run.verdict)) == (RUN_STATUS_COMPLETED, PASSED)
    assert len(run.turns[-1].evaluation.warnings) == 3
