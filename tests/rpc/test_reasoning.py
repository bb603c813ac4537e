"""Reasoning at the start of an answer is no answer, and what it leaks is found by checks for absence."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import evald
from evald import Verdict
from evald_server import testing

QUESTION = {"role": "user", "content": "Capital of Norway?"}

seen = evald.define_evaluator(
    type="test.seen",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: (False, json.dumps([ctx.answer, ctx.messages[-1].metadata.get("reasoning")])),
    description="Shows what an evaluator of somebody else reads.",
)

names_oslo = evald.define_evaluator(
    type="test.names-oslo",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: "Oslo" in (ctx.answer or ""),
    description="The answer names Oslo.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[evald.Client]:
    with testing.server(seen, names_oslo) as server, server.client() as connected:
        yield connected


def said(content: Any, **keys: Any) -> list[dict[str, Any]]:
    return [QUESTION, {"role": "assistant", "content": content, **keys}]


def spec(kind: str, negate: bool = False, reasoning: str = "strip", **config: Any) -> dict[str, Any]:
    return {"type": kind, "config": config, "negate": negate, "reasoning": reasoning}


ANALYSIS = "<|channel|>analysis<|message|>Oslo? No.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Bergen"

# Each has "Oslo" in the reasoning alone, and the answer "Bergen".
REASONED: dict[str, Any] = {
    "think": "<think>Oslo? No.</think>\n\nBergen",
    "thinking": "<thinking>Oslo? No.</thinking>Bergen",
    "reasoning": "<reasoning>\nOslo? No.\n</reasoning>\nBergen",
    "case and white space": "\n <THINK >Oslo? No.</ Think\n>\tBergen",
    "a byte order mark": "\ufeff<think>Oslo?</think>Bergen",
    "attributes": '<think lang="en" depth="2">Oslo?</think>Bergen',
    "several": "<think>One.</think>\n<think/>\n<reasoning>Oslo?</reasoning> Bergen",
    "nested": "<think>Hm <think>Oslo?</think> Oslo!</think>Bergen",
    "an opening tag within": "<think>They ask about Oslo, not <think>.</think>Bergen",
    "only a closing tag": "Oslo? No.\n</think>\n\nBergen",
    "a fence in reasoning": "Is it\n```\nOslo\n```\n?\n</think>\n\nBergen",
    "blocks that divide the tags": [
        {"type": "text", "text": "<thi"},
        {"type": "text", "text": "nk>Oslo?</think>"},
        {"type": "text", "text": "Bergen"},
    ],
    "harmony": f"{ANALYSIS}{FINAL}<|return|>",
    "harmony with a start": f"<|start|>assistant{ANALYSIS}\n{FINAL}<|end|>",
    "harmony with a commentary": f"{ANALYSIS}<|start|>assistant<|channel|>commentary<|message|>Oslo.<|end|>{FINAL}",
    "harmony with a call": (
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
        f'{{"city": "Oslo"}}<|call|>{FINAL}<|return|>'
    ),
    "the rest of harmony": f"Oslo? No.<|end|>{FINAL}<|return|>",
}


@pytest.mark.parametrize("content", REASONED.values(), ids=REASONED.keys())
def test_presence_and_lengths_read_the_answer_and_absence_reads_everything(
    content: Any, client: evald.Client
) -> None:
    passing = [
        spec("exact-match", expected="Bergen"),
        spec("starts-with", text="Berg"),
        spec("regex", pattern="^Bergen$"),
        spec("length-within", min=6, max=6),
        spec("length-within", negate=True, min=7),
        spec("contains", text="Bergen", message="first"),
        spec("contains", text="Bergen", message="all"),
        spec("text-similarity", expected="Bergen", threshold=1),
        spec("string-check", input="{{sample.output_text}}", reference="Bergen", operation="eq"),
        spec("contains", text="Oslo", reasoning="keep"),
        spec("regex", negate=True, pattern="Oslo", mustMatch=False, reasoning="keep"),
        spec("contains", negate=True, text="Trondheim"),
        spec("all-of", negate=True, evaluators=[spec("contains", text="Tromsø")]),
    ]
    failing = [
        spec("contains", text="Oslo"),
        spec("regex", pattern="Oslo"),
        spec("regex", negate=True, pattern="Oslo", mustMatch=False),
        spec("contains", negate=True, text="Oslo"),
        spec("contains", negate=True, text="Bergen"),
        spec("exact-match", negate=True, expected="Bergen"),
        spec("regex", pattern="Oslo", mustMatch=False),
        spec("regex", pattern="Oslo", mustMatch=False, message="all"),
        spec("string-check", negate=True, input="{{sample.output_text}}", reference="Oslo", operation="like"),
        spec("any-of", negate=True, evaluators=[spec("contains", text="Oslo")]),
        spec("all-of", evaluators=[spec("contains", negate=True, text="Oslo")]),
        spec("all-of", negate=True, evaluators=[spec("contains", text=t) for t in ("Oslo", "Bergen")]),
        spec("at-least", k=1, evaluators=[spec("regex", pattern="Oslo", mustMatch=False)]),
        spec("any-of", negate=True, evaluators=[spec("all-of", evaluators=[spec("contains", text="Oslo")])]),
        spec("formula", formula="1 - x", evaluators=[{**spec("contains", text="Oslo"), "name": "x"}]),
        spec("formula", formula="x", evaluators=[{**spec("contains", text="Oslo"), "name": "x"}]),
        spec("exact-match", reasoning="keep", expected="Bergen"),
        spec("all-of", reasoning="keep", evaluators=[spec("exact-match", expected="Bergen")]),
    ]
    evaluation = client.evaluate(said(content), [*passing, *failing, "response-length", "test.seen"])
    *checks, length, shown = evaluation.results
    expected = [Verdict.PASSED] * len(passing) + [Verdict.FAILED] * len(failing)
    wrong = [
        (one.name, one.reason)
        for one, verdict in zip(checks, expected, strict=True)
        if one.verdict is not verdict
    ]
    assert not wrong
    assert length.value == 6
    answer, reasoning = json.loads(shown.reason)
    assert answer == "Bergen"
    assert "Oslo" in reasoning
    assert "<" not in reasoning or "not <think>" in reasoning or "<think>Oslo" in reasoning


# The whole text is the answer.
TEXTS: dict[str, str] = {
    "a tag in the middle": "It is Bergen. <think>Oslo</think>",
    "a tag in a fence": "```xml\n<think>Oslo</think>\n```",
    "a closing tag in a fence": "Write:\n```\nOslo</think>\n```\nto close it.",
    "a closing tag in backticks": "End Oslo with `</think>` and go on.",
    "another tag": "<thinker>Oslo</thinker>",
    "an escaped tag": "&lt;think&gt;Oslo&lt;/think&gt;",
    "harmony in the middle": f"Oslo is written so: {FINAL}",
    "no tag at all": "3 < 4, so Oslo",
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS.keys())
def test_markup_elsewhere_is_text(content: str, client: evald.Client) -> None:
    specs = [spec("exact-match", expected=content), spec("contains", text="Oslo")]
    assert client.evaluate(said(content), specs).passed


CUT_OFF: dict[str, Any] = {
    "think": "<think>Is it Oslo",
    "a second block": "<think>Hm.</think><think>Is it Oslo",
    "after a nested one": "<think>",
    "only a closing tag, then a block": "Hm.</think><think>Oslo",
    "harmony": "<|channel|>analysis<|message|>Is it Oslo",
    "harmony, a commentary": f"{ANALYSIS}<|start|>assistant<|channel|>commentary<|message|>Oslo",
    "blocks": [{"type": "text", "text": "<think>Is it "}, {"type": "text", "text": "Oslo"}],
}


@pytest.mark.parametrize("content", CUT_OFF.values(), ids=CUT_OFF.keys())
def test_a_model_that_was_cut_off_while_thinking_passes_nothing(content: Any, client: evald.Client) -> None:
    before = {"role": "assistant", "content": "Let me think."}
    checks = [
        spec("contains", text="x"),
        spec("contains", negate=True, text="x"),
        spec("contains", negate=True, text="x", message="all"),
        spec("contains", text="Let", message="first"),
        spec("regex", pattern="x", mustMatch=False),
        spec("length-within", max=100),
        spec("is-json", negate=True),
        spec("exact-match", negate=True, expected="x"),
        spec("all-of", negate=True, evaluators=[spec("contains", text="x")]),
    ]
    turn = evald.Turn([QUESTION, before, *said(content)[1:]], metadata={}, finish_reason="length")
    for result in client.evaluate(turn, checks).results:
        assert result.verdict is Verdict.FAILED, result
        assert "the model was cut off while it was thinking" in result.reason
        assert "finish reason 'length'" in result.reason


def test_json_is_read_without_the_reasoning_and_negated_checks_of_it_need_both(client: evald.Client) -> None:
    answer = '<think>Maybe {"city": "Oslo"}, 41?</think>\n{"city": "Bergen", "n": 42}'
    found = client.evaluate(
        said(answer),
        [
            spec("is-json"),
            spec("json-schema", schema={"properties": {"city": {"const": "Bergen"}}, "required": ["city"]}),
            spec("json-match", expected={"city": "Bergen"}, mode="subset"),
            spec("numeric", expected=42, extract="last"),
            spec("numeric", negate=True, expected=7),
        ],
    )
    assert found.passed, found
    negated = [
        spec("is-json", negate=True),
        spec("json-match", negate=True, expected={"city": "Bergen"}, mode="subset"),
        spec("json-match", negate=True, expected={"city": "Oslo"}, extract="first"),
        spec("numeric", negate=True, expected=42, extract="last"),
        spec("numeric", negate=True, expected=41, extract="first"),
    ]
    verdicts = [result.verdict for result in client.evaluate(said(answer), negated).results]
    assert verdicts == [Verdict.FAILED] * len(negated)


@pytest.mark.parametrize("value", ["maybe", "", 1, True])
def test_reasoning_is_strip_or_keep(value: Any, client: evald.Client) -> None:
    with pytest.raises(evald.InvalidInput, match="wanted 'strip' or 'keep'"):
        client.evaluate(said("x"), [{"type": "is-json", "reasoning": value}])


def test_every_way_to_evaluate_reads_the_same(client: evald.Client) -> None:
    turn = evald.Turn(said("<think>Oslo?</think>\nBergen"))
    specs = [spec("contains", text="Oslo"), spec("contains", negate=True, text="Oslo"), spec("is-json")]
    specs += [spec("starts-with", text="Bergen"), spec("contains", text="Oslo", reasoning="keep")]
    wanted = [Verdict.FAILED, Verdict.FAILED, Verdict.FAILED, Verdict.PASSED, Verdict.PASSED]
    *_, streamed = client.stream(turn, specs)
    with client.session(specs) as session:
        of_session = session.turn(turn)
    (item,) = client.batch([turn], specs)
    for evaluation in (client.evaluate(turn, specs), streamed, of_session, item.evaluation):
        assert isinstance(evaluation, evald.Evaluation)
        assert [result.verdict for result in evaluation.results] == wanted


def test_a_negated_evaluator_of_somebody_else_reads_both(client: evald.Client) -> None:
    absent = [{"type": "test.names-oslo", "negate": True}]
    assert client.evaluate(said("<think>Hm.</think>Bergen"), absent).passed
    (result,) = client.evaluate(said("<think>Oslo?</think>Bergen"), absent).results
    assert result.verdict is Verdict.FAILED
    assert result.reason.endswith("(in the text with its reasoning)")
