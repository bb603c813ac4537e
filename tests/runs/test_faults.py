"""No fault turns red into green, or anything into red: every fault in every place of a run."""

from collections.abc import Sequence
from typing import Any

import pytest

from evald.result import Verdict
from evald.v1.context_pb2 import Invocation, Persona
from evald.v1.run_service_pb2 import RUN_STATUS_ERROR
from evald_server.connectors.connector import ConnectorFailure
from evald_server.judge.prompt_request import JudgeError
from evald_server.runs.loop import RunFailure
from evald_server.runs.simulator import SimulatedPersona

from ..engine.scripted import definition, outcome
from ..judge.scripted import Reply, ScriptedModels, criteria, fault
from .scripted import Answer, ScriptedAgent, Talker, invocation, play, scenario

PASSES = [{"type": "scripted", "config": {"do": "pass"}}]
FAILS_AT_THE_END = [{"type": "scripted", "config": {"do": "fail"}, "turn_policy": "final"}]
UNMET = criteria(False)


def _odd(name: str) -> Invocation:
    """An answer that says something impossible."""
    made = invocation("fine")
    match name:
        case "latency":
            made.latency.seconds = -1
        case "cost":
            made.cost.amount = float("nan")
        case "euro":
            made.cost.amount, made.cost.currency_code = 1.0, "EUR"
        case "tokens":
            made.token_usage.output_tokens = -5
        case "nothing":
            made.ClearField("messages")
        case "user":
            made.messages.add(role="user", text="I am happy, stop here")
        case "json":
            made.ClearField("messages")
            made.messages_json = '{"no": "messages"}'
        case "blocks":
            made.messages[0].blocks.items.add(type="note", text="that no check of texts would read")
    return made


AGENTS: dict[str, Answer] = {
    **{
        code: ConnectorFailure(code, "as told")  # type: ignore[arg-type]
        for code in (
            "CONNECTOR_UNAVAILABLE",
            "CONNECTOR_TIMEOUT",
            "CONNECTOR_REFUSED",
            "CONNECTOR_BAD_ANSWER",
            "CONNECTOR_CONFIG",
        )
    },
    **{
        name: _odd(name)
        for name in ("latency", "cost", "euro", "tokens", "nothing", "user", "json", "blocks")
    },
}

# What would have come of the run without the fault: everything is asked of it.
KINDS: dict[str, tuple[dict[str, Any], Sequence[Any], Sequence[Reply]]] = {
    "would pass": ({}, PASSES, []),
    "would fail": ({}, FAILS_AT_THE_END, []),
    "criteria": ({"successCriteria": "books"}, [], [UNMET]),
    "would go on": ({"onAssertionFailure": "ASSERTION_FAILURE_POLICY_CONTINUE"}, PASSES, []),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("name", AGENTS)
async def test_a_fault_of_the_agent_ends_the_run_without_a_verdict(name: str, turn: int, kind: str) -> None:
    fields, evaluators, replies = KINDS[kind]
    agent = ScriptedAgent(*["fine"] * (turn - 1), AGENTS[name])
    run = await play(scenario(evaluators, maxMessages=6, **fields), agent, Talker(), *replies)
    _is_error(run, name if name in ("CONNECTOR_TIMEOUT", "CONNECTOR_CONFIG") else "CONNECTOR_")
    assert run.turn_count == turn - 1
    assert len(run.turns) == turn - 1
    assert len(run.messages) == 2 * turn - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("immediate", [False, True])
async def test_a_fault_of_the_user_ends_the_run_without_a_verdict(
    immediate: bool, turn: int, kind: str
) -> None:
    fields, evaluators, replies = KINDS[kind]
    user = Talker(immediate=immediate, problem=RunFailure("JUDGE_REFUSED", "no"), fails_at=turn - 1)
    run = await play(scenario(evaluators, maxMessages=6, **fields), ScriptedAgent(), user, *replies)
    _is_error(run, "JUDGE_REFUSED")
    assert run.turn_count == len(run.turns) == turn - 1


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("beside", ["pass", "skip", "pending"])
@pytest.mark.parametrize("how", ["error", "raise", "nan", "nonsense"])
async def test_a_fault_of_an_evaluator_ends_the_run_without_a_verdict(
    how: str, beside: str, turn: int
) -> None:
    def breaks(ctx: Any) -> Any:
        return outcome({"do": how if ctx.turn == turn else "pass"})

    config = {"do": "fail", "pending": True} if beside == "pending" else {"do": beside}
    run = await play(
        scenario([{"type": "breaks"}, {"type": "scripted", "config": config}], maxMessages=8),
        ScriptedAgent(),
        Talker(),
        definitions=[definition("breaks", breaks)],
    )
    _is_error(run, "")
    assert run.turn_count == turn


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize(
    "mode", ["FAILURE_CRITERIA_MODE_EVERY_TURN", "FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES"]
)
@pytest.mark.parametrize(
    "reply",
    [
        "not json",
        {"successMet": "yes"},
        fault("JUDGE_RATE_LIMITED"),
        fault("JUDGE_TRUNCATED", unusable=True),
        fault("JUDGE_BUDGET_EXCEEDED"),
    ],
    ids=["prose", "mistyped", "limited", "truncated", "budget"],
)
async def test_a_fault_of_the_judge_ends_the_run_without_a_verdict(reply: Any, mode: str, turn: int) -> None:
    made = scenario(maxMessages=6, successCriteria="books", failureCriteria="rude", failureCriteriaMode=mode)
    run = await play(made, ScriptedAgent(), Talker(), *[UNMET] * (turn - 1), reply)
    _is_error(run, "JUDGE_")
    assert run.turn_count == turn


UNPLAYABLE = {
    "nothing asked": ({}, [], "INVALID_SCENARIO", "evaluated: evaluators: empty"),
    "unknown type": ({}, [{"type": "regexp"}], "INVALID_SCENARIO", "regex"),
    "bad config": ({}, [{"type": "regex", "config": {"pattern": "("}}], "INVALID_SCENARIO", "pattern"),
    "a user without a word": (
        {},
        PASSES,
        "INVALID_SCENARIO",
        "There is no user message to send to the agent",
    ),
    "no room": ({"maxMessages": 1}, PASSES, "INVALID_SCENARIO", "wanted at least 2"),
}


@pytest.mark.parametrize("row", UNPLAYABLE.values(), ids=UNPLAYABLE)
async def test_a_scenario_that_cannot_be_played_is_an_error(row: Any) -> None:
    fields, evaluators, code, words = row
    agent = ScriptedAgent()
    user = Talker(0 if "no user message" in words else 1000)
    run = await play(scenario(evaluators, **fields), agent, user)
    _is_error(run, code)
    assert words in run.error.message
    assert not agent.requests


SIMULATED = {
    "refuses": (fault("JUDGE_REFUSED", unusable=True), "JUDGE_REFUSED"),
    "limited": (fault("JUDGE_RATE_LIMITED"), "JUDGE_RATE_LIMITED"),
    "too dear": (JudgeError("JUDGE_BUDGET_EXCEEDED", "used up"), "JUDGE_BUDGET_EXCEEDED"),
}


@pytest.mark.parametrize("row", SIMULATED.values(), ids=SIMULATED)
async def test_a_model_that_cannot_play_the_user_is_an_error(row: Any) -> None:
    reply, code = row
    made = scenario(PASSES, maxMessages=6)
    run = await play(made, None, SimulatedPersona(made, None, ScriptedModels("Hello", reply)))
    _is_error(run, code)
    assert run.turn_count == 1


async def test_without_a_model_the_user_cannot_be_simulated() -> None:
    made = scenario(PASSES, maxMessages=6)
    run = await play(made, None, SimulatedPersona(made, Persona(judge="other"), ScriptedModels("Hello")))
    _is_error(run, "JUDGE_UNAVAILABLE")
    assert 'no judge "other"' in run.error.message


async def test_a_text_that_nobody_can_read_is_no_message() -> None:
    made = scenario(PASSES, maxMessages=6)
    made.messages.add(role="user").blocks.items.add(type="note", text="hi")
    _is_error(await play(made), "INVALID_SCENARIO")


@pytest.mark.parametrize("whose", ["agent", "scenario"])
async def test_a_call_that_nobody_can_read_leaves_checks_of_tools_without_a_verdict(whose: str) -> None:
    never = {"expectations": [{"name": "book", "maxCalls": 0}]}
    made = scenario([{"type": "tool-use", "config": never}], maxMessages=6)
    answer = invocation("fine")
    unread = made.messages.add(role="user") if whose == "scenario" else answer.messages[0]
    unread.blocks.items.add(type="text", text="Hello")
    unread.blocks.items.add(type="tool-call")
    run = await play(made, ScriptedAgent(answer))
    _is_error(run, "")
    assert run.turns[0].evaluation.results[0].error.code == "UNREADABLE_CONTENT"


def _is_error(run: Any, code: str) -> None:
    assert (run.status, Verdict(run.verdict)) == (RUN_STATUS_ERROR, Verdict.ERROR), run
    assert run.error.code.startswith(code)
    assert run.error.code
    assert run.error.message
    assert not run.HasField("result")
    assert run.HasField("complete_time")
