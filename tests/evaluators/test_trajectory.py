import json
import time
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Result, Verdict
from evald_server.evaluators.trajectory import Trajectory

from .contexts import calls, context, run

USER = {"role": "user", "content": "Book me a seat"}
DONE = {"role": "assistant", "content": "Done"}
PASSED, FAILED = Verdict.PASSED, Verdict.FAILED


def call(name: str, arguments: Any = "{}", duration_ms: float | None = None) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    made = {"id": "1", "function": {"name": name, "arguments": text}, "duration_ms": duration_ms}
    return {"role": "assistant", "tool_calls": [made]}


def judge(config: dict[str, Any], *made: dict[str, Any], **facts: Any) -> Result:
    return run(Trajectory, config, context([USER, *made], **facts))


def by_names(mode: str, expected: str, made: str, **config: Any) -> Result:
    messages = [calls(*made)] if made else [DONE]
    return judge({"mode": mode, "expected": list(expected), **config}, *messages, is_final=True)


@pytest.mark.parametrize(
    ("mode", "expected", "made", "verdict", "score"),
    [
        pytest.param("exact", "ab", "ab", PASSED, 1, id="exact"),
        pytest.param("exact", "ab", "ax", FAILED, 1 / 2, id="exact-other"),
        pytest.param("exact", "ab", "abc", FAILED, 2 / 3, id="exact-more"),
        pytest.param("exact", "ab", "a", FAILED, 1 / 2, id="exact-fewer"),
        pytest.param("exact", "abc", "xabc", FAILED, 0, id="exact-shifted"),
        pytest.param("strict", "ab", "ba", FAILED, 0, id="strict-without-messages-is-exact"),
        pytest.param("in_order", "abc", "axbyc", PASSED, 1, id="in-order-with-others"),
        pytest.param("in_order", "abc", "acb", FAILED, 2 / 3, id="in-order-swapped"),
        # A greedy search consumes everything while it looks for the missing b, and then misses c too.
        pytest.param("in_order", "abc", "ac", FAILED, 2 / 3, id="in-order-not-greedy"),
        pytest.param("any_order", "abc", "xcba", PASSED, 1, id="any-order"),
        pytest.param("any_order", "aab", "ab", FAILED, 2 / 3, id="any-order-counts-repeats"),
        pytest.param("superset", "ab", "bxa", PASSED, 1, id="superset"),
        pytest.param("superset", "ab", "bx", FAILED, 1 / 2, id="superset-missing"),
        pytest.param("unordered", "ab", "ba", PASSED, 1, id="unordered"),
        pytest.param("unordered", "ab", "bab", FAILED, 2 / 3, id="unordered-repeated"),
        pytest.param("unordered", "aab", "ab", FAILED, 2 / 3, id="unordered-missing"),
        pytest.param("subset", "abc", "ca", PASSED, 1, id="subset"),
        pytest.param("subset", "abc", "cx", FAILED, 1 / 2, id="subset-forbidden"),
        pytest.param("subset", "abc", "aa", FAILED, 1 / 2, id="subset-too-often"),
    ],
)
def test_each_mode_has_its_verdict_and_score(
    mode: str, expected: str, made: str, verdict: Verdict, score: float
) -> None:
    result = by_names(mode, expected, made)
    assert result.verdict is verdict
    assert result.score == pytest.approx(score)


MODES = ["strict", "exact", "in_order", "any_order", "unordered", "subset", "superset"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("expected", "made", "score"),
    [("", "", 1), ("a", "", 0), ("", "a", 0)],
    ids=["none", "unmet", "uncalled-for"],
)
def test_empty_against_empty_is_1_and_empty_against_something_0(
    mode: str, expected: str, made: str, score: int
) -> None:
    result = by_names(mode, expected, made)
    assert (result.verdict, result.score) == (PASSED if score else FAILED, score)
    assert result.metadata == {"precision": score, "recall": score, "f1": score}


def test_precision_recall_and_f1_are_in_the_metadata() -> None:
    result = by_names("in_order", "abc", "axb")
    assert result.metadata == {
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
    }


@pytest.mark.parametrize(
    ("score", "value"), [("mode", 1.0), ("recall", 1.0), ("precision", 2 / 3), ("f1", 0.8)]
)
def test_another_number_may_be_the_score_without_changing_the_verdict(score: str, value: float) -> None:
    result = by_names("any_order", "ab", "abc", score=score)
    assert result.verdict is PASSED
    assert result.score == pytest.approx(value)


def test_the_reason_shows_the_pairing_and_what_is_wrong() -> None:
    expected = [{"tool": "find"}, {"tool": "book", "args": {"seat": "14C"}}, {"tool": "pay"}]
    result = judge(
        {"mode": "exact", "expected": expected}, call("find"), call("book", {"seat": "12A"}), is_final=True
    )
    assert result.reason == (
        "1 of 3 expected tool calls found, 2 made (exact): find = call 1; "
        'missing: book (call 2: seat: got "12A", expected "14C"), pay; unexpected: call 2 book'
    )
    assert [(check.text.split(":")[0], check.met) for check in result.checks] == [
        ("missing", False),
        ("missing", False),
        ("unexpected", False),
        ("find = call 1", True),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("made", "unproven"), [("{broken", True), ({"x": 2}, False)], ids=["not-JSON", "another-value"]
)
def test_a_call_whose_arguments_are_not_json_may_be_the_expected_one(
    mode: str, made: Any, unproven: bool
) -> None:
    result = judge({"mode": mode, "expected": [{"tool": "a", "args": {"x": 1}}]}, call("a", made))
    assert (result.verdict, result.unproven) == (FAILED, unproven)
    assert ("the arguments of call 1 are not JSON" in result.reason) == unproven
    expected = [{"tool": "b", "args": {}}, {"tool": "a", "args": {"x": 1}}]
    assert judge({"mode": mode, "expected": expected}, call("b"), call("a", made)).unproven == unproven


def test_a_missing_duration_proves_nothing() -> None:
    expected = [{"tool": "a", "maxDurationMs": 5}]
    assert judge({"expected": expected}, call("a")).unproven
    assert not judge({"expected": expected}, call("a", duration_ms=6)).unproven


def test_a_call_in_the_wrong_place_is_named() -> None:
    assert "missing: a (call 2: is at the wrong position)" in by_names("in_order", "ab", "ba").reason


@pytest.mark.parametrize(
    ("mode", "verdict"), [("exact", FAILED), ("superset", PASSED), ("subset", FAILED), ("ignore", PASSED)]
)
def test_arguments_of_expected_calls_are_compared_as_the_config_says(mode: str, verdict: Verdict) -> None:
    expected = [{"tool": "find", "args": {"city": "Berlin"}}]
    made = call("find", {"city": "Berlin", "days": 3})
    assert judge({"expected": expected, "argsMatch": mode}, made).verdict is verdict


def test_arguments_that_are_not_expected_do_not_matter() -> None:
    for item in ("find", {"tool": "find"}, {"tool": "find", "args": "any"}):
        assert judge({"expected": [item]}, call("find", {"city": "Berlin"})).verdict is PASSED
    assert judge({"expected": [{"tool": "find", "args": {}}]}, call("find", {"a": 1})).verdict is FAILED


def test_the_call_goes_before_the_tool_and_the_tool_before_the_config() -> None:
    wanted = {"tool": "find", "args": {"city": "Bonn"}}
    made = call("find", {"city": "Berlin"})
    overridden = {"argsMatch": "exact", "argsMatchOverrides": {"find": "ignore"}}
    assert judge({"expected": [wanted]}, made).verdict is FAILED
    assert judge({"expected": [wanted], **overridden}, made).verdict is PASSED
    assert judge({"expected": [{**wanted, "argsMatch": "exact"}], **overridden}, made).verdict is FAILED


def test_numbers_may_differ_by_the_tolerance() -> None:
    config = {"expected": [{"tool": "pay", "args": {"sum": {"eur": 10}}}]}
    assert judge({**config, "tolerance": 0.01}, call("pay", {"sum": {"eur": 10.009}})).verdict is PASSED
    assert judge({**config, "tolerance": 0.01}, call("pay", {"sum": {"eur": 10.02}})).verdict is FAILED
    assert judge(config, call("pay", {"sum": {"eur": 10.009}})).verdict is FAILED


def test_a_pattern_stands_for_several_tools() -> None:
    config = {"expected": [{"pattern": "find_*"}, {"pattern": "find_*"}], "mode": "exact"}
    assert judge(config, calls("find_seat", "find_price")).verdict is PASSED
    assert judge(config, calls("find_seat", "book")).verdict is FAILED


def test_the_best_pairing_is_found_where_taking_the_first_that_fits_fails() -> None:
    expected = [{"tool": "find"}, {"tool": "find", "args": {"q": "a"}}]
    for mode in ("unordered", "any_order", "superset"):
        result = judge(
            {"expected": expected, "mode": mode}, call("find", {"q": "a"}), call("find", {"q": "b"})
        )
        assert result.verdict is PASSED, mode


@pytest.mark.parametrize(
    ("taken", "config", "verdict", "score"),
    [
        pytest.param(45, {}, PASSED, 1, id="in-time"),
        pytest.param(100, {}, PASSED, 1, id="inclusive"),
        pytest.param(45, {"onMissing": "skip"}, PASSED, 1, id="in-time-or-skip"),
        pytest.param(45, {"onMissing": "error"}, PASSED, 1, id="in-time-or-error"),
        pytest.param(120, {}, FAILED, 1 / 2, id="too-slow"),
        pytest.param(None, {}, FAILED, 1 / 2, id="unknown-fails"),
        pytest.param(None, {"onMissing": "pass"}, PASSED, 1, id="unknown-passes"),
        pytest.param(None, {"onMissing": "skip"}, Verdict.SKIPPED, None, id="unknown-skips"),
        pytest.param(None, {"onMissing": "error"}, Verdict.ERROR, None, id="unknown-errors"),
    ],
)
@pytest.mark.parametrize("mode", ["exact", "in_order", "any_order", "subset"])
def test_a_time_limit_counts_as_one_more_thing_expected(
    mode: str, taken: float | None, config: dict[str, Any], verdict: Verdict, score: float | None
) -> None:
    expected = [{"tool": "read", "maxDurationMs": 100}]
    result = judge({"mode": mode, "expected": expected, **config}, call("read", duration_ms=taken))
    assert (result.verdict, result.score) == (verdict, score)


@pytest.mark.parametrize("policy", ["fail", "pass", "skip", "error"])
def test_a_missing_duration_hides_no_missing_call(policy: str) -> None:
    expected = [{"tool": "read", "maxDurationMs": 100}, "write"]
    assert judge({"expected": expected, "onMissing": policy}, call("read")).verdict is FAILED


def test_the_time_limit_of_a_missing_call_is_not_kept() -> None:
    expected = [{"tool": "read", "maxDurationMs": 100}, {"tool": "write", "maxDurationMs": 100}]
    assert judge({"expected": expected}, call("read", duration_ms=45)).score == 2 / 4


def test_the_reason_names_slow_calls() -> None:
    result = judge({"expected": [{"tool": "read", "maxDurationMs": 100}]}, call("read", duration_ms=120.5))
    assert result.reason.endswith("read = call 1; too slow: call 1 took 120.5ms, wanted at most 100ms")


def test_of_equal_pairings_the_one_with_most_calls_in_time_is_taken() -> None:
    expected = [{"tool": "read", "maxDurationMs": 1000}, {"tool": "read", "maxDurationMs": 100}]
    slow, fast = call("read", duration_ms=500), call("read", duration_ms=50)
    assert judge({"mode": "unordered", "expected": expected}, fast, slow).verdict is PASSED
    assert judge({"mode": "in_order", "expected": expected[1:]}, slow, fast).verdict is PASSED


REFERENCE = [USER, calls("find"), {"role": "tool", "content": "12A"}, DONE]


def test_expected_messages_are_the_reference_when_the_config_has_none() -> None:
    ctx = context([USER, calls("find")], expected_messages=REFERENCE)
    assert run(Trajectory, {"mode": "exact"}, ctx).verdict is PASSED
    ctx = context([USER, call("find", {"a": 1})], expected_messages=REFERENCE)
    assert run(Trajectory, {"mode": "exact"}, ctx).verdict is FAILED
    ignored = {"mode": "exact", "argsMatchOverrides": {"find": "ignore"}}
    assert run(Trajectory, ignored, ctx).verdict is PASSED
    for made, verdict in (("[1]", PASSED), ("[2]", FAILED), ("{}", FAILED), ("{broken", FAILED)):
        ctx = context([USER, call("find", made)], expected_messages=[USER, call("find", "[1]")])
        assert run(Trajectory, {"mode": "exact"}, ctx).verdict is verdict
        assert run(Trajectory, ignored, ctx).verdict is PASSED


def test_expected_messages_without_calls_expect_none() -> None:
    assert judge({}, DONE, expected_messages=[USER, DONE]).verdict is PASSED
    assert judge({}, calls("find"), expected_messages=[USER, DONE]).verdict is FAILED


@pytest.mark.parametrize(
    ("on_missing", "verdict"),
    [("fail", FAILED), ("pass", PASSED), ("skip", Verdict.SKIPPED), ("error", Verdict.ERROR)],
)
def test_without_a_reference_the_config_decides(on_missing: str, verdict: Verdict) -> None:
    assert judge({"onMissing": on_missing}, DONE).verdict is verdict


TWO = {
    "role": "assistant",
    "tool_calls": [
        {"function": {"name": "find", "arguments": '{"city": "Bonn"}'}},
        {"function": {"name": "find", "arguments": '{"city": "Berlin"}'}},
    ],
}
TOOL = {"role": "tool", "content": "rain"}


@pytest.mark.parametrize(
    ("made", "verdict", "score"),
    [
        pytest.param([USER, TWO, TOOL, TOOL, DONE], PASSED, 1, id="same"),
        pytest.param(
            [USER, {**TWO, "tool_calls": TWO["tool_calls"][::-1]}, TOOL, TOOL, DONE], PASSED, 1, id="order"
        ),
        pytest.param([USER, TWO, TOOL, TOOL, {**DONE, "content": "No"}], PASSED, 1, id="texts-may-differ"),
        pytest.param([USER, TWO, TOOL, TOOL], FAILED, 0, id="one-message-less"),
        pytest.param([USER, TWO, TOOL, DONE, TOOL], FAILED, 0, id="other-roles"),
        pytest.param(
            [USER, call("find", {"city": "Bonn"}), TOOL, call("find", {"city": "Berlin"}), TOOL, DONE],
            FAILED,
            0,
            id="spread-over-messages",
        ),
        pytest.param(
            [USER, call("find", {"city": "Bonn"}), TOOL, TOOL, DONE], FAILED, 1 / 2, id="one-call-less"
        ),
    ],
)
def test_strict_compares_message_by_message(
    made: list[dict[str, Any]], verdict: Verdict, score: float
) -> None:
    ctx = context(made, expected_messages=[USER, TWO, TOOL, TOOL, DONE], is_final=True)
    result = run(Trajectory, {"mode": "strict"}, ctx)
    assert (result.verdict, result.score) == (verdict, score)


def test_strict_counts_the_calls_of_all_messages() -> None:
    made = [USER, call("find", {"city": "Bonn"}), TOOL, TWO, TOOL, TOOL, DONE]
    result = run(Trajectory, {"mode": "strict"}, context(made, expected_messages=made, is_final=True))
    assert result.verdict is PASSED
    assert "find = call 1, find = call 2, find = call 3" in result.reason


@pytest.mark.parametrize(
    ("mode", "expected", "made", "pending"),
    [
        pytest.param("exact", "abc", "ab", True, id="exact-so-far-right"),
        pytest.param("exact", "abc", "ax", False, id="exact-already-wrong"),
        pytest.param("exact", "ab", "abc", False, id="exact-too-many"),
        pytest.param("in_order", "ab", "xb", True, id="in-order-can-still-come"),
        pytest.param("any_order", "ab", "b", True, id="any-order-can-still-come"),
        pytest.param("superset", "ab", "x", True, id="superset-can-still-come"),
        pytest.param("unordered", "ab", "b", True, id="unordered-so-far-right"),
        pytest.param("unordered", "ab", "x", False, id="unordered-already-wrong"),
        pytest.param("subset", "ab", "x", False, id="subset-is-broken"),
        pytest.param("subset", "ab", "", True, id="subset-nothing-called-yet"),
        pytest.param("in_order", "", "a", False, id="nothing-was-expected"),
    ],
)
def test_a_verdict_is_pending_while_a_later_turn_can_make_it_pass(
    mode: str, expected: str, made: str, pending: bool
) -> None:
    messages = [calls(*made)] if made else [DONE]
    for facts, config in (({}, {}), ({"is_final": True}, {}), ({}, {"scope": "turn"})):
        result = judge({"mode": mode, "expected": list(expected), **config}, *messages, **facts)
        assert result.verdict is FAILED
        assert result.pending is (pending and not facts and not config)


@pytest.mark.parametrize(
    ("made", "pending"),
    [
        pytest.param([USER, calls("find")], True, id="so-far-right"),
        pytest.param([USER, calls("book")], False, id="other-call"),
        pytest.param([USER, DONE], False, id="call-left-out"),
        pytest.param([USER, USER], False, id="other-role"),
    ],
)
def test_a_strict_verdict_is_pending_while_the_messages_line_up(
    made: list[dict[str, Any]], pending: bool
) -> None:
    result = run(Trajectory, {"mode": "strict"}, context(made, expected_messages=REFERENCE))
    assert (result.verdict, result.pending) == (FAILED, pending)


def test_a_slow_call_is_pending_only_where_another_may_take_its_place() -> None:
    expected = [{"tool": "read", "maxDurationMs": 100}, "write"]
    slow = call("read", duration_ms=500)
    assert judge({"mode": "in_order", "expected": expected}, slow).pending
    assert not judge({"mode": "exact", "expected": expected}, slow).pending


def test_scope_turn_leaves_earlier_turns_out() -> None:
    ctx = context([USER, calls("a"), DONE, USER, calls("b")])
    assert run(Trajectory, {"mode": "exact", "expected": ["a", "b"]}, ctx).verdict is PASSED
    assert run(Trajectory, {"mode": "exact", "expected": ["b"], "scope": "turn"}, ctx).verdict is PASSED


def test_many_calls_are_paired_in_a_thread_with_the_same_result() -> None:
    expected = [{"tool": "find", "args": {"n": n}} for n in range(150)]
    made = [call("find", {"n": n}) for n in reversed(range(150))]
    assert judge({"mode": "unordered", "expected": expected}, *made).verdict is PASSED
    assert judge({"mode": "in_order", "expected": expected}, *made).score == pytest.approx(1 / 150)


def test_too_many_calls_are_an_error_with_the_limit() -> None:
    result = judge({"mode": "any_order", "expected": ["find"] * 501}, calls(*["find"] * 500))
    assert result.verdict is Verdict.ERROR
    assert result.error is not None
    assert result.error.code == "INPUT_TOO_LARGE"
    assert "250000" in result.reason


def test_calls_of_other_tools_cost_nothing_to_pair() -> None:
    result = judge({"mode": "in_order", "expected": ["a"] * 100}, calls(*["x"] * 4000, *["a"] * 100))
    assert result.verdict is PASSED


def test_a_reason_stays_short_however_much_is_wrong() -> None:
    began = time.process_time()
    result = judge({"mode": "exact", "expected": ["a"] * 1000}, calls(*["b"] * 3000))
    assert len(result.reason) < 4000
    assert len(result.checks) <= 100
    assert "and 980 more" in result.reason
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("config", "where"),
    [
        pytest.param({"mode": "EXACT"}, "/mode", id="mode"),
        pytest.param({"expected": [{"args": {}}]}, "/expected/0", id="no-tool"),
        pytest.param({"expected": [{"tool": "a", "pattern": "b"}]}, "/expected/0", id="two-names"),
        pytest.param({"expected": ["a"], "argsMatch": ["."]}, "/argsMatch", id="path"),
        pytest.param(
            {"argsMatchOverrides": {"find": ["a["]}}, "/argsMatchOverrides/find", id="override-path"
        ),
        pytest.param(
            {"expected": [{"tool": "a", "args": {}, "argsMatch": [""]}]}, "/expected/0/argsMatch", id="own"
        ),
        pytest.param({"argsMatch": ["items[*].id"]}, "/argsMatch", id="several-places"),
        pytest.param({"argsMatch": "fuzzy"}, "/argsMatch", id="args-mode"),
        pytest.param({"tolerance": -1}, "/tolerance", id="tolerance"),
    ],
)
def test_a_wrong_config_is_refused_with_its_place(config: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Trajectory.definition().compile(config)
    assert caught.value.problems[0].path == where
