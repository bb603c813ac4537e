"""No fault turns red into green: every fault in every place of a call, and what the verdict would be without it.

The invariant of all rows: a call in which something broke passes only if it passes whatever the broken
evaluator would have said.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evald.context import EvaluatorContext
from evald.errorcodes import CODES
from evald.evaluator import EvaluatorDefinition
from evald.result import Kind, Result, Verdict, errored, failed, passed
from evald.v1 import result_pb2
from evald.v1.context_pb2 import Invocation
from evald.v1.evaluation_service_pb2 import EvaluateSessionRequest
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub
from evald_server.engine.registry import Origin

from ..rpc import suite_floor
from ..rpc.live import Live, serving
from ..rpc.live import spec as spec_of
from ..runs.scripted import ScriptedAgent, Talker, play, scenario
from .scripted import Engine, definition

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

FAIL_OPEN, SHADOW, WEIGHTED_MEAN = 2, 2, 2

Behaviour = Callable[[EvaluatorContext], Any]


def _raises(problem: BaseException) -> Behaviour:
    def behave(_ctx: EvaluatorContext) -> Any:
        raise problem

    return behave


def _answers(outcome: Any) -> Behaviour:
    return lambda _ctx: outcome


FAULTS: Mapping[str, Behaviour] = {
    "raises": _raises(RuntimeError("broken")),
    "raises TimeoutError": _raises(TimeoutError()),
    "raises RecursionError": _raises(RecursionError()),
    "answers nothing": _answers(None),
    "answers nonsense": _answers(object()),
    "score is NaN": _answers(Result(PASSED, "", float("nan"))),
    "score is above 1": _answers(Result(PASSED, "", 1.5)),
    "score is text": _answers(Result(PASSED, "", "1")),  # type: ignore[arg-type]
    "value is infinite": _answers(Result(PASSED, "", 1.0, float("inf"))),
    "ERROR without an error": _answers(Result(ERROR, "")),
    **{code: _answers(errored(code, "broken as told")) for code in CODES},
}


def _async(behaviour: Behaviour) -> Behaviour:
    async def behave(ctx: EvaluatorContext) -> Any:
        await asyncio.sleep(0)
        return behaviour(ctx)

    return behave


def _kinds(name: str, behaviour: Behaviour) -> Iterator[tuple[EvaluatorDefinition, Origin]]:
    yield definition(f"{name}-inline", behaviour), Origin.PLUGIN
    yield definition(f"{name}-thread", behaviour, inline=False), Origin.PLUGIN
    yield definition(f"{name}-async", _async(behaviour), inline=False), Origin.PLUGIN
    yield definition(f"{name}-metric", behaviour, Kind.METRIC), Origin.PLUGIN


KINDS = ("inline", "thread", "async")


@pytest.fixture(name="engine", scope="module")
def _engine() -> Engine:
    engine = Engine()
    for number, behaviour in enumerate(FAULTS.values()):
        for one, origin in _kinds(f"fault{number}", behaviour):
            engine.registry.register(one, origin)
    for name, behaviour in (("good", _answers(passed("good"))), ("bad", _answers(failed("bad", 0.0)))):
        for one, origin in _kinds(name, behaviour):
            engine.registry.register(one, origin)
    return engine


FAULTY = [pytest.param(f"fault{number}", id=fault.replace(" ", "-")) for number, fault in enumerate(FAULTS)]


def _unknown(kind: str) -> dict[str, Any]:
    return {"type": f"unknown-{kind}"}


PLACES: Mapping[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "alone": lambda x: [x],
    "beside a pass": lambda x: [x, {"type": "good-inline"}],
    "beside a failure": lambda x: [{"type": "bad-inline"}, x],
    "negated": lambda x: [{**x, "negate": True}],
    "required": lambda x: [{**x, "required": True}, {"type": "good-inline", "weight": 50}],
    "with a threshold": lambda x: [{**x, "threshold": 0.001}],
    "without weight": lambda x: [{**x, "weight": 0}, {"type": "good-inline"}],
    "in all-of": lambda x: [{"type": "all-of", "evaluators": [{"type": "good-inline"}, x]}],
    "in all-of that fails": lambda x: [{"type": "all-of", "evaluators": [{"type": "bad-inline"}, x]}],
    "in any-of": lambda x: [{"type": "any-of", "evaluators": [{"type": "bad-inline"}, x]}],
    "in any-of that passes": lambda x: [{"type": "any-of", "evaluators": [{"type": "good-inline"}, x]}],
    "negated in any-of": lambda x: [
        {"type": "any-of", "evaluators": [{"type": "bad-inline"}, {**x, "negate": True}]}
    ],
    "in a negated all-of": lambda x: [
        {"type": "all-of", "negate": True, "evaluators": [{"type": "good-inline"}, x]}
    ],
    "in a negated any-of": lambda x: [
        {"type": "any-of", "negate": True, "evaluators": [{"type": "bad-inline"}, x]}
    ],
    "in at-least one of three": lambda x: [
        {"type": "at-least", "k": 1, "evaluators": [x, {"type": "bad-inline"}, {"type": "bad-inline"}]}
    ],
    "in at-least half": lambda x: [
        {"type": "at-least", "config": {"threshold": 0.5, "evaluators": [x, {"type": "bad-inline"}]}}
    ],
    "in assert-set": lambda x: [{"type": "assert-set", "evaluators": [x, {"type": "good-inline"}]}],
    "in a formula": lambda x: [
        {"type": "formula", "config": {"formula": "1 - 0 * x", "evaluators": [{**x, "name": "x"}]}}
    ],
    "two deep": lambda x: [
        {"type": "any-of", "evaluators": [{"type": "all-of", "negate": True, "config": {"evaluators": [x]}}]}
    ],
}

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "all must pass": {},
    "fail fast": {"fail_fast": True},
    "weighted mean": {"aggregation": WEIGHTED_MEAN, "threshold": 0.5},
    "weighted mean, fail fast": {"aggregation": WEIGHTED_MEAN, "threshold": 0.5, "fail_fast": True},
    "weighted mean from 0": {"aggregation": WEIGHTED_MEAN, "threshold": 0.001},
}


def _with(specs: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The specs with `fault` in place."""

    def put(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: put(value) for key, value in item.items()}
        if isinstance(item, list):
            return [put(value) for value in item]
        return item.replace("unknown", name) if isinstance(item, str) else item

    put_in: list[dict[str, Any]] = put(specs)
    return put_in


@pytest.mark.parametrize("options", [pytest.param(value, id=key) for key, value in OPTIONS.items()])
@pytest.mark.parametrize("place", [pytest.param(value, id=key) for key, value in PLACES.items()])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_with_a_fault_passes_only_if_it_would_pass_either_way(
    engine: Engine,
    kind: str,
    place: Callable[[dict[str, Any]], list[dict[str, Any]]],
    options: Mapping[str, Any],
) -> None:
    specs = place(_unknown(kind))
    either = {engine.verdict(_with(specs, name), **options) for name in ("good", "bad")}
    # One fault is as good as another from here on: which fault it is, the next test asks.
    for name in ("fault0", f"fault{list(FAULTS).index('REMOTE_UNAVAILABLE')}"):
        summary = engine.run(_with(specs, name), options)
        assert summary.success == (summary.verdict == PASSED)
        if summary.verdict == PASSED:
            assert either == {PASSED}
        else:
            assert summary.verdict in (ERROR, FAILED)
        if summary.verdict == FAILED:
            assert FAILED in either
        assert _errors(summary) <= {"EVALUATOR_EXCEPTION", "REMOTE_UNAVAILABLE", "UNEVALUABLE"}


def _errors(summary: result_pb2.AggregatedEvaluation) -> set[str]:
    for result in summary.results:
        if result.verdict == ERROR:
            assert not result.HasField("score")
            assert not result.HasField("value")
            assert result.error.code
    return {result.error.code for result in summary.results if result.verdict == ERROR}


@pytest.mark.parametrize("negate", [False, True], ids=["plain", "negated"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTY)
def test_every_fault_is_an_error_without_score_or_value(
    engine: Engine, fault: str, kind: str, negate: bool
) -> None:
    summary = engine.run([{"type": f"{fault}-{kind}", "negate": negate}, {"type": "good-inline"}])
    assert [result.verdict for result in summary.results] == [ERROR, PASSED]
    assert (summary.verdict, summary.success) == (ERROR, False)
    assert len(_errors(summary)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_in_shadow_changes_nothing_and_is_named(engine: Engine, fault: str, kind: str) -> None:
    name = f"{fault}-{kind}"
    for sibling, wanted in (("good-inline", PASSED), ("bad-inline", FAILED)):
        summary = engine.run([{"type": name, "enforcement": SHADOW}, {"type": sibling}])
        assert summary.verdict == wanted
        assert len(summary.warnings) == 1
        assert f'"{name}" gave no verdict in shadow' in summary.warnings[0]


@pytest.mark.parametrize("fault", FAULTY)
def test_a_metric_that_breaks_changes_nothing_and_is_named(engine: Engine, fault: str) -> None:
    for sibling, wanted in (("good-inline", PASSED), ("bad-inline", FAILED)):
        summary = engine.run([{"type": f"{fault}-metric"}, {"type": sibling}])
        assert summary.verdict == wanted
        assert not summary.metrics
        assert f'"{fault}-metric" measured nothing' in summary.warnings[0]


@pytest.mark.parametrize("options", [pytest.param(value, id=key) for key, value in OPTIONS.items()])
@pytest.mark.parametrize("kind", KINDS)
def test_fail_open_ignores_a_fault_and_says_so(engine: Engine, kind: str, options: Mapping[str, Any]) -> None:
    for fault in ("fault0", f"fault{list(FAULTS).index('TIMEOUT')}"):
        broken = {"type": f"{fault}-{kind}", "error_policy": FAIL_OPEN}
        summary = engine.run([broken, {"type": "good-inline"}], options)
        assert summary.verdict == PASSED
        assert summary.reason == "1 of 2 assertions passed, 1 with an error was ignored (fail open)"
        assert "was ignored (fail open)" in summary.warnings[0]
        assert engine.verdict([broken], **options) is SKIPPED
        assert engine.verdict([{**broken, "required": True}, {"type": "good-inline"}], **options) is ERROR
        if options.get("threshold") != 0:
            assert engine.verdict([broken, {"type": "bad-inline"}], **options) is FAILED


@pytest.mark.parametrize(
    ("third", "without"),
    [
        pytest.param({"do": "pass"}, PASSED, id="passes"),
        pytest.param({"do": "fail", "required": True}, FAILED, id="required fails"),
        pytest.param({"do": "raise", "required": True}, ERROR, id="required raises"),
        pytest.param({"do": "raise"}, ERROR, id="raises"),
        pytest.param({"do": "fail", "weight": 50}, FAILED, id="weighs 50 and fails"),
        pytest.param({"do": "fail", "score": 0.4, "weight": 50}, FAILED, id="weighs 50 and scores 0.4"),
    ],
)
@pytest.mark.parametrize("kind", ["scripted", "foreign", "waiting"])
def test_failing_fast_under_a_weighted_mean_passes_over_nothing(
    engine: Engine, third: dict[str, Any], without: Verdict, kind: str
) -> None:
    specs = [{"do": "fail", "score": 0.5}, {"do": "pass"}, {"type": kind, **third}]
    options: dict[str, Any] = {"aggregation": WEIGHTED_MEAN, "threshold": 0.5}
    assert engine.verdict(specs, **options) is without
    assert engine.verdict(specs, **options, fail_fast=True) is without


def test_what_fail_fast_skipped_stays_in_the_mean(engine: Engine) -> None:
    summary = engine.run(
        [{"do": "fail", "score": 0.8, "required": True}, {"type": "waiting", "do": "pass", "weight": 3}],
        {"aggregation": WEIGHTED_MEAN, "threshold": 0.5, "fail_fast": True},
    )
    assert (summary.verdict, summary.results[1].verdict) == (FAILED, SKIPPED)
    assert summary.mean_score == pytest.approx(0.2)


def test_fail_fast_stops_when_what_is_left_cannot_reach_the_threshold(engine: Engine) -> None:
    options: dict[str, Any] = {"aggregation": WEIGHTED_MEAN, "threshold": 0.5, "fail_fast": True}
    bad, last = {"do": "fail", "score": 0.0}, {"type": "waiting", "do": "pass"}
    assert engine.run([bad, last], options).results[1].verdict == PASSED
    assert engine.run([bad, bad, last], options).results[2].verdict == SKIPPED
    assert engine.run([bad, bad, {**last, "weight": 2}], options).results[2].verdict == PASSED


ITEMS = st.fixed_dictionaries(
    {
        "do": st.sampled_from(["pass", "fail", "error", "raise", "skip"]),
        "score": st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
        "weight": st.sampled_from([0.0, 1.0, 2.0, 50.0]),
        "required": st.booleans(),
        "negate": st.booleans(),
        "enforcement": st.sampled_from([1, SHADOW]),
        "error_policy": st.sampled_from([1, FAIL_OPEN]),
    }
)


ANY = Engine()


@settings(deadline=None, max_examples=80)
@given(
    st.lists(ITEMS, min_size=1, max_size=5),
    st.sampled_from([1, WEIGHTED_MEAN]),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
)
def test_failing_fast_never_changes_whether_a_call_passes(
    specs: list[dict[str, Any]], aggregation: int, threshold: float
) -> None:
    options = {"aggregation": aggregation, **({"threshold": threshold} if aggregation == 2 else {})}
    assume(
        threshold or aggregation == 1 or any(spec["required"] and spec["enforcement"] == 1 for spec in specs)
    )
    whole = ANY.verdict(specs, **options)
    fast = ANY.run(specs, {**options, "fail_fast": True})
    assert (fast.verdict == PASSED) == (whole is PASSED)
    stopped = any("fail_fast" in result.reason for result in fast.results)
    assert fast.verdict == (FAILED if stopped else whole)
    if stopped:
        assert whole is FAILED


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([{"type": "gauge", "do": "measure"}], "No assertion counted: 1 metric only"),
        (
            [{"type": "gauge", "do": "raise"}, {"type": "gauge", "do": "measure"}],
            "No assertion counted: 2 metrics only",
        ),
        ([{"do": "fail", "enforcement": SHADOW}], "No assertion counted: 1 shadow assertion only"),
        (
            [{"do": "raise", "enforcement": SHADOW}, {"type": "gauge", "do": "measure"}],
            "No assertion counted: 1 metric and 1 shadow assertion only",
        ),
    ],
)
def test_where_nothing_gates_the_reason_says_so(
    engine: Engine, specs: list[dict[str, Any]], reason: str
) -> None:
    summary = engine.run(specs)
    assert (summary.verdict, summary.reason) == (PASSED, reason)
    assert len(summary.warnings) == sum(one["do"] == "raise" for one in specs)


@pytest.mark.parametrize("config", [{"k": 0}, {"threshold": 0}, {"threshold": 0.0}])
@pytest.mark.parametrize("name", ["at-least", "assert-set"])
def test_a_combinator_that_always_passes_is_refused(
    engine: Engine, name: str, config: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="greater than"):
        engine.run([{"type": name, "config": {"evaluators": [{"type": "scripted"}], **config}}])


def test_a_child_without_weight_is_shown_and_does_not_fail_an_assert_set(engine: Engine) -> None:
    good = {"type": "scripted", "config": {"do": "pass"}}
    bad = {"type": "scripted", "config": {"do": "fail"}}
    weightless = {"type": "scripted", "config": {"do": "fail"}, "weight": 0}
    broken = {"type": "scripted", "config": {"do": "raise"}, "weight": 0}
    for children, wanted in (
        ([good, weightless], PASSED),
        ([good, broken], PASSED),
        ([bad, weightless], FAILED),
        ([weightless], FAILED),
        ([broken], ERROR),
    ):
        assert engine.verdict([{"type": "assert-set", "evaluators": children}]) is wanted


TURNS = 3

# Each is the agent's part of the turn in which it goes wrong; the others say "yes".
SILENCES: Mapping[str, list[dict[str, Any]]] = {
    "no message": [],
    "a system message": [{"role": "system", "text": "yes"}],
    "a tool's result": [{"role": "tool", "text": "yes", "tool_call_id": "c"}],
    "tool calls": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "yes"}}]}],
    "an empty text": [{"role": "assistant", "text": ""}],
    "null": [{"role": "assistant"}],
}

SAYS_YES = [spec_of("contains", {"text": "yes"}), spec_of("regex", {"pattern": "no", "mustMatch": False})]


def _answers_with(which: int, fault: list[dict[str, Any]]) -> list[Invocation]:
    """What the agent says on each turn. which: the turn with the fault, from 1; 0 for none."""
    good = [{"role": "assistant", "text": "yes"}]
    return [Invocation(messages=fault if number == which else good) for number in range(1, TURNS + 1)]


async def _in_a_session(live: Live, answers: list[Invocation], specs: list[Any], *, asked: bool) -> Verdict:
    """asked: each turn begins with a message of the user; else only the first."""
    frames = [EvaluateSessionRequest()]
    frames[0].open.evaluators.extend(specs)
    for number, answer in enumerate(answers, start=1):
        turn = EvaluateSessionRequest().turn
        turn.turn_id, turn.is_final = number, number == TURNS
        if asked or number == 1:
            turn.new_messages.add(role="user", text="yes?")
        turn.new_messages.extend(answer.messages)
        frames.append(EvaluateSessionRequest(turn=turn))
    *_, last = await live.session(frames)
    return Verdict(last.session_summary.verdict)


async def _in_a_suite(live: Live, answers: list[Invocation], specs: list[Any], *, asked: bool) -> Verdict:
    case = suite_floor.asked("case", *["yes?"] * TURNS)
    for number, turn in enumerate(case.turns):
        turn.evaluators.extend(specs)
        if number and not asked:
            turn.ClearField("input")
    case.recorded_trials.add(answers=answers)
    outcome = await suite_floor.play(SuiteServiceStub(live.channel), suite_floor.opened(*specs), [case])
    return Verdict(outcome.case("case").verdict)


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not-asked"])
@pytest.mark.parametrize("fault", SILENCES.values(), ids=SILENCES.keys())
@pytest.mark.parametrize("surface", [_in_a_session, _in_a_suite])
async def test_a_turn_without_an_answer_fails_whichever_turn_it_is(
    surface: Any, fault: list[dict[str, Any]], asked: bool
) -> None:
    if surface is _in_a_suite and not fault and not asked:
        pytest.skip("RunSuite refuses a turn without any message")
    async with serving() as live:
        verdicts = [
            await surface(live, _answers_with(which, fault), SAYS_YES, asked=asked)
            for which in range(TURNS + 1)
        ]
    assert verdicts == [PASSED, FAILED, FAILED, FAILED]


def _on_turn(which: int, behaviour: Behaviour) -> EvaluatorDefinition:
    def behave(ctx: EvaluatorContext) -> Any:
        return behaviour(ctx) if ctx.turn == which else passed("good")

    return definition(f"breaks-on-{which}", behave, inline=False)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("surface", [_in_a_session, _in_a_suite])
async def test_a_fault_in_any_turn_leaves_no_pass(surface: Any, fault: Behaviour) -> None:
    answers = _answers_with(0, [])
    numbers = range(1, TURNS + 1)
    async with serving(_on_turn(which, fault) for which in numbers) as live:
        for which in numbers:
            broken = spec_of(f"breaks-on-{which}")
            assert await surface(live, answers, [broken, *SAYS_YES], asked=True) is ERROR, which
            failing = [broken, spec_of("contains", {"text": "no"})]
            assert await surface(live, answers, failing, asked=True) is FAILED, which


@pytest.mark.parametrize("which", range(1, TURNS + 1))
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_in_any_turn_of_a_run_leaves_no_pass(fault: Behaviour, which: int) -> None:
    broken = [{"type": f"breaks-on-{which}"}]
    run = await play(
        scenario(broken, maxMessages=2 * TURNS),
        ScriptedAgent(*["yes"] * TURNS),
        Talker(),
        definitions=[_on_turn(which, fault)],
    )
    assert run.verdict == ERROR
