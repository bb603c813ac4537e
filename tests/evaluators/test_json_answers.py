import asyncio
import json
import time
from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.evaluator import InvalidConfig
from evald.result import Result, Verdict
from evald_server.evaluators.field_accuracy import FieldAccuracy, read_date
from evald_server.evaluators.json_answers import IsJson, JsonSchema
from evald_server.evaluators.json_match import JsonMatch
from evald_server.jsonschema.schema import close_workers

from .contexts import answered, context, run

PASSED, FAILED = Verdict.PASSED, Verdict.FAILED

# The seat-availability scenario: a boolean, and slots with a date and a time of day.
SLOTS = {
    "type": "object",
    "properties": {
        "available": {"type": "boolean"},
        "slots": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "date": {"type": "string", "format": "date"},
                    "time": {"type": "string", "pattern": "^\\d{2}:\\d{2}$"},
                },
                "required": ["date", "time"],
            },
        },
    },
    "required": ["available", "slots"],
}
GOOD = '{"available":true,"slots":[{"date":"2026-01-31","time":"09:30"}]}'


def check(schema: Any, answer: str, **facts: Any) -> Result:
    return run(JsonSchema, {"schema": schema}, answered(answer, **facts))


def test_an_answer_that_matches_passes_without_evidence() -> None:
    result = check(SLOTS, GOOD)
    assert result == Result(PASSED, "Response matches JSON schema", 1.0)


def test_an_answer_that_does_not_match_fails_with_every_place() -> None:
    result = check(SLOTS, '{"available":1,"slots":[{"date":"2026-02-31","time":"9"}]}')
    assert (result.verdict, result.score) == (FAILED, 0.0)
    assert result.reason.startswith("Schema validation failed: /available: 1 is not of type")
    assert result.metadata is not None
    assert [error["path"] for error in result.metadata["errors"]] == [
        "/available",
        "/slots/0/date",
        "/slots/0/time",
    ]


@pytest.mark.parametrize(
    "answer",
    ["Sorry", "{", '{"a": NaN}', '{"a": 1} and more', "```json\n{}\n```", '"\\ud800"'],
    ids=["prose", "cut-off", "nan", "trailing", "fenced", "surrogate"],
)
def test_an_answer_that_is_no_json_is_told_apart(answer: str) -> None:
    result = check({"type": ["object", "string"]}, answer)
    assert (result.verdict, result.score) == (FAILED, 0.0)
    assert result.reason.startswith("Response is not valid JSON: ")


def test_a_turn_without_an_answer_fails() -> None:
    for evaluator, config in (
        (JsonSchema, {"schema": {"items": True}}),
        (IsJson, {}),
        (JsonMatch, {"expected": 1}),
    ):
        result = run(evaluator, config, context([{"role": "user", "content": "1"}]))
        assert (result.verdict, result.reason) == (FAILED, "No assistant message found")


def test_only_final_skips_other_turns() -> None:
    config = {"schema": SLOTS, "onlyFinal": True}
    assert run(JsonSchema, config, answered("hi")) == Result(Verdict.SKIPPED, "Skipped (not final turn)")
    assert run(JsonSchema, config, answered("hi", is_final=True)).verdict is FAILED
    assert run(JsonSchema, config, answered(GOOD, is_final=True)).verdict is PASSED


def test_text_blocks_are_the_answer_too() -> None:
    ctx = context(
        [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": '{"a"'}, {"type": "text", "text": ":1}"}],
            }
        ]
    )
    assert run(JsonSchema, {"schema": {"required": ["a"]}}, ctx).verdict is PASSED


def test_a_long_or_surrogate_value_never_breaks_the_reason() -> None:
    result = check({"additionalProperties": {"maxLength": 1}}, json.dumps({"x" * 300: "y" * 5000}))
    assert len(result.reason) < 1000
    result = check({"required": ["b"]}, '{"a": "\\ud800"}')
    result.reason.encode()


@pytest.mark.parametrize(
    ("extract", "answer", "found"),
    [
        pytest.param("fenced", 'Here:\n```json\n{"a": 1}\n```\nDone', {"a": 1}, id="fenced"),
        pytest.param("fenced", '```\n{"a": 1}\n```', {"a": 1}, id="fenced-unmarked"),
        pytest.param("fenced", '```py\nx\n```\n```JSON\n{"a": 1}\n```', {"a": 1}, id="fenced-marked-one"),
        pytest.param("fenced", '```\n{"a": 1}\n```\n```\n{"b": 1}\n```', {"a": 1}, id="fenced-first"),
        pytest.param("fenced", '```py\nx\n```\n```json x\n{"a": 1}\n```', {"a": 1}, id="fenced-title"),
        pytest.param("fenced", '```\n```\n```json\n{"a": 1}\n```', {"a": 1}, id="fenced-after-empty"),
        pytest.param("fenced", '~~~json\n{"a": 1}\n~~~', {"a": 1}, id="fenced-tildes"),
        pytest.param("fenced", '```json\n{"a": 1}', {"a": 1}, id="fenced-open-end"),
        pytest.param("fenced", '{"a": 1}', {"a": 1}, id="fenced-without-fence"),
        pytest.param("fenced", "```json\n```", None, id="fenced-empty"),
        pytest.param("first", 'The answer is {"a": 1} as expected.', {"a": 1}, id="first"),
        pytest.param("first", 'A set {x} and [1, {"a": 2}] {"b": 1}', [1, {"a": 2}], id="first-readable"),
        pytest.param("first", 'Nested { {"a": 1}', {"a": 1}, id="first-after-a-brace"),
        pytest.param("first", '{"a": NaN} {"a": 1}', {"a": 1}, id="first-not-nan"),
        pytest.param("first", '{{"a": 1}}', {"a": 1}, id="first-in-two-braces"),
        pytest.param("first", '1e999 is no {"a": 1}', {"a": 1}, id="first-alone-is-read"),
        pytest.param("first", "42", 42, id="first-of-a-scalar"),
        pytest.param("first", ' "a { b"\n', "a { b", id="first-of-a-text"),
        pytest.param("first", "The answer is 42", None, id="first-needs-a-bracket-in-prose"),
        pytest.param("object", 'See [1]: {x} {"a": 1}', {"a": 1}, id="object-after-an-array"),
        pytest.param("object", '[{"a": 1}, {"b": 1}]', {"a": 1}, id="object-of-an-array"),
        pytest.param("object", "According to [1] it is so.", None, id="object-in-none"),
        pytest.param("object", "42", None, id="object-of-a-scalar"),
        pytest.param("none", ' {"a": 1}\n', {"a": 1}, id="none-with-space"),
    ],
)
def test_json_may_be_extracted(extract: str, answer: str, found: Any) -> None:
    schema = {"const": found} if found is not None else {"items": True}
    result = run(JsonSchema, {"schema": schema, "extract": extract}, answered(answer))
    assert result.verdict is (PASSED if found is not None else FAILED), result.reason


@pytest.mark.parametrize(
    "answer", ["{" * 500_000, '{"a":' * 100_000, '["' * 300_000], ids=["braces", "open", "quotes"]
)
def test_looking_for_json_takes_no_long_time(answer: str) -> None:
    began = time.process_time()
    for extract in ("first", "object"):
        result = run(IsJson, {"extract": extract}, answered(answer))
        assert result.verdict is Verdict.ERROR or (extract, answer[0]) == ("object", "[")
    assert time.process_time() - began < 1


def test_another_message_of_the_turn_may_be_read() -> None:
    ctx = context([{"role": "assistant", "content": "{}"}, {"role": "assistant", "content": "Done"}])
    assert run(IsJson, {}, ctx).verdict is FAILED
    assert run(IsJson, {"message": "first"}, ctx).verdict is PASSED
    assert run(IsJson, {"message": "all", "extract": "first"}, ctx).verdict is PASSED


def doubling(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"a{levels}": {"type": "string"}}
    for level in range(levels):
        below = {"$ref": f"#/$defs/a{level + 1}"}
        definitions[f"a{level}"] = {"anyOf": [below, below]}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("schema", "answer", "verdict", "reason"),
    [
        pytest.param(doubling(40), '"x"', PASSED, "Response matches JSON schema", id="passes"),
        pytest.param(
            doubling(9), "1", FAILED, "Schema validation failed: the whole answer: 1 is not", id="fails"
        ),
        pytest.param(
            doubling(40), "1", Verdict.ERROR, "The check did not end within 0.25 s", id="takes-long"
        ),
        pytest.param(
            {"type": "array"},
            json.dumps(["x" * 1_500_000]),
            PASSED,
            "Response matches JSON schema",
            id="long-answer",
        ),
        pytest.param(doubling(40), "{", FAILED, "Response is not valid JSON", id="no-json"),
        pytest.param(
            doubling(40), '"\\ud800"', FAILED, "Response is not valid JSON: a string", id="surrogate"
        ),
    ],
)
def test_what_may_take_long_is_checked_in_a_worker(
    schema: dict[str, Any], answer: str, verdict: Verdict, reason: str
) -> None:
    async def evaluate() -> Result:
        outcome = JsonSchema.definition().compile({"schema": schema})(answered(answer))
        try:
            return outcome if isinstance(outcome, Result) else await outcome
        finally:
            await close_workers()

    result = asyncio.run(evaluate())
    assert result.verdict is verdict
    assert result.reason.startswith(reason)
    if verdict is Verdict.ERROR:
        assert result.error is not None
        assert result.error.code == "TIMEOUT"


def test_the_event_loop_goes_on_while_a_worker_is_busy() -> None:
    async def beats() -> int:
        evaluate = JsonSchema.definition().compile({"schema": doubling(40)})
        task = asyncio.ensure_future(evaluate(answered("1")))  # type: ignore[arg-type]
        count = 0
        while not task.done():
            await asyncio.sleep(0.005)
            count += 1
        await close_workers()
        return count

    # 0.25 s and more in steps of 5 ms; a blocked loop would see one.
    assert asyncio.run(beats()) > 10


def test_a_wrong_schema_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidConfig) as caught:
        JsonSchema.definition().compile({"schema": {"properties": {"a": {"type": "text"}}}})
    assert caught.value.problems[0].path == "/schema/properties/a/type"
    with pytest.raises(InvalidConfig, match="schema: missing"):
        JsonSchema.definition().compile({})


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("1", PASSED),
        ("null", PASSED),
        ('"text"', PASSED),
        ("true", PASSED),
        ('{ "a": 1, "b": "hello" }', PASSED),
        (' [{ "a": 1 }]\n', PASSED),
        ('[{ "a": 1 }', FAILED),
        ("NaN", FAILED),
        ("Infinity", FAILED),
        ("{'a': 1}", FAILED),
        ('{"a": 1,}', FAILED),
        ("// note\n{}", FAILED),
        ("", FAILED),
    ],
)
def test_is_json_is_strict_and_takes_scalars(answer: str, verdict: Verdict) -> None:
    result = run(IsJson, {}, answered(answer))
    assert (result.verdict, result.score) == (verdict, float(verdict is PASSED))


def match(got: Any, wanted: Any, **config: Any) -> Result:
    return run(JsonMatch, {"expected": wanted, **config}, answered(json.dumps(got)))


@pytest.mark.parametrize(
    ("got", "wanted", "score"),
    [
        pytest.param({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}, 1, id="order-of-keys"),
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": 3}, 1 / 2, id="one-of-two"),
        pytest.param({"a": 1}, {"b": {"a": 1}}, 0, id="nothing-in-common"),
        pytest.param({}, {}, 1, id="both-empty"),
        pytest.param({}, {"a": 1}, 0, id="empty"),
        pytest.param([], {}, 0, id="other-kind"),
        pytest.param(1, 1.0, 1, id="1-is-1.0"),
        pytest.param(True, 1, 0, id="true-is-not-1"),
        pytest.param({"a": [1, True]}, {"a": [1, 1]}, 1 / 2, id="true-is-not-1-inside"),
        pytest.param(None, "", 0, id="null-is-not-empty"),
        pytest.param(None, None, 1, id="null"),
        pytest.param({"a": None}, {}, 0, id="null-is-not-missing"),
        pytest.param([1, 2, 3], [1, 2], 2 / 3, id="more-elements"),
        pytest.param([1, 2], [1, 2, 3], 2 / 3, id="fewer-elements"),
        pytest.param({}, {"a": {}}, 0, id="lacks-an-empty-one"),
        pytest.param({"a": []}, {}, 0, id="has-an-empty-one-more"),
        pytest.param({"a": {}, "b": 1}, {"a": {}, "b": 2}, 1 / 2, id="empty-ones-agree"),
        pytest.param({"a": [], "b": 1}, {"a": [], "b": 2}, 1 / 2, id="empty-arrays-agree"),
        pytest.param({"a": [1, 2, 3], "b": 1}, {"a": 5, "b": 1}, 1 / 4, id="array-for-a-number"),
        pytest.param([2, 1], [1, 2], 0, id="order-of-elements"),
        pytest.param({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1}, "d": 3}, 2 / 3, id="nested"),
    ],
)
def test_json_is_compared_leaf_by_leaf(got: Any, wanted: Any, score: float) -> None:
    result = match(got, wanted)
    assert result.score == pytest.approx(score)
    assert result.verdict is (PASSED if score == 1 else FAILED)


@pytest.mark.parametrize(
    ("config", "got", "wanted", "score"),
    [
        pytest.param({"mode": "subset"}, {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}}, 1, id="subset"),
        pytest.param({"mode": "subset"}, {"a": 1}, {"a": 1, "b": 2}, 1 / 2, id="subset-lacks"),
        pytest.param({"mode": "subset"}, [1, 2, 3], [1, 2], 1, id="subset-elements"),
        pytest.param({"mode": "superset"}, {"a": 1}, {"a": 1, "b": 2}, 1, id="superset"),
        pytest.param({"mode": "superset"}, {"a": 1, "c": 1}, {"a": 1, "b": 2}, 1 / 2, id="superset-more"),
        pytest.param({"mode": "superset"}, [], [1], 1, id="superset-of-no-elements"),
        pytest.param({"mode": "subset"}, [1], [], 1, id="subset-without-elements"),
        pytest.param({"arrays": "unordered"}, [3, 1, 2], [1, 2, 3], 1, id="unordered"),
        pytest.param({"arrays": "unordered"}, [1, 1.5], [1.5, 1], 1, id="unordered-fractions"),
        pytest.param(
            {"arrays": "unordered"},
            [{"a": n, "b": [n, 0]} for n in range(100)],
            [{"b": [0, n], "a": float(n)} for n in range(100, 0, -1)],
            298 / 300,
            id="unordered-equal-ones-need-no-search",
        ),
        pytest.param(
            {"arrays": "unordered"},
            [{"x": 1, "y": 1}, {"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 1, "c": 1}],
            [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 9, "c": 9}, {"x": 1, "y": 2}],
            5 / 8,
            id="unordered-most-similar",
        ),
        pytest.param(
            {"arrays": "unordered"},
            [{"b": 1, "a": [2, 1]}],
            [{"a": [1, 2], "b": 1.0}],
            1,
            id="unordered-inside",
        ),
        pytest.param(
            {"arrays": "unordered"},
            [{"a": 1, "b": 2}] * 2,
            [{"a": 1, "b": 2}, {"a": 1, "b": 3}],
            3 / 4,
            id="rest",
        ),
        pytest.param(
            {"arrays": "unordered", "tolerance": 0.1},
            [{"a": 2.01, "b": 1}, {"a": 1.01, "b": 1}],
            [{"a": 1, "b": 1}, {"a": 2, "b": 1}],
            1,
            id="most-in-common",
        ),
        pytest.param(
            {"arrays": "unordered", "tolerance": 0.1}, [1.1, 1.2], [1.0, 1.1], 1, id="equal-ones-part"
        ),
        pytest.param(
            {"arrays": "unordered", "tolerance": 0.1}, [1.1, 1.3], [1.0, 1.1], 1 / 2, id="too-far-to-part"
        ),
        pytest.param(
            {"arrays": "unordered", "ignore": ["[0].id"]},
            [{"id": 1}, {"id": 7}],
            [{"id": 1}, {"id": 1}],
            1,
            id="ignored-in-one-place",
        ),
        pytest.param(
            {"arrays": "unordered", "mode": "subset"},
            [{"a": {}, "b": {}, "c": 1}, {"a": {"k": 1}, "b": {"k": 1}}],
            [{"a": {}, "b": {}}, {"c": 1}],
            1,
            id="match-beats-most-in-common",
        ),
        pytest.param(
            {"arrays": "unordered", "mode": "superset"}, [{}], [1, {"a": 1}], 1, id="empty-one-matches"
        ),
        pytest.param({"arrays": "unordered"}, [{"a": 1}] * 2, [{"a": 1}] * 3, 2 / 3, id="unordered-fewer"),
        pytest.param(
            {"arrays": "unordered", "mode": "superset"},
            [{"a": 1}, {"b": 1}],
            [{"b": 1}, {"c": 1}, {"a": 1}],
            1,
            id="both",
        ),
        pytest.param({"ignore": ["b"]}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, 1, id="ignore"),
        pytest.param({"ignore": ["b"]}, {"a": 1, "b": 2}, {"a": 1}, 1, id="ignore-extra"),
        pytest.param({"ignore": ["x.id"]}, {"x": {"id": 1}}, {}, 1, id="ignore-all-of-it"),
        pytest.param({"ignore": ["x.id"]}, {}, {"x": {"id": 1}}, 1, id="ignore-all-that-lacks"),
        pytest.param(
            {"ignore": ["x.id", "x[0]"]}, {"x": {"id": 1}}, {"x": [1]}, 0, id="ignore-all-of-other-kinds"
        ),
        pytest.param(
            {"ignore": ["items[*].id"]}, {"items": [{"id": 1}]}, {"items": [{"id": 2}]}, 1, id="every"
        ),
        pytest.param(
            {"ignore": ["/items/0/id"]}, {"items": [{"id": 1}]}, {"items": [{"id": 2}]}, 1, id="pointer"
        ),
        pytest.param(
            {"ignore": ["id"]}, {"items": [{"id": 1}]}, {"items": [{"id": 2}]}, 0, id="not-everywhere"
        ),
        pytest.param({"tolerance": 0.1}, {"a": 1.1}, {"a": 1.0}, 1, id="tolerance"),
        pytest.param({"tolerance": 0.1}, {"a": 1.11}, {"a": 1.0}, 0, id="beyond-tolerance"),
        pytest.param({"tolerance": 1}, {"a": True}, {"a": 1}, 0, id="tolerance-is-for-numbers"),
        pytest.param({"tolerance": 1}, 10**400, 0.5, 0, id="huge"),
    ],
)
def test_the_comparison_may_be_loosened(config: dict[str, Any], got: Any, wanted: Any, score: float) -> None:
    assert match(got, wanted, **config).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("config", "ended_early"), [({"tolerance": 0.1}, True), ({"mode": "subset"}, True), ({}, False)], ids=str
)
def test_a_search_in_any_order_that_ends_early_proves_no_difference(
    config: dict[str, Any], ended_early: bool
) -> None:
    uses_the_budget_up = "x" * 400_000
    for much, unproven in ((uses_the_budget_up, ended_early), ("", False)):
        result = match([1.5, [2], much], [1, [2], 3], arrays="unordered", **config)
        assert (result.verdict, result.unproven) == (FAILED, unproven)
        assert ("search ended" in result.reason) is unproven


def test_differences_are_listed_with_their_places() -> None:
    result = match({"a": {"x": 1}, "c": "\ud800"}, {"a": {"x": 2, "y/z": [1]}})
    assert result.reason == (
        "Response differs from the expected JSON in 3 of 3 value(s): /a/x: got 1, expected 2; "
        '/a/y~1z: got nothing, expected [1]; /c: unexpected "\\ud800"'
    )
    assert result.metadata == {
        "differences": [
            {"path": "/a/x", "got": "1", "expected": "2"},
            {"path": "/a/y~1z", "got": "nothing", "expected": "[1]"},
            {"path": "/c", "got": '"\\ud800"', "expected": "nothing"},
        ]
    }


def test_a_reason_stays_short_however_much_differs() -> None:
    result = match({f"k{n}": "x" * 1000 for n in range(5000)}, {})
    assert len(result.reason) < 4000
    assert result.reason.endswith("and 4980 more")


@pytest.mark.parametrize("size", [8, 400])
@pytest.mark.parametrize("depth", [1, 12])
def test_comparing_in_any_order_takes_no_long_time(size: int, depth: int) -> None:
    def deep(value: int) -> Any:
        data: Any = [{"a": value + n} for n in range(size)]
        for _ in range(depth):
            data = [data, [value]]
        return data

    began = time.process_time()
    assert match(deep(0), deep(1_000_000), arrays="unordered").verdict is FAILED
    assert time.process_time() - began < 3


@pytest.mark.parametrize("config", [{}, {"arrays": "unordered"}, {"ignore": ["x"]}], ids=str)
def test_a_very_deep_answer_fails_and_does_not_crash(config: dict[str, Any]) -> None:
    deep = "[" * 500 + "]" * 500
    result = run(JsonMatch, {"expected": [1], **config}, answered(deep))
    assert result.verdict is FAILED


def test_the_reference_comes_from_the_config_else_from_the_context() -> None:
    expected = {"role": "assistant", "content": '{"a": 3}'}
    contexts: list[tuple[dict[str, Any], EvaluatorContext]] = [
        ({"expected": {"a": 1}}, answered('{"a": 1}', expected_data={"a": 2})),
        ({"expected": None}, answered("null", expected_data={"a": 2})),
        ({}, answered('{"a": 2}', expected_data={"a": 2}, expected_text='{"a": 9}')),
        ({}, answered("null", expected_data=None)),
        ({}, answered('{"a": 2}', expected_text='{"a": 2}')),
        ({}, answered('{"a": 3}', expected_messages=[{"role": "user", "content": "7"}, expected])),
        ({}, answered('{"a": 3}', expected_messages=[expected, {"role": "user", "content": "7"}])),
        ({}, answered('{"a": 3}', expected_messages=[expected, {"role": "assistant", "content": ""}])),
    ]
    for config, ctx in contexts:
        assert run(JsonMatch, config, ctx).verdict is PASSED, (config, ctx.expected.data)


@pytest.mark.parametrize(
    ("on_missing", "verdict"),
    [("fail", FAILED), ("pass", PASSED), ("skip", Verdict.SKIPPED), ("error", Verdict.ERROR)],
)
def test_without_a_reference_the_config_decides(on_missing: str, verdict: Verdict) -> None:
    for ctx in (answered("1"), answered("1", expected_text="not JSON")):
        assert run(JsonMatch, {"onMissing": on_missing}, ctx).verdict is verdict


INVOICE = {
    "card": 4111111111111111,
    "number": "INV-001",
    "amount": 1500,
    "date": "15-JAN-2025",
    "vendor": {"name": "Acme"},
    "items": [{"price": 100}, {"price": 200}],
}


def accuracy(got: Any, *fields: dict[str, Any], **config: Any) -> Result:
    return run(
        FieldAccuracy, {"fields": list(fields), "expected": INVOICE, **config}, answered(json.dumps(got))
    )


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        pytest.param({"path": "number"}, {"number": "INV-001"}, True, id="exact"),
        pytest.param({"path": "number"}, {"number": "inv-001"}, False, id="exact-differs"),
        pytest.param({"path": "amount"}, {"amount": "1500"}, False, id="exact-minds-types"),
        pytest.param({"path": "vendor"}, {"vendor": {"name": "Acme"}}, True, id="exact-object"),
        pytest.param({"path": "vendor.name"}, {"vendor": {"name": "Acme"}}, True, id="nested"),
        pytest.param({"path": "items[1].price"}, {"items": [{}, {"price": 200}]}, True, id="index"),
        pytest.param({"path": "/items/1/price"}, {"items": [{}, {"price": 201}]}, False, id="pointer"),
        pytest.param(
            {"path": "amount", "match": "numeric"}, {"amount": "1,500.00"}, True, id="number-as-text"
        ),
        pytest.param(
            {"path": "amount", "match": "numeric"}, {"amount": 1500.4}, False, id="equal-by-default"
        ),
        pytest.param({"path": "amount", "match": "numeric"}, {"amount": "about"}, False, id="no-number"),
        pytest.param({"path": "number", "match": "numeric"}, {"number": 1}, False, id="no-number-expected"),
        pytest.param({"path": "amount", "match": "numeric"}, {"amount": "0,1,500"}, False, id="other-commas"),
        pytest.param({"path": "amount", "match": "numeric"}, {"amount": "1_500"}, False, id="underscore"),
        pytest.param({"path": "amount", "match": "numeric"}, {"amount": "150,0"}, False, id="decimal-comma"),
        pytest.param({"path": "amount", "match": "numeric"}, {"amount": True}, False, id="true-is-no-number"),
        pytest.param(
            {"path": "card", "match": "numeric"}, {"card": "4111111111111112"}, False, id="last-of-16-digits"
        ),
        pytest.param(
            {"path": "amount", "match": "numeric", "tolerance": 1}, {"amount": 1501}, True, id="absolute"
        ),
        pytest.param(
            {"path": "amount", "match": "numeric", "tolerance": 1}, {"amount": 1501.5}, False, id="beyond"
        ),
        pytest.param(
            {"path": "amount", "match": "numeric", "tolerance": 0.1, "relative": True},
            {"amount": 1650},
            True,
            id="relative",
        ),
        pytest.param(
            {"path": "amount", "match": "numeric", "tolerance": 0.1, "relative": True},
            {"amount": 1651},
            False,
            id="over",
        ),
        pytest.param({"path": "date", "match": "date"}, {"date": "2025-01-15T23:00:00Z"}, True, id="date"),
        pytest.param({"path": "date", "match": "date"}, {"date": "2025-01-16"}, False, id="other-day"),
        pytest.param(
            {"path": "date", "match": "date"}, {"date": "2025-01-15 to 2025-02-28"}, False, id="two-days"
        ),
        pytest.param({"path": "date", "match": "date"}, {"date": "soon"}, False, id="no-date"),
        pytest.param({"path": "number", "match": "date"}, {"number": "INV-001"}, False, id="no-dates"),
        pytest.param(
            {"path": "number", "match": "date"}, {"number": "2025-01-15"}, False, id="no-date-expected"
        ),
        pytest.param({"path": "number"}, {}, False, id="missing"),
    ],
)
def test_a_field_is_right_or_wrong(field: dict[str, Any], value: Any, right: bool) -> None:
    result = accuracy(value, field)
    assert (result.verdict, result.score) == (PASSED if right else FAILED, float(right))


def test_the_score_is_the_weight_of_right_fields() -> None:
    fields: list[dict[str, Any]] = [{"path": "number", "weight": 3}, {"path": "amount"}]
    result = accuracy({"number": "INV-001"}, *fields)
    assert (result.verdict, result.score) == (FAILED, 0.75)
    assert result.reason == "1 of 2 field(s) right; wrong: amount: missing, but required"
    assert [(check.text, check.met) for check in result.checks] == [
        ("number", True),
        ("amount: missing, but required", False),
    ]
    assert accuracy({"number": "INV-001"}, *fields, aggregation="all").score == 0.0
    last = accuracy({"amount": 1500}, *fields)
    assert (last.verdict, last.score) == (FAILED, 0.25)


def test_a_field_without_weight_decides_nothing_unless_all_must_be_right() -> None:
    fields: list[dict[str, Any]] = [{"path": "number"}, {"path": "amount", "weight": 0}]
    assert accuracy({"number": "INV-001"}, *fields).verdict is PASSED
    assert accuracy({"number": "INV-001"}, *fields, aggregation="all").verdict is FAILED
    for amount, verdict in ((1500, PASSED), (1501, FAILED)):
        alone = accuracy({"amount": amount}, fields[1])
        assert (alone.verdict, alone.score) == (verdict, float(verdict is PASSED))


def test_a_wrong_field_decides_however_little_it_weighs() -> None:
    fields: list[dict[str, Any]] = [{"path": "number", "weight": 1e9}, {"path": "amount", "weight": 1e-9}]
    assert accuracy({"number": "INV-001"}, *fields).verdict is FAILED


@pytest.mark.parametrize(
    ("got", "config", "unproven"),
    [
        pytest.param({"number": 1, "amount": 1500}, {}, True, id="alone"),
        pytest.param({"number": 1, "amount": 1501}, {}, False, id="beside-a-difference"),
        pytest.param({"amount": 1500}, {}, False, id="the-answer-lacks-it"),
        pytest.param({"number": 1, "amount": 1500, "date": 1}, {}, True, id="a-difference-without-weight"),
        pytest.param({"number": 1, "amount": 1500, "date": 1}, {"aggregation": "all"}, False, id="all"),
    ],
)
def test_an_expected_value_that_cannot_be_compared_proves_nothing(
    got: Any, config: dict[str, Any], unproven: bool
) -> None:
    fields: list[dict[str, Any]] = [
        {"path": "number", "match": "numeric"},
        {"path": "amount"},
        {"path": "date", "weight": 0, "required": False},
    ]
    result = accuracy(got, *fields, **config)
    assert (result.verdict, result.unproven) == (FAILED, unproven)
    assert "wrong: number: " in result.reason


def test_fields_that_cannot_be_compared_are_left_out_and_none_left_is_missing_data() -> None:
    optional: dict[str, Any] = {"path": "amount", "required": False}
    unknown = {"path": "tax"}
    assert accuracy({"number": "INV-001", "tax": 1}, {"path": "number"}, optional, unknown).score == 1.0
    assert accuracy({"tax": 1}, optional, unknown).verdict is FAILED
    assert accuracy({"tax": 1}, optional, unknown, onMissing="skip").verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("config", "where"),
    [
        pytest.param({"fields": []}, "/fields", id="no-fields"),
        pytest.param({"fields": [{"path": "a..b"}]}, "/fields/0/path", id="path"),
        pytest.param({"fields": [{"path": ""}]}, "/fields/0/path", id="empty-path"),
        pytest.param({"fields": [{"path": "a" * 1001}]}, "/fields/0/path", id="long-path"),
        pytest.param({"fields": [{"path": "items[*].price"}]}, "/fields/0/path", id="several-places"),
        pytest.param({"fields": [{"path": "a", "match": "fuzzy"}]}, "/fields/0/match", id="match"),
        pytest.param({"fields": [{"path": "a", "weight": -1}]}, "/fields/0/weight", id="weight"),
        pytest.param({"fields": [{"path": "a", "weight": 1e-10}]}, "/fields/0/weight", id="light"),
    ],
)
def test_a_wrong_field_is_refused_with_its_place(config: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        FieldAccuracy.definition().compile(config)
    assert caught.value.problems[0].path == where


def test_a_wrong_ignored_path_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidConfig) as caught:
        JsonMatch.definition().compile({"ignore": ["a", "b["]})
    assert caught.value.problems[0].path == "/ignore/1"


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2025-01-15", "2025-01-15"),
        (" 2025-01-15T10:30:00+02:00 ", "2025-01-15"),
        ("2025-01-15 9:30 PM CET", "2025-01-15"),
        ("2025-01-15T103000.5Z", "2025-01-15"),
        ("2025-01-15 to 2025-02-28", None),
        ("2025-01-15 10:00 to 2025-02-28 10:00", None),
        ("15.01.2025 or 16.01.2025", None),
        ("15 January 2025 or 16 January 2025", None),
        ("January 15, 2025 or January 16, 2025", None),
        ("2025/1/5", "2025-01-05"),
        ("15-JAN-2025", "2025-01-15"),
        ("15 January 2025", "2025-01-15"),
        ("January 15, 2025", "2025-01-15"),
        ("Jan. 15 2025", "2025-01-15"),
        ("01/15/2025", "2025-01-15"),
        ("15/01/2025", "2025-01-15"),
        ("15.01.2025", "2025-01-15"),
        ("04/05/2026", "2026-04-05"),
        ("12/05/2026", "2026-12-05"),
        ("2025-02-30", None),
        ("32-JAN-2025", None),
        ("Sept. 5, 2025", "2025-09-05"),
        ("Marble 1, 2024", None),
        ("15-XXX-2025", None),
        ("tomorrow", None),
        (20250115, None),
    ],
)
def test_dates_are_read_however_they_are_written(text: object, iso: str | None) -> None:
    day = read_date(text)
    assert (day.isoformat() if day else None) == iso


def test_day_first_decides_where_both_numbers_could_be_the_month() -> None:
    assert str(read_date("04/05/2026", day_first=True)) == "2026-05-04"
    assert str(read_date("05/12/2026", day_first=True)) == "2026-12-05"
    both = {"path": "day", "match": "date"}
    for field, right in ((both, False), ({**both, "dayFirst": True}, True)):
        result = accuracy({"day": "04/05/2026"}, field, expected={"day": "4 May 2026"})
        assert result.verdict is (PASSED if right else FAILED)
    assert str(read_date("01/13/2025", day_first=True)) == "2025-01-13"
