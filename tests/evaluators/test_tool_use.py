import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evald.chat import Conversation
from evald.evaluator import InvalidConfig
from evald.result import Result, Verdict
from evald_server.evaluators import BUILT_INS
from evald_server.evaluators.tool_use import ToolCallBudget, ToolUse

from .contexts import calls, context, message, run

USER = {"role": "user", "content": "Book me a seat"}


def call(name: str, arguments: Any = "{}") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": text}}]}


def use(*expectations: dict[str, Any], messages: list[dict[str, Any]], **facts: Any) -> Result:
    scope = facts.pop("scope", "conversation")
    config = {"expectations": list(expectations), "scope": scope}
    return run(ToolUse, config, context([USER, *messages], **facts))


@pytest.mark.parametrize(
    ("expectation", "made", "met"),
    [
        pytest.param({"name": "a"}, "a", True, id="called"),
        pytest.param({"name": "a"}, "b", False, id="not-called"),
        pytest.param({"name": "a"}, "aaa", True, id="more-than-once"),
        pytest.param({"name": "a", "minCalls": 2}, "a", False, id="too-few"),
        pytest.param({"name": "a", "minCalls": 2}, "aba", True, id="just-enough"),
        pytest.param({"name": "a", "maxCalls": 1}, "aa", False, id="too-many"),
        pytest.param({"name": "a", "maxCalls": 1}, "", False, id="max-keeps-min-1"),
        pytest.param({"name": "a", "maxCalls": 0}, "b", True, id="forbidden-and-not-called"),
        pytest.param({"name": "a", "maxCalls": 0}, "a", False, id="forbidden-and-called"),
        pytest.param({"name": "a", "minCalls": 0}, "", True, id="optional"),
        pytest.param({"name": "a", "minCalls": 0, "maxCalls": 1}, "aa", False, id="optional-but-once"),
        pytest.param({"pattern": "*"}, "b", True, id="pattern"),
        pytest.param({"pattern": "[ab]", "minCalls": 2, "maxCalls": 2}, "acb", True, id="pattern-counts-all"),
        pytest.param({"pattern": "A"}, "a", False, id="pattern-minds-case"),
    ],
)
def test_an_expectation_is_met_by_the_number_of_calls(
    expectation: dict[str, Any], made: str, met: bool
) -> None:
    result = use(expectation, messages=[calls(*made)], is_final=True)
    assert result.verdict is (Verdict.PASSED if met else Verdict.FAILED)
    assert result.score == float(met)


ARGS = {"city": "Berlin", "days": 3, "hotel": {"stars": 4, "pool": True}}


@pytest.mark.parametrize(
    ("rule", "met"),
    [
        pytest.param({"args": {"city": "Berlin"}}, True, id="more-arguments-are-fine-by-default"),
        pytest.param({"args": {"city": "Bonn"}}, False, id="other-value"),
        pytest.param({"args": {"country": None}}, False, id="missing-is-not-null"),
        pytest.param({"args": {"city": "Berlin"}, "argsMatch": "exact"}, False, id="exact-with-more"),
        pytest.param({"args": ARGS, "argsMatch": "exact"}, True, id="exact"),
        pytest.param({"args": {**ARGS, "days": 3.0}, "argsMatch": "exact"}, True, id="3-is-3.0"),
        pytest.param({"args": {**ARGS, "days": True}, "argsMatch": "exact"}, False, id="3-is-not-true"),
        pytest.param({"args": {**ARGS, "x": 1}, "argsMatch": "subset"}, True, id="subset-with-less"),
        pytest.param({"args": {"city": "Berlin"}, "argsMatch": "subset"}, False, id="subset-with-more"),
        pytest.param({"args": {**ARGS, "days": 4}, "argsMatch": "subset"}, False, id="subset-differs"),
        pytest.param({"args": {"city": "Bonn"}, "argsMatch": "ignore"}, True, id="ignore"),
        pytest.param({"args": "any"}, True, id="any"),
        pytest.param({"args": {"hotel": {"stars": 4}}}, False, id="superset-is-flat"),
        pytest.param({"args": {"hotel": {"stars": 4}}, "argsMatch": "partial"}, True, id="partial-is-deep"),
        pytest.param({"args": ARGS, "argsMatch": "partial"}, True, id="partial-of-all"),
        pytest.param({"args": {"hotel": {"bar": 1}}, "argsMatch": "partial"}, False, id="partial-missing"),
        pytest.param({"args": {"hotel": {"stars": 4}}, "argsMatch": ["hotel.stars"]}, True, id="path"),
        pytest.param(
            {"args": {"hotel": {"stars": 5}}, "argsMatch": ["hotel.stars"]}, False, id="path-differs"
        ),
        pytest.param({"args": {"a": 1}, "argsMatch": ["hotel.sauna"]}, True, id="path-on-neither-side"),
        pytest.param({"args": {"spa": 1}, "argsMatch": ["spa"]}, False, id="path-on-one-side"),
        pytest.param({"args": {}, "argsMatch": ["city"]}, False, id="path-on-the-other-side"),
        pytest.param({"args": {"days": 3.4}, "tolerance": 0.5}, True, id="within-tolerance"),
        pytest.param({"args": {"days": 3.6}, "tolerance": 0.5}, False, id="beyond-tolerance"),
        pytest.param(
            {"args": {"city": "Berlin"}, "argsMatch": "exact", "ignore": ["d*", "hotel"]}, True, id="ignored"
        ),
        pytest.param(
            {"args": {"city": "Berlin"}, "argsMatch": "exact", "ignore": ["ays", "day", "hotel"]},
            False,
            id="ignored-by-whole-names",
        ),
        pytest.param(
            {"args": {"city": "Berlin"}, "argsMatch": "exact", "ignore": ["hotel"], "defaults": {"days": 3}},
            True,
            id="default-may-be-passed",
        ),
        pytest.param(
            {"args": {"city": "Berlin"}, "argsMatch": "exact", "ignore": ["hotel"], "defaults": {"days": 2}},
            False,
            id="not-the-default",
        ),
    ],
)
def test_calls_count_whose_arguments_fit(rule: dict[str, Any], met: bool) -> None:
    result = use({"name": "search", **rule}, messages=[call("search", ARGS)], is_final=True)
    assert result.verdict is (Verdict.PASSED if met else Verdict.FAILED)


def test_partial_compares_arrays_element_by_element() -> None:
    rule = {"name": "a", "args": {"x": [{"k": 1}]}, "argsMatch": "partial"}
    assert use(rule, messages=[call("a", {"x": [{"k": 1, "l": 2}]})]).verdict is Verdict.PASSED
    assert use(rule, messages=[call("a", {"x": [{"k": 1}, {}]})]).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    "rule", [{"args": {}}, {"args": {"x": 1}}, {"args": {"x": 1}, "argsMatch": ["x"]}], ids=str
)
@pytest.mark.parametrize("made", ["[1]", '"x"', "1"])
def test_arguments_that_are_no_object_never_fit(rule: dict[str, Any], made: str) -> None:
    for mode in (
        rule,
        {**rule, "ignore": ["y"]},
        {"argsMatch": "exact", **rule},
        {"argsMatch": "subset", **rule},
    ):
        result = use({"name": "a", **mode}, messages=[call("a", made)], is_final=True)
        assert (result.verdict, result.unproven) == (Verdict.FAILED, False)


def test_arguments_that_are_not_json_never_fit_and_the_reason_says_so() -> None:
    result = use({"name": "a", "args": {}}, messages=[call("a", "{broken")], is_final=True)
    assert result.verdict is Verdict.FAILED
    assert "not JSON" in result.reason


@pytest.mark.parametrize(
    ("rule", "made", "reason", "unproven"),
    [
        ({"maxCalls": 0}, ["{broken"], "want <=0 matching, got 0 and 1 whose arguments are not JSON", True),
        ({"maxCalls": 1}, [{"x": 1}, "{broken"], "got 1 and 1 whose arguments are not JSON", True),
        ({"maxCalls": 0}, [{"x": 1}, "{broken"], "want <=0 matching, got 1", False),
        ({"minCalls": 1}, ["{broken"], "want >=1 matching, got 0; its arguments are not JSON", True),
        ({"minCalls": 3}, [{"x": 1}, "{broken"], "want >=3 matching, got 1", False),
        ({"maxCalls": 0, "occurrence": "last"}, [{"x": 1}, "{broken"], "as the last call, got 0 and 1", True),
    ],
    ids=str,
)
def test_a_call_whose_arguments_are_not_json_may_be_the_one(
    rule: dict[str, Any], made: list[Any], reason: str, unproven: bool
) -> None:
    expectation = {"name": "a", "args": {"x": 1}, **rule}
    result = use(expectation, messages=[call("a", arguments) for arguments in made], is_final=True)
    assert (result.verdict, result.unproven) == (Verdict.FAILED, unproven)
    assert reason in result.reason
    other = use(expectation, {"name": "b"}, messages=[call("a", arguments) for arguments in made])
    assert not other.unproven, "it fails for another reason as well"


@pytest.mark.parametrize(
    ("occurrence", "wanted", "met"),
    [
        pytest.param("first", 1, True, id="first"),
        pytest.param("first", 3, False, id="not-the-first"),
        pytest.param("last", 3, True, id="last"),
        pytest.param("last", 2, False, id="not-the-last"),
        pytest.param(1, 2, True, id="index"),
        pytest.param(3, 3, False, id="beyond"),
    ],
)
def test_one_occurrence_may_be_looked_at(occurrence: str | int, wanted: int, met: bool) -> None:
    made = [call("a", {"n": number}) for number in (1, 2, 3)]
    result = use({"name": "a", "args": {"n": wanted}, "occurrence": occurrence}, messages=made)
    assert result.verdict is (Verdict.PASSED if met else Verdict.FAILED)


def test_the_score_is_the_part_of_expectations_met_and_the_reason_says_the_numbers() -> None:
    result = use({"name": "a"}, {"name": "b"}, {"name": "c", "maxCalls": 0}, messages=[calls("a", "c")])
    assert result.score == pytest.approx(1 / 3)
    assert result.reason == "1/3 expectations met, unmet: [b (want >=1, got 0), c (want <=0, got 1)]"
    assert [check.met for check in result.checks] == [True, False, False]
    many = use(*[{"name": "a"}] * 100, {"name": "b"}, messages=[calls("a")])
    assert [check.met for check in many.checks] == [False] + [True] * 99


def test_two_threads_that_read_the_calls_at_once_see_each_of_them_once() -> None:
    conversation = Conversation([message(calls(*["search"] * 200))])
    both_read, checked = threading.Barrier(2), threading.local()

    def check() -> None:
        if not hasattr(checked, "once"):
            checked.once = True
            both_read.wait(30)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: len(conversation.tool_calls(check)), range(2)))
    assert [*found, len(conversation.tool_calls())] == [200, 200, 200]


def test_no_expectations_pass_where_the_agent_has_answered() -> None:
    assert use(messages=[calls("a")]).score == 1.0
    silent = use(messages=[])
    assert (silent.verdict, silent.reason, silent.unproven) == (
        Verdict.FAILED,
        "No assistant message found",
        True,
    )


@pytest.mark.parametrize(
    ("expectation", "facts", "pending"),
    [
        pytest.param({"name": "b"}, {}, True, id="only-missing"),
        pytest.param({"name": "b"}, {"is_final": True}, False, id="final"),
        pytest.param({"name": "b"}, {"scope": "turn"}, False, id="turn"),
        pytest.param({"name": "a", "maxCalls": 0}, {}, False, id="called-too-often"),
        pytest.param({"name": "a", "args": {"n": 1}, "occurrence": "first"}, {}, False, id="first-was-wrong"),
        pytest.param({"name": "a", "args": {"n": 1}, "occurrence": "last"}, {}, True, id="last-may-change"),
        pytest.param({"name": "a", "args": {"n": 1}, "occurrence": 1}, {}, True, id="next-may-come"),
    ],
)
def test_a_verdict_is_pending_while_calls_are_only_missing(
    expectation: dict[str, Any], facts: dict[str, Any], pending: bool
) -> None:
    result = use(expectation, messages=[calls("a")], **facts)
    assert result.verdict is Verdict.FAILED
    assert result.pending is pending
    lost = use(expectation, {"name": "a", "maxCalls": 0}, messages=[calls("a")], **facts)
    assert not lost.pending, "no later call takes one back"


def test_scope_turn_leaves_earlier_turns_out() -> None:
    earlier = [calls("a"), {"role": "assistant", "content": "Done"}, USER, calls("b")]
    assert use({"name": "a"}, messages=earlier).verdict is Verdict.PASSED
    assert use({"name": "a"}, messages=earlier, scope="turn").verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("expectation", "where", "what"),
    [
        pytest.param({}, "/expectations/0", "exactly one of name and pattern", id="no-name"),
        pytest.param({"name": "a", "pattern": "b"}, "/expectations/0", "exactly one of", id="two-names"),
        pytest.param(
            {"name": "a", "minCalls": 3, "maxCalls": 2}, "/expectations/0", "minCalls 3", id="bounds"
        ),
        pytest.param({"name": "a", "minCalls": -1}, "/expectations/0/minCalls", "-1", id="negative"),
        pytest.param(
            {"name": "a", "minCalls": 2, "occurrence": "last"}, "/expectations/0", "a single call", id="one"
        ),
        pytest.param(
            {"name": "a", "args": {}, "argsMatch": ["a..b"]},
            "/expectations/0/argsMatch",
            "wanted a path such as",
            id="path",
        ),
    ],
)
def test_a_wrong_config_is_refused_with_its_place(expectation: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        ToolUse.definition().compile({"expectations": [expectation]})
    assert caught.value.problems[0].path == where
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("config", "made", "verdict", "score"),
    [
        pytest.param({"maxCalls": 2}, "ab", Verdict.PASSED, 1.0, id="inclusive"),
        pytest.param({"maxCalls": 2}, "abcd", Verdict.FAILED, 0.5, id="over"),
        pytest.param({"maxCalls": 0}, "a", Verdict.FAILED, 0.0, id="none-allowed"),
        pytest.param({"maxCalls": 0}, "", Verdict.PASSED, 1.0, id="none-made"),
        pytest.param({"minCalls": 2}, "ab", Verdict.PASSED, 1.0, id="enough"),
        pytest.param({"minCalls": 4}, "a", Verdict.FAILED, 0.25, id="under"),
        pytest.param({"minCalls": 1, "maxCalls": 2}, "abc", Verdict.FAILED, 2 / 3, id="both"),
    ],
)
def test_the_budget_of_tool_calls(config: dict[str, int], made: str, verdict: Verdict, score: float) -> None:
    result = run(ToolCallBudget, config, context([USER, calls(*made)]))
    assert (result.verdict, result.value) == (verdict, len(made))
    assert result.score == pytest.approx(score)
    assert result.reason.startswith(f"{len(made)} tool call(s)")


def test_the_budget_counts_the_turn_unless_told_otherwise() -> None:
    ctx = context([USER, calls("a", "b"), USER, calls("c")])
    assert run(ToolCallBudget, {"maxCalls": 1}, ctx).verdict is Verdict.PASSED
    result = run(ToolCallBudget, {"maxCalls": 1, "scope": "conversation"}, ctx)
    assert result.reason == "3 tool call(s), exceeding budget of 1: a, b, c"
    assert result.metadata == {"toolCallCount": 3, "toolNames": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("evaluator", "config"), [(ToolCallBudget, {"maxCalls": 0}), (ToolUse, {"expectations": []})]
)
def test_that_a_silent_turn_has_no_calls_proves_nothing(evaluator: Any, config: dict[str, Any]) -> None:
    ctx = context([USER, {"role": "assistant", "content": "Hello"}, USER])
    for scope, verdict in (("turn", Verdict.FAILED), ("conversation", Verdict.PASSED)):
        result = run(evaluator, {**config, "scope": scope}, ctx)
        assert (result.verdict, result.unproven) == (verdict, verdict is Verdict.FAILED)


@pytest.mark.parametrize(
    ("facts", "scope", "pending"),
    [
        pytest.param({}, "conversation", True, id="more-turns-follow"),
        pytest.param({"is_final": True}, "conversation", False, id="final"),
        pytest.param({}, "turn", False, id="turn"),
    ],
)
def test_too_few_calls_are_pending_while_turns_follow(
    facts: dict[str, Any], scope: str, pending: bool
) -> None:
    result = run(ToolCallBudget, {"minCalls": 2, "scope": scope}, context([USER, calls("a")], **facts))
    assert result.pending is pending


@pytest.mark.parametrize("config", [{}, {"minCalls": 2, "maxCalls": 1}, {"maxCalls": "3"}], ids=str)
def test_a_wrong_budget_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        ToolCallBudget.definition().compile(config)


@pytest.mark.parametrize("key", ["name", "tool"])
@pytest.mark.parametrize(("type_name", "rules"), [("tool-use", "expectations"), ("trajectory", "expected")])
def test_a_tool_is_named_the_same_way_everywhere(type_name: str, rules: str, key: str) -> None:
    config = {rules: [{key: "search", "args": {"city": "Berlin"}, "argsMatch": "superset"}]}
    ctx = context([call("search", ARGS)], is_final=True)
    assert run(BUILT_INS[type_name], config, ctx).verdict is Verdict.PASSED
    both = {rules: [{"name": "search", "tool": "search"}]}
    with pytest.raises(InvalidConfig, match="got both name and tool"):
        run(BUILT_INS[type_name], both, ctx)


@pytest.mark.parametrize("type_name", ["tool-use", "trajectory", "json-match", "field-accuracy"])
def test_the_config_schema_says_what_each_choice_means(type_name: str) -> None:
    def choices(schema: Any) -> set[str]:
        found = set(schema.get("enum", ()))
        return found.union(*(choices(branch) for branch in schema.get("anyOf", ())))

    schema = json.loads(BUILT_INS[type_name].definition().config_schema())
    described = 0
    for owner in (schema, *schema.get("$defs", {}).values()):
        for key, inner in owner.get("properties", {}).items():
            unexplained = [
                value for value in choices(inner) if f"{value}" not in inner.get("description", "")
            ]
            if key in {"mode", "argsMatch", "score", "scope", "arrays", "extract", "match", "aggregation"}:
                described += 1
                assert not unexplained, f"{key}: {unexplained}"
    assert described
