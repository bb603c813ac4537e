"""JSON that may be right and is larger than evald reads gives ERROR, whatever evaluator reads it."""

import json
from typing import Any

import pytest

from evald.context import EvaluatorContext, OutOfTime
from evald.evaluator import assertion
from evald.foreign import guarded
from evald.result import Verdict
from evald.strict_json import HugeNumber, TooLarge, parse_json, parse_json_at

from .contexts import answered, calls, context
from .engine import as_json, deep, evaluate

ERROR = Verdict.ERROR

BEYOND = {
    "deep": deep(5_000),
    "one-level-more": deep(501),
    "one-level-more-beside-strings": f'{{"]]": "\\\\\\"]}}", "a": {deep(500)}}}',
    "one-level-more-that-does-not-end": "[" * 501,
    "one-level-more-with-a-key-twice": f'{{"a": 1, "a": {deep(500)}}}',
    "deep-objects": '{"a":' * 5_000 + "1" + "}" * 5_000,
}

# Valid JSON that parsers read in different ways.
AMBIGUOUS = {
    "digits": f'{{"a": {"1" * 5_000}}}',
    "digits-310": f'{{"a": {"9" * 310}}}',
    "exponent": '{"a": [{"b": 1e400}]}',
    "negative": '{"a": -1e999}',
    "two-digits-of-exponent": f'{{"a": {"9" * 250}e99}}',
    "leading-zeros-of-exponent": '{"a": 1E+0400}',
    "fraction": f'{{"a": {"9" * 309}.5}}',
    "duplicate": '{"a": 1, "a": 2}',
    "duplicate-deep": '{"b": [[{"c": {"a": 1, "a": 1}}]]}',
    "duplicate-escaped": '{"a": 1, "\\u0061": 1}',
}

READS_THE_ANSWER: dict[str, dict[str, Any]] = {
    "is-json": {},
    "is-json-first": {"type": "is-json", "config": {"extract": "first"}},
    "is-json-all": {"type": "is-json", "config": {"message": "all"}},
    "json-schema": {"config": {"schema": {"type": "string"}}},
    "json-schema-fenced": {
        "type": "json-schema",
        "config": {"schema": {"minProperties": 1}, "extract": "fenced"},
    },
    "json-match": {"config": {"expected": {"a": 1}}},
    "json-match-superset": {"type": "json-match", "config": {"expected": {}, "mode": "subset"}},
    "field-accuracy": {"config": {"expected": {"a": 1}, "fields": [{"path": "a"}]}},
}

READS_THE_CALL: dict[str, dict[str, Any]] = {
    "tool-use": {"config": {"expectations": [{"name": "book", "args": {"a": 1}}]}},
    "tool-use-never": {
        "type": "tool-use",
        "config": {"expectations": [{"name": "book", "args": {"a": 1}, "maxCalls": 0}]},
    },
    "trajectory": {"config": {"expected": [{"name": "book", "args": {"a": 1}}]}},
    "trajectory-exact": {
        "type": "trajectory",
        "config": {"mode": "exact", "expected": [{"name": "book", "args": {"a": 1}}]},
    },
    "trajectory-subset": {
        "type": "trajectory",
        "config": {"mode": "subset", "expected": [{"name": "book", "args": {"a": 1}}]},
    },
}


def _spec(name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": name, **given}


def _both_ways(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec, {**spec, "negate": True}]


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", READS_THE_ANSWER)
def test_an_answer_beyond_the_limits_is_an_error(name: str, beyond: str) -> None:
    both = _both_ways(_spec(name, READS_THE_ANSWER[name]))
    _is_too_large(evaluate(both, answered(BEYOND[beyond])))
    nested = [{"type": "all-of", "config": {"evaluators": [one]}} for one in both]
    for result in evaluate(nested, answered(BEYOND[beyond])).results:
        assert result.verdict == ERROR


@pytest.mark.parametrize(
    "number", ["1e309", "-1E+400", "1" * 310 + ".5", "0.1e99999"], ids=lambda number: number[:9]
)
def test_a_number_beyond_a_double_keeps_to_no_bound_of_a_schema(number: str) -> None:
    for schema in ({"maximum": 100}, {"minimum": -100}, {"type": ["number", "null"]}):
        bounded = {"type": "json-schema", "config": {"schema": {"properties": {"amount": schema}}}}
        padded = f'{{"a": "{"e" * 99_980}", "amount": {number}}}'
        for text in (f'{{"amount": {number}}}', padded):
            verdicts = [result.verdict for result in evaluate(_both_ways(bounded), answered(text)).results]
            assert verdicts == [Verdict.FAILED, ERROR]


@pytest.mark.parametrize("text", ['{"amount": 1e308}', '{"id": "5e9999"}', '{"id": ' + "1" * 300 + "}"])
def test_what_only_looks_like_such_a_number_is_read(text: str) -> None:
    schema = {"type": "json-schema", "config": {"schema": {"type": "object"}}}
    assert evaluate([schema], answered(text)).results[0].verdict == Verdict.PASSED


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", READS_THE_CALL)
def test_arguments_beyond_the_limits_are_an_error(name: str, beyond: str) -> None:
    ctx = context([_call(BEYOND[beyond])])
    _is_too_large(evaluate(_both_ways(_spec(name, READS_THE_CALL[name])), ctx))


@pytest.mark.parametrize("name", [*READS_THE_ANSWER, *READS_THE_CALL])
def test_json_that_has_a_key_twice_passes_neither_way(name: str) -> None:
    """Readers keep the first or the last value of such a key, so the data have no one meaning."""
    twice = '{"a": 2, "a": 1, "b": {"a": 1}}'
    ctx = answered(twice) if name in READS_THE_ANSWER else context([_call(twice)])
    plain, negated = evaluate(_both_ways(_spec(name, (READS_THE_ANSWER | READS_THE_CALL)[name])), ctx).results
    assert plain.verdict == Verdict.FAILED, plain
    # A call whose arguments have no one meaning fails either way, an answer without one is no verdict.
    assert negated.verdict == (ERROR if name in READS_THE_ANSWER else Verdict.FAILED), negated


def test_long_json_is_read_as_short_json_is() -> None:
    data = {"a": [{"whole": number, "half": number / 2} for number in range(5_000)]}
    text = json.dumps(data)
    assert len(text) > 100_000
    assert parse_json(text, lambda: None) == json.loads(text) == data
    for more in (', "a": 1}', ', "b": NaN}'):
        with pytest.raises(ValueError, match=r"duplicate key|NaN"):
            parse_json(text[:-1] + more, lambda: None)


@pytest.mark.parametrize("before", [0, 99_400, 99_999, 100_000, 250_000])
@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 309 + ".5"], ids=lambda number: number[:9])
def test_a_number_beyond_a_double_is_found_wherever_it_stands(before: int, number: str) -> None:
    for text in (f"{' ' * before}[{number}]", f"[{'1,' * (before // 2)}{number}]"):
        with pytest.raises(HugeNumber):
            parse_json(text, lambda: None)
        with pytest.raises(HugeNumber):
            parse_json_at(text, text.index("["))


@pytest.mark.parametrize("number", ["1e308", "-1.7e308", "1" * 308, "1e-999", "0e999", f"0.{'0' * 300}1e300"])
def test_a_number_within_a_double_is_read(number: str) -> None:
    summary = evaluate([{"type": "json-schema", "config": {"schema": {"type": "number"}}}], answered(number))
    assert summary.verdict == Verdict.PASSED


@pytest.mark.parametrize("ambiguous", AMBIGUOUS)
@pytest.mark.parametrize("name", READS_THE_ANSWER)
def test_what_parsers_read_differently_fails_and_is_no_verdict_where_a_failure_would_pass(
    name: str, ambiguous: str
) -> None:
    text = AMBIGUOUS[ambiguous]
    spec = _spec(name, READS_THE_ANSWER[name])
    within = {"type": "all-of", "config": {"evaluators": [spec]}}
    for one in (
        spec,
        within,
        {**within, "config": {"evaluators": [{**spec, "negate": True}]}, "negate": True},
    ):
        summary = evaluate([one], answered(text))
        assert summary.verdict == Verdict.FAILED
        assert "parsers read in different ways" in summary.results[0].reason
    for one in ({**spec, "negate": True}, {**within, "negate": True}):
        summary = evaluate([one], answered(text))
        assert summary.verdict == ERROR, summary
        assert "parsers read in different ways" in summary.results[0].reason


def test_reading_long_json_stops_when_the_time_is_up() -> None:
    for text in ("[" + '{"a":"b"},' * 20_000 + "{}]", "[" + "1.5," * 50_000 + "1]"):
        ctx = answered(text)
        ctx.stop_at(1)
        with pytest.raises(OutOfTime):
            _ = ctx.answer_json
        ctx.stop_at(0)
        assert ctx.answer_json[1] is None


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", ["json-match", "field-accuracy"])
def test_an_expected_answer_beyond_the_limits_is_an_error(name: str, beyond: str) -> None:
    config = {"fields": [{"path": "a"}]} if name == "field-accuracy" else {}
    ctx = answered('{"a": 1}', expected_text=BEYOND[beyond])
    _is_too_large(evaluate([{"type": name, "config": config, "negate": True}], ctx))


@pytest.mark.parametrize("beyond", BEYOND)
def test_expected_arguments_beyond_the_limits_are_an_error(beyond: str) -> None:
    ctx = context([_call("{}")], expected_messages=[_call(BEYOND[beyond])])
    _is_too_large(evaluate([{"type": "trajectory", "negate": True}], ctx))


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "json-match"},
        {"type": "json-match", "config": {"tolerance": 1}},
        {"type": "json-match", "config": {"arrays": "unordered"}},
        {"type": "field-accuracy", "config": {"fields": [{"path": "a"}]}},
        {"type": "field-accuracy", "config": {"fields": [{"path": "[0]"}]}},
    ],
    ids=str,
)
@pytest.mark.parametrize("levels", [150, 300, 450, 500])
def test_what_can_be_read_and_is_too_deep_to_be_compared_is_no_other_error(
    spec: dict[str, Any], levels: int
) -> None:
    text = deep(levels, as_json({"a": 1}))
    result = evaluate([spec], answered(text, expected_text=text), 120).results[0]
    assert result.verdict == Verdict.PASSED or result.error.code in ("INPUT_TOO_LARGE", ""), result


@pytest.mark.parametrize(
    "text",
    [
        deep(500),
        deep(500, '"' + "[{" * 1_000 + '"'),
        deep(498, '{"[[[": "\\\\", "\\"[": ["\\\\\\"[[", "{\\u005b"]}'),
        "[" + "[]," * 100_000 + "[{}]]",
        "[" + ",".join([deep(499)] * 50) + "]",
        '["' + "é[" * 1_000 + '\\\\"]',
    ],
    ids=lambda text: text[:9],
)
def test_what_keeps_to_the_levels_is_read(text: str) -> None:
    assert evaluate([{"type": "is-json"}], answered(text)).results[0].verdict == Verdict.PASSED


def test_looking_for_the_first_json_takes_no_piece_of_one_that_is_too_deep() -> None:
    spec = {"type": "is-json", "config": {"extract": "first"}}
    _is_too_large(evaluate([spec], answered(f"Here: {deep(5_000)}")))


def test_looking_for_the_first_json_in_vain_is_no_verdict() -> None:
    spec = {"type": "is-json", "config": {"extract": "first"}, "negate": True}
    _is_too_large(evaluate([spec], answered("{" * 500_000 + ' "a": 1}')))


def test_an_authors_own_evaluator_does_not_take_it_for_no_json() -> None:
    with pytest.raises(TooLarge):
        _ = answered(BEYOND["deep"]).answer_json
    [call] = context([_call(BEYOND["deep"])]).tool_calls
    for _ in range(2):
        with pytest.raises(TooLarge):
            _ = call.args


def test_it_passes_the_border_of_a_plugin_as_what_it_is() -> None:
    @assertion("acme.reads-json")
    def reads(ctx: EvaluatorContext) -> bool:
        return ctx.answer_json[1] is None

    evaluator = guarded(reads).compile({})
    with pytest.raises(TooLarge):
        evaluator(answered(BEYOND["deep"]))


def _call(arguments: str) -> dict[str, Any]:
    message = calls("book")
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message


def _is_too_large(summary: Any) -> None:
    assert summary.verdict == ERROR
    for result in summary.results:
        assert (result.verdict, result.error.code) == (ERROR, "INPUT_TOO_LARGE"), result
