"""Properties of running a plan, foreign and broken evaluators included."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evald.blocks import TooMany, UnreadableContent
from evald.evaluator import define_evaluator
from evald.result import Check, Kind, Result, TokenUsage, Verdict, passed, unproven
from evald.strict_json import TooLarge
from evald_server.engine.plan import PlanLimits
from evald_server.engine.registry import Origin

from .scripted import Engine, definition, spec

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

# Far less than the 30 s that evaluators here would go on for, and more than a busy machine needs.
AT_ONCE = 15.0


@pytest.fixture(name="engine")
def _engine() -> Engine:
    return Engine()


@pytest.mark.parametrize(
    ("type_name", "do", "code"),
    [
        ("scripted", "raise", "EVALUATOR_EXCEPTION"),
        ("scripted", "nan", "CONTRACT_VIOLATION"),
        ("scripted", "nonsense", "CONTRACT_VIOLATION"),
        ("foreign", "raise", "EVALUATOR_EXCEPTION"),
        ("foreign", "nan", "CONTRACT_VIOLATION"),
        ("foreign", "nonsense", "CONTRACT_VIOLATION"),
        ("waiting", "raise", "EVALUATOR_EXCEPTION"),
        ("waiting", "nan", "CONTRACT_VIOLATION"),
        ("waiting", "nonsense", "CONTRACT_VIOLATION"),
    ],
)
def test_a_broken_evaluator_is_an_error_and_its_siblings_are_untouched(
    engine: Engine, type_name: str, do: str, code: str
) -> None:
    summary = engine.run([{"do": "pass"}, {"type": type_name, "do": do}, {"do": "pass", "score": 0.9}])
    assert [result.verdict for result in summary.results] == [PASSED, ERROR, PASSED]
    assert summary.results[1].error.code == code
    assert not summary.results[1].HasField("score")
    assert (summary.verdict, summary.success) == (ERROR, False)


def test_what_an_evaluator_raised_stays_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        summary = engine.run([{"type": "foreign", "do": "raise"}])
    error = summary.results[0].error
    assert "secret-7f3a" not in str(summary)
    assert "secret-7f3a" in caplog.text
    assert error.metadata["incident"] in caplog.text


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (TooLarge("too deep"), "INPUT_TOO_LARGE"),
        (TooMany("messages", "blocks", 9, 8), "INPUT_TOO_LARGE"),
        (UnreadableContent("messages/0", "a call", "a text"), "UNREADABLE_CONTENT"),
        (RecursionError(), "INPUT_TOO_LARGE"),
        (ValueError(), "EVALUATOR_EXCEPTION"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exception_is_an_error_with_its_code(engine: Engine, problem: Exception, code: str) -> None:
    def fail(_ctx: Any) -> Any:
        raise problem

    engine.registry.register(definition("fails", fail), Origin.BUILT_IN)
    engine.registry.register(definition("acme.fails", fail), Origin.PLUGIN)
    results = engine.run([{"type": "fails", "negate": True}, {"type": "acme.fails"}]).results
    own = "EVALUATOR_EXCEPTION" if isinstance(problem, RecursionError) else code
    assert [(result.verdict, result.error.code) for result in results] == [(ERROR, code), (ERROR, own)]


def test_a_nonsense_answer_names_the_field(engine: Engine) -> None:
    summary = engine.run([{"type": "foreign", "do": "pass", "score": 1.5}])
    assert "score: 1.5 is not between 0 and 1" in summary.results[0].error.message


def test_a_hanging_evaluator_is_a_timeout_and_the_summary_comes_in_time(engine: Engine) -> None:
    release = threading.Event()
    engine.registry.register(definition("stuck", lambda _ctx: release.wait(30), inline=False), Origin.PLUGIN)
    began = time.monotonic()
    summary = engine.run(
        [{"type": "stuck"}, {"do": "pass"}, {"type": "waiting", "do": "pass", "seconds": 30}], seconds=1
    )
    release.set()
    assert time.monotonic() - began < AT_ONCE
    assert [result.verdict for result in summary.results] == [ERROR, PASSED, ERROR]
    assert {result.error.code for result in summary.results} == {"TIMEOUT", ""}


def test_a_spec_has_a_time_of_its_own(engine: Engine) -> None:
    summary = engine.run(
        [{"type": "waiting", "do": "pass", "seconds": 30, "timeout": {"nanos": 50_000_000}}], seconds=60
    )
    assert summary.results[0].error.code == "TIMEOUT"


def test_a_type_whose_threads_are_all_stuck_is_busy_at_once(engine: Engine) -> None:
    release = threading.Event()
    engine.threads._max_per_type = 2
    engine.registry.register(definition("stuck", lambda _ctx: release.wait(30), inline=False), Origin.PLUGIN)
    codes = [
        result.error.code
        for _ in range(2)
        for result in engine.run([{"type": "stuck"}] * 2, seconds=0.2).results
    ]
    release.set()
    assert codes == ["TIMEOUT", "TIMEOUT", "EVALUATOR_BUSY", "EVALUATOR_BUSY"]


def test_an_async_plugin_that_blocks_does_not_hold_up_the_others(engine: Engine) -> None:
    release = threading.Event()

    async def block(_ctx: Any) -> Any:
        release.wait(30)

    engine.registry.register(definition("blocking", block, inline=False), Origin.PLUGIN)
    began = time.monotonic()
    summary = engine.run([{"type": "blocking"}, {"type": "foreign", "do": "pass"}], seconds=1.5)
    took = time.monotonic() - began
    release.set()
    assert took < AT_ONCE
    assert [result.verdict for result in summary.results] == [ERROR, PASSED]


def test_an_evaluators_own_timeout_error_is_its_own_fault(engine: Engine) -> None:
    def give_up(_ctx: Any) -> Any:
        raise TimeoutError("own")

    engine.registry.register(definition("gives-up", give_up, inline=False), Origin.PLUGIN)
    assert engine.run([{"type": "gives-up"}]).results[0].error.code == "EVALUATOR_EXCEPTION"


def test_negation_swaps_passed_and_failed_only(engine: Engine) -> None:
    summary = engine.run(
        [{"do": do, "negate": True, "score": 0.25} for do in ("pass", "fail", "error", "skip")]
    )
    assert [result.verdict for result in summary.results] == [FAILED, PASSED, ERROR, SKIPPED]
    assert [result.score for result in summary.results[:2]] == [0.75, 0.75]
    unscored = engine.run([{"do": do, "negate": True} for do in ("pass", "fail")]).results
    assert [(result.verdict, result.HasField("score")) for result in unscored] == [
        (FAILED, False),
        (PASSED, False),
    ]


def test_what_was_never_seen_does_not_pass_by_being_negated(engine: Engine) -> None:
    engine.registry.register(definition("blind", lambda _ctx: unproven("No data")), Origin.BUILT_IN)
    child = {"type": "blind"}
    for one in (
        {"type": "blind", "negate": True},
        {"type": "blind", "threshold": 1e-9},
        {"type": "all-of", "evaluators": [child], "negate": True},
        {"type": "any-of", "evaluators": [{**child, "negate": True}]},
    ):
        assert engine.verdict([one]) is FAILED


@pytest.mark.parametrize("origin", [Origin.BUILT_IN, Origin.PLUGIN], ids=["built-in", "plugin"])
def test_an_evaluator_that_answers_nothing_at_all_has_not_passed(engine: Engine, origin: Origin) -> None:
    engine.registry.register(definition("mute", lambda _ctx: None), origin)
    result = engine.run([{"type": "mute"}]).results[0]
    assert result.verdict == Verdict.ERROR
    assert result.error.code == "CONTRACT_VIOLATION"


@pytest.mark.parametrize("score", [1.5, -0.5, float("nan")])
@pytest.mark.parametrize("origin", [Origin.BUILT_IN, Origin.PLUGIN], ids=["built-in", "plugin"])
def test_an_inline_evaluator_is_held_to_the_contract(engine: Engine, origin: Origin, score: float) -> None:
    engine.registry.register(definition("liar", lambda _ctx: Result(PASSED, "", score)), origin)
    liar = {"type": "liar"}
    for one in (liar, {**liar, "threshold": 0.1}, {"type": "all-of", "evaluators": [liar]}):
        assert engine.verdict([one]) is ERROR


@pytest.mark.parametrize(
    ("score", "threshold", "wanted"),
    [(0.5, 0.5, PASSED), (0.7 + 0.1, 0.8, PASSED), (0.49, 0.5, FAILED), (0.0, 0.001, FAILED)],
)
def test_a_threshold_decides_by_the_score(
    engine: Engine, score: float, threshold: float, wanted: Verdict
) -> None:
    for do in ("pass", "fail"):
        result = engine.run([{"do": do, "score": score, "threshold": threshold}]).results[0]
        assert result.verdict == wanted


def test_without_a_score_a_threshold_changes_nothing(engine: Engine) -> None:
    assert engine.verdict([{"do": "pass", "threshold": 1}]) is PASSED
    assert engine.verdict([{"do": "fail", "threshold": 0.001}]) is FAILED


def test_names_are_made_unique_and_key_the_metrics(engine: Engine) -> None:
    summary = engine.run(
        [
            {"type": "gauge", "do": "measure", "value": 1},
            {"type": "gauge", "do": "measure", "value": 2},
            {"type": "gauge", "do": "measure", "value": 3, "name": "gauge"},
        ]
    )
    assert [result.name for result in summary.results] == ["gauge", "gauge#2", "gauge#3"]
    assert dict(summary.metrics) == {"gauge": 1, "gauge#2": 2, "gauge#3": 3}


def test_a_metric_that_breaks_is_a_warning_and_no_more(engine: Engine) -> None:
    summary = engine.run([{"do": "pass"}, {"type": "gauge", "do": "raise"}])
    assert (summary.verdict, summary.reason) == (PASSED, "All evaluators passed")
    assert summary.results[1].verdict == ERROR
    assert summary.results[1].success
    assert summary.warnings == ['"gauge" measured nothing (EVALUATOR_EXCEPTION)']


def test_shadow_results_are_shown_and_do_not_count(engine: Engine) -> None:
    summary = engine.run([{"do": "pass"}, {"do": "fail", "enforcement": 2}])
    assert (summary.verdict, summary.results[1].verdict, summary.failed_count) == (PASSED, FAILED, 0)


def test_final_only_evaluators_are_skipped_before(engine: Engine) -> None:
    specs = [{"do": "fail", "turn_policy": 2}, {"do": "pass"}]
    before = engine.run(specs, is_final=False)
    assert (before.results[0].verdict, before.results[0].reason) == (SKIPPED, "Skipped (not final turn)")
    assert before.verdict == PASSED
    assert engine.run(specs, is_final=True).verdict == FAILED


def test_pending_stands_on_failed_results_of_turns_that_are_not_final(engine: Engine) -> None:
    specs = [{"do": "fail", "pending": True}]
    assert engine.run(specs, is_final=False).results[0].pending
    assert not engine.run(specs, is_final=True).results[0].pending
    passing, pending = {"do": "pass", "score": 0.5}, {**specs[0], "score": 0.5}
    for one, verdict, stands in (
        ({**pending, "negate": True}, PASSED, False),
        ({**pending, "threshold": 0.001}, PASSED, False),
        ({**pending, "threshold": 1}, FAILED, True),
        ({**passing, "negate": True}, FAILED, False),
        ({**passing, "threshold": 1}, FAILED, False),
    ):
        result = engine.run([one], is_final=False).results[0]
        assert (result.verdict, result.pending) == (verdict, stands)


@pytest.mark.parametrize("later", [{"do": "pass"}, {"type": "waiting", "do": "pass", "seconds": 30}])
def test_fail_fast_skips_what_has_not_finished(engine: Engine, later: dict[str, Any]) -> None:
    began = time.monotonic()
    summary = engine.run([{"do": "fail"}, later], {"fail_fast": True})
    assert (summary.verdict, summary.results[1].verdict) == (FAILED, SKIPPED)
    assert time.monotonic() - began < AT_ONCE


def test_fail_fast_stops_what_already_runs(engine: Engine) -> None:
    began = time.monotonic()
    summary = engine.run(
        [{"type": "waiting", "do": "pass", "seconds": 30}, {"type": "waiting", "do": "fail"}],
        {"fail_fast": True},
        seconds=60,
    )
    assert [result.verdict for result in summary.results] == [SKIPPED, FAILED]
    assert time.monotonic() - began < AT_ONCE


def test_waiting_evaluators_run_side_by_side(engine: Engine) -> None:
    running = 0
    all_run = asyncio.Event()

    async def wait_for_the_others(_ctx: Any) -> Any:
        nonlocal running
        running += 1
        if running == 8:
            all_run.set()
        await all_run.wait()
        return passed("all run")

    engine.registry.register(definition("together", wait_for_the_others), Origin.PLUGIN)
    assert engine.run([{"type": "together"}] * 8, seconds=20).verdict == PASSED


def test_the_score_of_a_call_whose_assertions_all_passed_is_the_lowest_one(engine: Engine) -> None:
    shadow = {"do": "pass", "score": 0.2, "enforcement": 2}
    summary = engine.run([{"do": "pass", "score": 0.9}, {"do": "pass"}, shadow])
    assert (summary.verdict, summary.score, summary.min_score) == (PASSED, 0.9, 0.9)
    assert engine.run([{"do": "pass", "score": 1.0}, shadow]).score == 1.0


def test_the_times_of_results_lie_within_that_of_the_evaluation(engine: Engine) -> None:
    """Each result has the time of its own evaluator, and a start of its own if it had to wait for it."""
    before = time.time_ns()
    summary = engine.run(
        [
            {"do": "pass"},
            {"do": "error"},
            {"type": "waiting", "do": "pass", "seconds": 0.05, "threshold": 0.5},
        ]
    )
    # Durations are of another clock, and this one may be corrected meanwhile.
    after = time.time_ns() + 10_000_000
    durations = [result.duration.ToNanoseconds() for result in summary.results]
    started = summary.start_time.ToNanoseconds()
    assert min(durations) > 0
    assert durations[2] >= 50_000_000
    assert sum(durations) <= summary.duration.ToNanoseconds() <= after - before
    assert before <= started <= after
    inline = sum(durations[:2])
    assert [result.HasField("start_time") for result in summary.results] == [False, False, True]
    assert started + inline <= summary.results[2].start_time.ToNanoseconds() <= after - durations[2]


def test_at_most_max_concurrency_run_at_a_time(engine: Engine) -> None:
    running, most = 0, 0

    async def count(_ctx: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return True

    engine.registry.register(definition("counting", count, inline=False), Origin.PLUGIN)
    engine.run([{"type": "counting"}] * 6, {"max_concurrency": 2})
    assert most == 2


def test_a_result_is_a_success_when_its_verdict_is_no_failure_and_no_error(engine: Engine) -> None:
    specs: list[dict[str, Any]] = [{"do": do} for do in ("pass", "fail", "error", "skip")]
    specs += [{"do": "pass", "score": 0.5}, {"do": "fail", "score": 0.5}]
    specs += [{"type": "gauge", "do": do} for do in ("measure", "error")]
    found = [result.success for result in engine.run(specs).results]
    assert found == [True, False, False, True, True, False, True, True]  # no metric can fail a turn


@pytest.mark.parametrize(
    "given",
    [
        {"metadata": {"a": "b"}},
        {"checks": [Check("said", met=True)]},
        {"token_usage": TokenUsage(3, 4)},
        {"cost_usd": 0.5},
        {"raw_request": {"a": "b"}},
        {"instance_id": "here"},
        {"cached": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_comes_with_a_plain_pass_is_in_its_result(engine: Engine, given: dict[str, Any]) -> None:
    result = Result(PASSED, "", score=1.0, **given)
    engine.registry.register(definition("rich", lambda _ctx: result), Origin.BUILT_IN)
    (name,) = given
    name = "cost" if name == "cost_usd" else name
    shown = {field.name for field, _ in engine.run([{"type": "rich"}]).results[0].ListFields()}
    plain = {field.name for field, _ in engine.run([{"do": "pass", "score": 1.0}]).results[0].ListFields()}
    assert shown == plain - {"reason"} | {name}


def test_what_a_metric_spent_is_in_the_summary_though_all_assertions_passed(engine: Engine) -> None:
    def spend(_ctx: Any) -> Result:
        return Result(PASSED, "measured", value=1.0, token_usage=TokenUsage(3, 4), cost_usd=0.5)

    engine.registry.register(definition("costly", spend, Kind.METRIC, inline=False), Origin.PLUGIN)
    summary = engine.run([{"do": "pass", "score": 1.0}, {"type": "costly"}])
    assert (summary.verdict, summary.cost.amount, summary.token_usage.total_tokens) == (PASSED, 0.5, 7)


def test_the_weighted_mean_says_why(engine: Engine) -> None:
    options = {"aggregation": 2, "threshold": 0.5}
    passing = engine.run([{"do": "fail", "score": 0.2}, {"do": "pass", "score": 1.0}], options)
    assert (passing.verdict, passing.reason) == (PASSED, "Weighted mean 0.6 reaches the threshold 0.5")
    low = engine.run([{"do": "pass", "score": 0.2}], options)
    assert (low.verdict, low.reason) == (FAILED, "Weighted mean 0.2 is below the threshold 0.5")


def test_a_reason_is_cut_at_8_kib_and_stays_text(engine: Engine) -> None:
    engine.registry.register(
        define_evaluator(type="wordy", kind=Kind.ASSERTION, evaluate=lambda _ctx: (False, "\ud800é" * 9000)),
        Origin.PLUGIN,
    )
    reason = engine.run([{"type": "wordy"}]).results[0].reason
    assert 8000 < len(reason.encode()) <= 8192


FAULTS = st.sampled_from(["error", "raise", "nan", "nonsense"])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["pass", "fail", "skip"]), st.sampled_from([None, 0.0, 0.5, 1.0])),
        min_size=1,
        max_size=5,
    ),
    st.dictionaries(st.integers(0, 4), FAULTS, min_size=1),
    st.sampled_from(["all-of", "any-of", "at-least", "assert-set", None]),
    st.booleans(),
    st.sampled_from([{}, {"aggregation": 2}]),
)
def test_no_fault_turns_a_failing_evaluation_into_a_passing_one(
    honest: list[tuple[str, float | None]],
    faults: dict[int, str],
    combinator: str | None,
    negate: bool,
    options: dict[str, int],
) -> None:
    engine = Engine()

    def specs(behaviours: list[str]) -> list[dict[str, Any]]:
        children = [
            {"type": "foreign", "config": {"do": do, **({} if score is None else {"score": score})}}
            for do, (_, score) in zip(behaviours, honest, strict=True)
        ]
        if combinator is not None:
            return [{"type": combinator, "evaluators": children, "negate": negate}]
        return [{"type": c["type"], "negate": negate, **c["config"]} for c in children]

    before = engine.run(specs([do for do, _ in honest]), options)
    after = engine.run(specs([faults.get(index, do) for index, (do, _) in enumerate(honest)]), options)
    if before.verdict != PASSED:
        assert after.verdict != PASSED


def test_plans_that_are_kept_are_bounded_by_what_they_take_not_by_the_size_of_their_specs() -> None:
    engine = Engine(limits=PlanLimits(cache_bytes=1 << 20))
    compiled = 0

    def compile_config(_config: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return lambda _ctx: passed("fine")

    engine.registry.register(
        definition("tiny", lambda _ctx: None)._replace(compile=compile_config), Origin.PLUGIN
    )
    plans = [(spec("tiny", name=f"n{number}").SerializeToString(),) for number in range(300)]
    for raw in plans:
        engine.planner.plan(raw)
    assert compiled == 300
    engine.planner.plan(plans[-1])
    assert compiled == 300, "the newest is kept"
    engine.planner.plan(plans[0])
    assert compiled == 301, "the oldest is not: 300 plans take more than 1 MiB"
