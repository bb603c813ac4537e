"""Cases of a suite: what their trials say of them, and that no fault makes them better."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald.context import EvaluatorContext
from evald.result import Kind, errored, failed, measured, passed
from evald.scope import Scope
from evald.threads import Threads
from evald.v1.context_pb2 import EvaluatorContext as PbContext
from evald.v1.evaluation_service_pb2 import EvaluateOptions
from evald.v1.evaluator_pb2 import EvaluatorSpec
from evald.v1.suite_service_pb2 import CaseResult, SuiteOpen, SuiteRun
from evald_server import wire_pb2
from evald_server.connectors.connector import ConnectorFailure
from evald_server.engine.contexts import Contexts
from evald_server.engine.engine import Engine
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.rpc.admission import Admission
from evald_server.runs.case_checks import case_problem
from evald_server.runs.suite import CaseRun, SuiteSetup
from evald_server.suites.verdicts import SuiteTotals

from ..engine.scripted import SCRIPTED, definition
from .scripted import Answer, ScriptedAgent, invocation

PASSED, FAILED, ERROR = 1, 2, 3


def _judge(ctx: EvaluatorContext) -> Any:
    match ctx.answer:
        case "good":
            return passed("good")
        case "bad":
            return failed("bad")
        case "half":
            return failed("half", 0.5)
        case "broken":
            return errored("REMOTE_UNAVAILABLE", "broken")
    raise RuntimeError("secret-7f3a")


async def _slow_judge(ctx: EvaluatorContext) -> Any:
    await asyncio.sleep(0)
    return _judge(ctx)


JUDGE = SCRIPTED._replace(type="judge", compile=lambda _config: _judge)
SLOW = SCRIPTED._replace(type="slow", compile=lambda _config: _slow_judge, inline=False)


class Bench:
    """Runs cases without a server."""

    def __init__(self, agent: ScriptedAgent | None = None, evaluator: str = "judge", **opened: Any) -> None:
        self.registry = Registry()
        for one in (JUDGE, SLOW):
            self.registry.register(one, Origin.PLUGIN)
        self.engine = Engine(Planner(self.registry), Contexts(50), Threads())
        first = SuiteOpen(suite="s", **opened)
        specs = (EvaluatorSpec(type=evaluator).SerializeToString(),)
        self.evaluations = 0
        self.setup = SuiteSetup(
            "run",
            first,
            specs,
            first.options.SerializeToString(),
            self.engine,
            self._note,
            connector=agent,
            admission=Admission(16, 16, 5.0),
            scope=Scope(),
            next_slice=lambda: asyncio.sleep(0),
        )

    def _note(self, _run: Any) -> None:
        self.evaluations += 1

    async def play(self, case: wire_pb2.SuiteCase) -> CaseResult:
        """Run a case."""
        run = CaseRun(case, self.setup, case.ByteSize())
        for trial in run.trials():
            if not trial.play():
                await trial.play_on()
        run.decide()
        return run.result


def a_case(trials: Sequence[Sequence[str]] = (), turns: int = 1, **fields: Any) -> wire_pb2.SuiteCase:
    """A case with recorded trials, each with the answers of its turns."""
    case = wire_pb2.SuiteCase(case_id="case", **fields)
    for turn in range(turns):
        case.turns.add().input.add(role="user", text=f"question {turn + 1}")
    for answers in trials:
        trial = case.recorded_trials.add()
        for text in answers:
            one = trial.answers.add()
            if text == "refused":
                one.token_usage.input_tokens = -1
            one.messages.add(role="assistant", text=text)
    return case


async def test_an_agent_that_pauses_goes_on_after_a_mere_tool_call() -> None:
    call = [
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]}
    ]
    agent = ScriptedAgent(call, "good", call, "good", pauses=True)
    result = await Bench(agent).play(a_case(turns=2))
    [trial] = result.trials
    assert result.verdict == PASSED
    assert [message.role for message in trial.messages] == ["user", "assistant", "assistant"] * 2
    assert [turn.latency.ToMilliseconds() for turn in trial.turns] == [10, 10]
    assert len({request.thread_id for request in agent.requests}) == 1
    assert len({request.request_id for request in agent.requests}) == 4
    assert [request.turn for request in agent.requests] == [1, 1, 2, 2]
    endless = ScriptedAgent(call, pauses=True)
    assert (await Bench(endless).play(a_case())).trials[0].turns[0].message_count == 11
    assert len(endless.requests) == 10


async def test_a_turn_of_several_calls_is_seen_once_with_the_time_since_the_trial_began() -> None:
    seen = []

    def see(ctx: EvaluatorContext) -> Any:
        seen.append(PbContext.FromString(ctx.serialized()))
        return passed("seen")

    call = [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look"}}]}]
    bench = Bench(ScriptedAgent("hello", call, "good", pauses=True), "see")
    bench.registry.register(definition("see", see), Origin.PLUGIN)
    began = time.monotonic_ns()
    assert (await bench.play(a_case(turns=2))).verdict == PASSED
    ended = time.monotonic_ns()
    (last,) = seen
    assert [said.text for said in last.last_invocation.messages] == ["", "good"]
    assert 0 < last.run_duration.ToNanoseconds() <= ended - began


async def test_every_trial_is_a_conversation_of_its_own() -> None:
    agent = ScriptedAgent()
    bench = Bench(agent, trials=3)
    result = await bench.play(a_case())
    assert len({request.thread_id for request in agent.requests}) == 3
    assert [trial.trial for trial in result.trials] == [1, 2, 3]
    assert (await bench.play(a_case(trials=[["good"]]))).verdict == PASSED
    assert len(agent.requests) == 3


ODD_ANSWERS: dict[str, tuple[Answer, str]] = {
    "empty": ([], "empty, wanted at least one"),
    "user": ([{"role": "user", "content": "me"}], 'got a message of role "user"'),
    "many": ([{"role": "assistant", "content": "x"}] * 51, "wanted at most 50"),
    "gone": (ConnectorFailure("CONNECTOR_TIMEOUT", "too slow"), "CONNECTOR_TIMEOUT: too slow"),
}


@pytest.mark.parametrize(("answer", "why"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_an_answer_that_cannot_be_used_is_an_error(answer: Answer, why: str) -> None:
    result = await Bench(ScriptedAgent(answer)).play(a_case())
    [trial] = result.trials
    assert (result.verdict, trial.verdict) == (ERROR, ERROR)
    assert trial.error.code.startswith("CONNECTOR_")
    assert why in trial.reason
    assert [message.text for message in trial.messages] == ["question 1"]


async def test_an_agent_that_fills_the_memory_is_stopped() -> None:
    agent = ScriptedAgent("x" * (17 << 20))
    result = await Bench(agent, trials=1).play(a_case(turns=4))
    assert len(agent.requests) == 2
    assert result.verdict == ERROR
    assert result.trials[0].error.code == "CONNECTOR_BAD_ANSWER"
    assert "wanted at most 33554432" in result.trials[0].error.message


async def test_a_bug_of_a_connector_is_an_error_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    result = await Bench(ScriptedAgent(RuntimeError("secret-7f3a"))).play(a_case())
    assert result.trials[0].error.code == "INTERNAL"
    assert "secret-7f3a" not in str(result)
    assert "secret-7f3a" in caplog.text


async def test_a_type_that_has_gone_is_an_error() -> None:
    bench = Bench()
    bench.registry.remove("judge")
    result = await bench.play(a_case(trials=[["good"]]))
    assert result.verdict == ERROR
    assert "The turn cannot be evaluated" in result.reason


async def test_an_assertion_that_becomes_a_metric_meanwhile_passes_no_case() -> None:
    bench = Bench()
    assert (await bench.play(a_case(trials=[["bad"]]))).verdict == FAILED
    bench.registry.remove("judge")
    bench.registry.register(definition("judge", lambda _ctx: measured(1), Kind.METRIC), Origin.PLUGIN)
    own = a_case(trials=[["bad"]], options=EvaluateOptions(fail_fast=True).SerializeToString())
    for case in (a_case(trials=[["bad"]]), own):
        result = await bench.play(case)
        assert result.verdict == ERROR
        assert "its type is a metric now" in result.reason


async def test_options_of_a_case_replace_those_of_the_suite_even_if_all_are_defaults() -> None:
    bench = Bench(options=EvaluateOptions(aggregation=2, threshold=0.5))  # by weighted mean
    case = a_case(trials=[["half"]])
    lenient = await bench.play(case)
    case.options = EvaluateOptions(fail_fast=False).SerializeToString()
    strict = await bench.play(case)
    assert (lenient.verdict, strict.verdict) == (PASSED, FAILED)
    assert lenient.conditions_sha256 != strict.conditions_sha256


async def test_evaluators_see_turn_attempt_expected_and_duration() -> None:
    seen: list[tuple[Any, ...]] = []

    def look(ctx: EvaluatorContext) -> Any:
        seen.append(
            (
                *(ctx.turn, ctx.attempt, ctx.is_final, ctx.run_duration_ms, ctx.last_invocation.latency_ms),
                ctx.expected and ctx.expected.text,
            )
        )
        assert ctx.metadata == {"item": "x"}
        return passed("seen")

    bench = Bench()
    bench.registry.register(SCRIPTED._replace(type="look", compile=lambda _config: look), Origin.PLUGIN)
    case = a_case(turns=2, metadata={"item": "x"})
    for turn in case.turns:
        turn.evaluators.append(EvaluatorSpec(type="look").SerializeToString())
    case.turns[0].expected.text = "first"
    for _ in range(2):
        case.recorded_trials.add(answers=[invocation("good", 100), invocation("good", 200)])
    for unknown in (0, 1):
        trial = case.recorded_trials.add(answers=[invocation("good", 100), invocation("good", 200)])
        trial.answers[unknown].ClearField("latency")
    assert (await bench.play(case)).verdict == PASSED
    assert seen == [
        (1, 1, False, 100, 100, "first"),
        (2, 1, True, 300, 200, None),
        (1, 2, False, 100, 100, "first"),
        (2, 2, True, 300, 200, None),
        (1, 3, False, None, None, "first"),
        (2, 3, True, None, 200, None),
        (1, 4, False, 100, 100, "first"),
        (2, 4, True, None, None, None),
    ]


FAULTS = ("broken", "raises", "refused", "agent")
HONEST = st.sampled_from(["good", "bad"])


@st.composite
def suites(draw: st.DrawFn) -> tuple[list[tuple[float, int, list[str], list[str]]], float]:
    """Cases: weight, min_passed, honest answers of their trials, and the same with faults; and a threshold."""
    cases = []
    for _ in range(draw(st.integers(1, 5))):
        honest = draw(st.lists(HONEST, min_size=1, max_size=4))
        faulty = [draw(st.sampled_from([one, one, *FAULTS])) for one in honest]
        weight = draw(st.sampled_from([0.0, 0.1, 1.0, 3.0]))
        cases.append((weight, draw(st.integers(0, len(honest))), honest, faulty))
    return cases, draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 2 / 3, 0.9, 1.0]))


async def _verdict(cases: list[tuple[float, int, list[str]]], threshold: float, evaluator: str) -> SuiteRun:
    totals = SuiteTotals(threshold)
    for weight, min_passed, answers in cases:
        script: list[Answer] = [
            ConnectorFailure("CONNECTOR_UNAVAILABLE", "gone") if one == "agent" else one for one in answers
        ]
        if "agent" in answers:
            script = ["broken" if one == "refused" else one for one in script]
            bench = Bench(ScriptedAgent(*script), evaluator)
            case = a_case(trials=(), weight=weight, min_passed=min_passed)
            case.trials = len(answers)
        else:
            bench = Bench(None, evaluator)
            case = a_case([[one] for one in answers], weight=weight, min_passed=min_passed)
        totals.add(await bench.play(case))
    run = SuiteRun()
    totals.fill(run)
    return run


@given(suites(), st.sampled_from(["judge", "slow"]))
@settings(max_examples=100, deadline=None)
def test_no_fault_turns_red_into_green(
    suite: tuple[list[tuple[float, int, list[str], list[str]]], float], evaluator: str
) -> None:
    cases, threshold = suite
    honest = asyncio.run(_verdict([one[:3] for one in cases], threshold, evaluator))
    faulty = asyncio.run(_verdict([(*one[:2], one[3]) for one in cases], threshold, evaluator))
    assert honest.verdict in (PASSED, FAILED) or not sum(one[0] for one in cases)
    if faulty.verdict == PASSED:
        assert honest.verdict == PASSED, (honest.reason, faulty.reason)
    if faulty.verdict == FAILED:
        assert honest.verdict == FAILED, (honest.reason, faulty.reason)
    if all(one in FAULTS for case in cases for one in case[3]):
        assert faulty.verdict == ERROR


def test_an_agent_needs_something_to_answer() -> None:
    case, setup = a_case(), Bench(ScriptedAgent()).setup
    assert case_problem(case, setup, asks_agent=True) is None
    del case.turns[0].input[:]
    problem = case_problem(case, setup, asks_agent=True)
    assert problem is not None
    assert problem.field == "turns[0].input"
    case.messages.add(role="user", text="a question")
    assert case_problem(case, setup, asks_agent=True) is None


@pytest.mark.parametrize("trials", [100, 101])
def test_a_case_has_a_limit_of_recorded_trials(trials: int) -> None:
    problem = case_problem(a_case([["good"]] * trials), Bench().setup, asks_agent=False)
    assert (None if problem is None else problem.field) == ("recorded_trials" if trials > 100 else None)


def test_a_recorded_trial_has_answers_or_an_error() -> None:
    case = a_case([["good"]])
    case.recorded_trials[0].error.message = "no answer"
    problem = case_problem(case, Bench().setup, asks_agent=False)
    assert problem is not None
    assert problem.field == "recorded_trials[0].answers"
