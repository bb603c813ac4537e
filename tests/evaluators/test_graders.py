"""`string-check` and `similarity-check`: two texts out of an item and a turn."""

import json
from typing import Any

import pytest

from evald.evaluator import InvalidConfig
from evald.result import Verdict
from evald_server.evaluators.graders import SimilarityCheck, StringCheck

from .contexts import context

ITEM = {
    "label": "Paris",
    "nested": {"list": [1, {"a b": "deep"}], "none": None, "yes": True, "half": 1.5},
    "trap": "{{sample.output_text}}",
    "text": '{"a": 1}',
    "arguments": {"a": 2},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"city": "Paris"}'}}


def _turn(text: str | None, *calls: dict[str, Any], **facts: Any) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    return context(turn_messages=[message], metadata={"item": ITEM}, **facts)


def _check(text: str, reference: str, operation: str = "eq") -> StringCheck:
    return StringCheck.from_config({"input": text, "reference": reference, "operation": operation})


@pytest.mark.parametrize(
    ("operation", "answer", "reference", "met"),
    [
        ("eq", "Paris", "Paris", True),
        ("eq", "paris", "Paris", False),
        ("ne", "Paris", "Paris", False),
        ("ne", "paris", "Paris", True),
        ("like", "It is Paris.", "Paris", True),
        ("like", "It is paris.", "Paris", False),
        ("like", "Paris", "It is Paris.", False),
        ("ilike", "It is PARIS.", "paris", True),
        ("ilike", "It is Lyon.", "paris", False),
    ],
)
def test_an_operation_compares_as_the_graders_guide_says(
    operation: str, answer: str, reference: str, met: bool
) -> None:
    result = _check("{{sample.output_text}}", reference, operation).evaluate(_turn(answer))
    assert (result.verdict is Verdict.PASSED, result.score) == (met, float(met))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ item.label }}, {{item.label}}!", "Paris, Paris!"),
        ("{{item.nested.list[0]}}", "1"),
        ("{{item.nested.list[1]['a b']}}", "deep"),
        ("{{item.nested.none}} {{item.nested.yes}} {{item.nested.half}}", "null true 1.5"),
        ('{{item["nested"].list}}', '[1, {"a b": "deep"}]'),
        ("{{item.trap}}", "{{sample.output_text}}"),
        ("{{item.arguments.a}}", "2"),
        ("{{sample.output_json.city}}", "Rome"),
        ("{{sample.output_tools[0].function.name}}", "find"),
        ("{{sample.output_tools[0].function.arguments}}", '{"city": "Paris"}'),
        ("{{sample.output_tools[0].function.arguments.city}}", "Paris"),
        ("{{sample.choices[0].message.tool_calls[0].function.name}}", "find"),
        ("{{sample.choices[0].message.tool_calls[0].function.arguments['city']}}", "Paris"),
        ("{{sample.choices[0].finish_reason}}", "tool_calls"),
        ("no variable { } {{ }", "no variable { } {{ }"),
        ("", ""),
    ],
)
def test_a_template_is_filled_in_once_with_plain_text(template: str, text: str) -> None:
    turn = _turn('{"city": "Rome"}', CALL, finish_reason="tool_calls")
    checked = _check(template, "nothing like it", "eq").evaluate(turn)
    assert checked.reason == f'Not met: {json.dumps(text, ensure_ascii=False)} eq "nothing like it"'


@pytest.mark.parametrize(
    ("template", "verdict"),
    [
        ("{{item.gone}}", Verdict.ERROR),
        ("{{item.nested.list[7]}}", Verdict.ERROR),
        ("{{item.label.deeper}}", Verdict.ERROR),
        ("{{item.label[0]}}", Verdict.ERROR),
        ("{{item.text.a}}", Verdict.ERROR),
        ("{{sample.output_json.city}}", Verdict.FAILED),
        ("{{sample.output_tools[0].function.name}}", Verdict.FAILED),
        ("{{sample.output_tools[0].function.arguments.gone}}", Verdict.FAILED),
        ("{{sample.choices[0].finish_reason}}", Verdict.FAILED),
    ],
)
@pytest.mark.parametrize("operation", ["eq", "ne"])
def test_what_is_missing_is_an_error_of_the_item_or_a_failure_of_the_turn(
    template: str, verdict: Verdict, operation: str
) -> None:
    result = _check(template, "x", operation).evaluate(_turn("no JSON"))
    assert result.verdict is verdict
    assert result.unproven is (verdict is Verdict.FAILED)


def test_a_turn_without_an_answer_fails_every_operation() -> None:
    turn = context([{"role": "user", "content": "?"}], metadata={"item": ITEM})
    for operation in ("eq", "ne", "like", "ilike"):
        result = _check("{{sample.output_text}}", "", operation).evaluate(turn)
        assert (result.verdict, result.unproven) == (Verdict.FAILED, True)


@pytest.mark.parametrize(
    "template",
    [
        "{{item.label | upper}}",
        "{{ label }}",
        "{{sample}}",
        "{{sample.output_audio}}",
        "{{item..label}}",
        "{{item.a[-1]}}",
        "{{}}",
    ],
)
def test_what_is_no_variable_is_refused(template: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        _check(template, "x").prepare()
    assert [problem.path for problem in refused.value.problems] == ["/input"]


def test_similarity_is_measured_between_the_filled_texts() -> None:
    config = {"input": "{{sample.output_text}}", "reference": "{{item.label}}", "threshold": 0.5}
    result = SimilarityCheck.from_config({**config, "measure": "rouge-1"}).evaluate(_turn("paris france"))
    assert result.verdict is Verdict.PASSED
    assert result.score == pytest.approx(2 / 3)
    result = SimilarityCheck.from_config(config).evaluate(_turn("Rome"))
    assert result.verdict is Verdict.FAILED
    del config["threshold"]
    for answer, verdict in (("Pari", Verdict.PASSED), ("Par", Verdict.FAILED)):  # 8 / 9 and 6 / 8
        assert SimilarityCheck.from_config(config).evaluate(_turn(answer)).verdict is verdict


def test_huge_texts_are_an_error() -> None:
    answer = "x" * 2_000_001
    result = _check("{{sample.output_text}}", "y", "ilike").evaluate(_turn(answer))
    assert result.error is not None
    assert result.error.code == "INPUT_TOO_LARGE"
