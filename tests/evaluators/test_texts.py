"""Wording: what equals, contains, begins, ends, how long it is and why the model stopped."""

from typing import Any

import pytest

from evald.evaluator import Evaluator, InvalidConfig
from evald.result import Verdict
from evald_server.evaluators import texts
from evald_server.evaluators.results import quoted
from evald_server.evaluators.texts import (
    Contains,
    EndsWith,
    ExactMatch,
    FinishReason,
    LengthWithin,
    StartsWith,
)

from .contexts import answered, context, run
from .engine import evaluate

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


@pytest.mark.parametrize(
    ("config", "answer", "equal"),
    [
        pytest.param({"expected": "foo"}, "foo", True, id="equal"),
        pytest.param({"expected": "foo"}, "foo1", False, id="longer"),
        pytest.param({"expected": "foo"}, "Foo", False, id="case"),
        pytest.param({"expected": "foo"}, "foo\n", False, id="white-space"),
        pytest.param({"expected": "é"}, "e\u0301", False, id="bytes-not-looks"),
        pytest.param({"expected": "foo", "trim": True}, "\n foo ", True, id="trim"),
        pytest.param({"expected": " foo ", "trim": True}, "foo", True, id="trim-expected"),
        pytest.param({"expected": "STRASSE", "ignoreCase": True}, "Straße", True, id="fold"),
        pytest.param({"expected": " FOO", "trim": True, "ignoreCase": True}, "foo ", True, id="both"),
        pytest.param({"expected": "1.5"}, "1.50", False, id="numbers-are-text"),
        pytest.param({"expected": "0"}, "false", False, id="no-loose-equality"),
    ],
)
def test_exact_match_compares_every_character(config: dict[str, Any], answer: str, equal: bool) -> None:
    result = run(ExactMatch, config, answered(answer))
    assert (result.verdict, result.score) == ((PASSED, 1) if equal else (FAILED, 0))


def test_exact_match_says_both_texts() -> None:
    result = run(ExactMatch, {"expected": "hello world"}, answered("hello"))
    assert result.reason == 'output "hello" does not match expected "hello world"'


def test_exact_match_falls_back_to_the_expected_text_of_the_context() -> None:
    ctx = answered("Paris ", expected_text="paris")
    assert run(ExactMatch, {"trim": True, "ignoreCase": True}, ctx).verdict is PASSED
    assert (
        run(ExactMatch, {"expected": "London"}, answered("London", expected_text="Paris")).verdict is PASSED
    )


@pytest.mark.parametrize(
    ("policy", "verdict"), [("fail", FAILED), ("pass", PASSED), ("skip", SKIPPED), ("error", ERROR)]
)
def test_without_anything_expected_exact_match_says_what_was_asked_for(policy: str, verdict: Verdict) -> None:
    result = run(ExactMatch, {"onMissing": policy}, answered("42"))
    assert (result.verdict, result.reason) == (verdict, "No expected text to compare with")


@pytest.mark.parametrize(
    ("config", "answer", "score", "reason"),
    [
        pytest.param({"text": "world"}, "Hello world", 1, 'Output contains "world"', id="one"),
        pytest.param(
            {"text": "World"},
            "Hello world",
            0,
            'Output does not contain "World" (contained but for case)',
            id="case",
        ),
        pytest.param({"text": ""}, "x", 1, 'Output contains ""', id="nothing-is-everywhere"),
        pytest.param({"substrings": []}, "anything", 1, "no substrings to check", id="empty-list"),
        pytest.param({"substrings": [], "mode": "any"}, "x", 1, "no substrings to check", id="empty-any"),
        pytest.param({"substrings": ["a", "a"]}, "a", 1, "all 2 substrings found", id="duplicates"),
        pytest.param(
            {"substrings": ["a", "b", 'c"']},
            "a",
            1 / 3,
            '1/3 substrings found, missing: "b", "c\\""',
            id="some",
        ),
        pytest.param({"substrings": ["a", "b"], "mode": "any"}, "xb", 1, 'Output contains "b"', id="any"),
        pytest.param(
            {"substrings": ["hello", "world"], "mode": "any"},
            "Hello World",
            0,
            'Output does not contain any of: "hello", "world"',
            id="none-of-any",
        ),
        pytest.param(
            {"text": "STRASSE", "ignoreCase": True},
            "Straße",
            1,
            'Output contains "STRASSE" (case-insensitive)',
            id="fold",
        ),
    ],
)
def test_the_score_of_contains_is_the_share_that_was_found(
    config: dict[str, Any], answer: str, score: float, reason: str
) -> None:
    result = run(Contains, config, answered(answer))
    assert (result.verdict, result.reason) == (PASSED if score == 1 else FAILED, reason)
    assert result.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("alias", "config", "answer", "verdict"),
    [
        ("contains-all", {"substrings": ["a", "b"]}, "a", FAILED),
        ("contains-any", {"substrings": ["a", "b"]}, "a", PASSED),
        ("contains-any", {"substrings": ["a", "b"]}, "A", FAILED),
        ("icontains", {"text": "WORLD"}, "hello world", PASSED),
        ("icontains-all", {"substrings": ["A", "b"]}, "aB", PASSED),
        ("icontains-any", {"substrings": ["x", "B"]}, "ab", PASSED),
    ],
)
def test_an_alias_of_contains_implies_its_config(
    alias: str, config: dict[str, Any], answer: str, verdict: Verdict
) -> None:
    implied = Contains.definition().aliases[alias]
    assert run(Contains, {**implied, **config}, answered(answer)).verdict is verdict


@pytest.mark.parametrize(
    ("evaluator", "config", "answer", "met"),
    [
        pytest.param(StartsWith, {"text": "the"}, "the cat", True, id="starts"),
        pytest.param(StartsWith, {"text": "the"}, "The cat", False, id="starts-case"),
        pytest.param(StartsWith, {"text": "the", "ignoreCase": True}, "THE cat", True, id="starts-fold"),
        pytest.param(StartsWith, {"text": "SS", "ignoreCase": True}, "ßt", True, id="starts-fold-longer"),
        pytest.param(StartsWith, {"text": ""}, "x", True, id="starts-empty"),
        pytest.param(StartsWith, {"text": "longer"}, "long", False, id="starts-too-short"),
        pytest.param(EndsWith, {"text": "cat"}, "the cat", True, id="ends"),
        pytest.param(EndsWith, {"text": "cat"}, "the Cat", False, id="ends-case"),
        pytest.param(EndsWith, {"text": "CAT", "ignoreCase": True}, "the cat", True, id="ends-fold"),
        pytest.param(EndsWith, {"text": "CAT", "ignoreCase": True}, "cat", True, id="ends-fold-whole"),
        pytest.param(EndsWith, {"text": "SS", "ignoreCase": True}, "groß", True, id="ends-fold-longer"),
        pytest.param(EndsWith, {"text": "SSSSAB", "ignoreCase": True}, "ßßab", True, id="ends-fold-twice"),
        pytest.param(EndsWith, {"text": "", "ignoreCase": True}, "x", True, id="ends-empty"),
        pytest.param(EndsWith, {"text": "longer"}, "er", False, id="ends-too-short"),
    ],
)
def test_the_ends_of_the_answer_are_compared(
    evaluator: type[Evaluator], config: dict[str, Any], answer: str, met: bool
) -> None:
    result = run(evaluator, config, answered(answer))
    assert (result.verdict, result.score) == ((PASSED, 1) if met else (FAILED, 0))
    assert quoted(config["text"]) in result.reason


@pytest.mark.parametrize(
    ("config", "answer", "length", "met", "wanted"),
    [
        pytest.param({"min": 3, "max": 5}, "abc", 3, True, "3 to 5", id="smallest"),
        pytest.param({"min": 3, "max": 5}, "abcde", 5, True, "3 to 5", id="largest"),
        pytest.param({"min": 3, "max": 5}, "abcdef", 6, False, "3 to 5", id="too-long"),
        pytest.param({"min": 3}, "ab", 2, False, "at least 3", id="too-short"),
        pytest.param({"max": 2}, "ab", 2, True, "at most 2", id="no-minimum"),
        pytest.param({"max": 0}, "a", 1, False, "at most 0", id="none"),
        pytest.param({"max": 1}, "😀", 1, True, "at most 1", id="code-points"),
        pytest.param(
            {"min": 3, "max": 3, "unit": "words"}, "  Hello,  big\nworld ", 3, True, "exactly 3", id="words"
        ),
        pytest.param({"min": 4, "unit": "words"}, "Word\tWith\tTabs\tHere", 4, True, "at least 4", id="tabs"),
    ],
)
def test_length_limits_are_inclusive(
    config: dict[str, Any], answer: str, length: int, met: bool, wanted: str
) -> None:
    result = run(LengthWithin, config, answered(answer))
    assert (result.verdict, result.score, result.value) == (*((PASSED, 1) if met else (FAILED, 0)), length)
    unit = config.get("unit", "characters")
    assert result.reason == f"Response length: {length} {unit}, wanted {wanted}"


@pytest.mark.parametrize(
    ("metadata", "verdict", "reason"),
    [
        ({"finish_reason": "stop"}, PASSED, 'Finish reason "stop" is allowed'),
        ({"finishReason": "stop"}, PASSED, 'Finish reason "stop" is allowed'),
        ({"stop_reason": "end_turn"}, PASSED, 'Finish reason "end_turn" is allowed'),
        ({"finish_reason": "length"}, FAILED, 'Finish reason "length" is not one of: "stop", "end_turn"'),
        ({"finish_reason": None}, FAILED, "No finish reason available"),
        ({}, FAILED, "No finish reason available"),
    ],
    ids=["snake", "camel", "anthropic", "other", "null", "none"],
)
def test_the_finish_reason_has_to_be_an_allowed_one(
    metadata: dict[str, Any], verdict: Verdict, reason: str
) -> None:
    ctx = context()
    ctx._pb.last_invocation.metadata.update(metadata)
    result = run(FinishReason, {"allowed": ["stop", "end_turn"]}, ctx)
    assert (result.verdict, result.score, result.reason) == (verdict, float(verdict is PASSED), reason)


_READERS: list[tuple[type[Evaluator], dict[str, Any]]] = [
    (ExactMatch, {"expected": "b"}),
    (Contains, {"text": "b"}),
    (StartsWith, {"text": "b"}),
    (EndsWith, {"text": "b"}),
    (LengthWithin, {"max": 1}),
]


@pytest.mark.parametrize(("evaluator", "config"), _READERS)
def test_without_an_assistant_message_it_fails(evaluator: type[Evaluator], config: dict[str, Any]) -> None:
    result = run(evaluator, config, context([{"role": "user", "content": "b"}]))
    assert (result.verdict, result.score) == (FAILED, 0)
    assert result.reason == "No assistant message found"


@pytest.mark.parametrize(("evaluator", "config"), _READERS)
def test_the_config_says_which_message_is_the_answer(
    evaluator: type[Evaluator], config: dict[str, Any]
) -> None:
    ctx = context([{"role": "assistant", "content": text} for text in ("b", "xy", "")])
    assert run(evaluator, {**config, "message": "first"}, ctx).verdict is PASSED
    assert run(evaluator, config, ctx).verdict is FAILED


@pytest.mark.parametrize(
    ("evaluator", "config", "limit"),
    [
        pytest.param(ExactMatch, {"expected": "a", "ignoreCase": True}, "MAX_SEARCHED", id="exact"),
        pytest.param(Contains, {"substrings": ["a", "b", "c"]}, "MAX_SEARCHED", id="contains"),
        pytest.param(LengthWithin, {"min": 1, "unit": "words"}, "MAX_SPLIT", id="words"),
    ],
)
def test_what_would_hold_up_the_server_is_an_error(
    monkeypatch: pytest.MonkeyPatch, evaluator: type[Evaluator], config: dict[str, Any], limit: str
) -> None:
    monkeypatch.setattr(texts, limit, 9)
    large = run(evaluator, config, answered("a" * 10))
    assert large.error
    assert (large.verdict, large.error.code) == (ERROR, "INPUT_TOO_LARGE")
    assert "at most 9" in large.reason
    assert run(evaluator, config, answered("a")).verdict is not ERROR
    if evaluator is ExactMatch:
        assert run(evaluator, {"expected": "a"}, answered("a" * 10)).verdict is FAILED


def test_a_long_text_is_cut_in_a_reason() -> None:
    reason = run(ExactMatch, {"expected": "x" * 5000}, answered("y" * 5000)).reason
    assert len(reason) < 600


@pytest.mark.parametrize(
    ("evaluator", "config", "problem"),
    [
        pytest.param(Contains, {}, "give exactly one of text and substrings", id="nothing"),
        pytest.param(
            Contains, {"text": "a", "substrings": []}, "give exactly one of text and substrings", id="both"
        ),
        pytest.param(Contains, {"substrings": "a,b"}, "config/substrings: .*list", id="no-list"),
        pytest.param(Contains, {"substrings": [1]}, "config/substrings/0: .*string", id="number"),
        pytest.param(ExactMatch, {"expected": 1}, "config/expected: .*string", id="expected-number"),
        pytest.param(StartsWith, {}, "config/text: missing", id="no-text"),
        pytest.param(LengthWithin, {}, "no limit set; set min, max or both", id="no-limit"),
        pytest.param(
            LengthWithin, {"min": 10, "max": 5}, "got min 10 and max 5, wanted min <= max", id="order"
        ),
        pytest.param(LengthWithin, {"min": -1}, "config/min", id="negative"),
        pytest.param(FinishReason, {"allowed": []}, "config/allowed", id="nothing-allowed"),
    ],
)
def test_a_wrong_config_is_refused_with_its_key(
    evaluator: type[Evaluator], config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        evaluator.definition().compile(config)


@pytest.mark.parametrize(
    ("spec", "answer", "reason"),
    [
        ({"type": "exact-match", "config": {"expected": "Zoë"}}, "Zoe\u0308", "equal after NFC"),
        ({"type": "exact-match", "config": {"expected": "a b"}}, "a\u00a0 b\n", "equal but for white space"),
        ({"type": "exact-match", "config": {"expected": "Straße"}}, "STRASSE", "equal but for case"),
        ({"type": "exact-match", "config": {"expected": "1"}}, "\uff11", "equal after NFKC"),
        (
            {"type": "exact-match", "config": {"expected": "Zoë a"}},
            "zoe\u0308  A",
            "equal after NFC and but for white",
        ),
        ({"type": "contains", "config": {"text": "Zoë"}}, "By Zoe\u0308.", "contained after NFC"),
        (
            {"type": "contains", "config": {"substrings": ["x", "New York"]}},
            "x: new york",
            "contained but for case",
        ),
        ({"type": "starts-with", "config": {"text": "Dear "}}, "dear Zoe", "it starts with it but for case"),
        ({"type": "ends-with", "config": {"text": "the end."}}, "The End.", "it ends with it but for case"),
        (
            {"type": "levenshtein", "config": {"expected": "ÄÖ", "threshold": 1}},
            "A\u0308O\u0308",
            "equal after NFC",
        ),
    ],
)
def test_the_reason_says_when_texts_differ_only_in_their_form(spec: Any, answer: str, reason: str) -> None:
    summary = evaluate([spec], answered(answer))
    assert summary.verdict == FAILED
    assert reason in summary.results[0].reason
    assert " (equal" not in evaluate([spec], answered("other")).results[0].reason


@pytest.mark.parametrize(
    ("spec", "forms"),
    [
        ({"type": "exact-match", "config": {"expected": "Zoë  a"}}, ["nfc", "whitespace"]),
        ({"type": "contains", "config": {"text": "Zoë A", "ignoreCase": True}}, ["nfkc", "whitespace"]),
        ({"type": "starts-with", "config": {"text": "Zoë"}}, "nfc"),
        ({"type": "ends-with", "config": {"text": "ë\ta"}}, ["whitespace", "nfc"]),
        ({"type": "regex", "config": {"pattern": "^Zoë a$"}}, ["whitespace", "nfc"]),
        ({"type": "fuzzy-match", "config": {"expected": "Zoë a", "threshold": 1}}, ["whitespace", "nfc"]),
    ],
)
def test_texts_are_compared_in_normal_forms_where_that_is_asked_for(spec: Any, forms: Any) -> None:
    text = " Zoe\u0308\u00a0\na "
    if spec["type"] == "starts-with":
        text = text.strip()
    assert evaluate([spec], answered(text)).verdict == FAILED
    asked = {**spec, "config": {**spec["config"], "normalize": forms}}
    assert evaluate([asked], answered(text)).verdict == PASSED
    assert evaluate([asked], answered("x" * 500_001)).results[0].error.code == "INPUT_TOO_LARGE"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("今天天气很好。", 6),
        ("私はコーヒーを飲みます、毎日。", 13),
        ("สวัสดีครับ", 7),
        ("ສະບາຍດີ", 6),
        ("မင်္ဂလာပါ", 5),
        ("សួស្តី", 3),
        ("我爱 Python 3", 4),
        ("东京is nice", 4),
        ("안녕 하세요", 2),
        ("cafe\u0301 nai\u0308ve", 2),
        ("が\u3099", 1),
        ("well - yes", 3),
    ],
)
def test_letters_of_scripts_without_spaces_are_words(text: str, words: int) -> None:
    summary = evaluate(
        [
            {"type": "word-count", "config": {"min": words, "max": words}},
            {"type": "response-length", "config": {"unit": "words"}},
        ],
        answered(text),
    )
    assert summary.results[1].value == words
    assert summary.verdict == PASSED


@pytest.mark.parametrize("measure", ["rouge-1", "rouge-2", "rouge-l", "token-f1", "bleu", "gleu"])
def test_measures_of_words_compare_texts_without_spaces(measure: str) -> None:
    spec = {"type": measure, "config": {"expected": "今天天气很好、我们去公园", "threshold": 0.5}}
    assert evaluate([spec], answered("今天天气很好、我们去学校")).verdict == PASSED
    assert evaluate([spec], answered("价格是五百元")).verdict == FAILED


@pytest.mark.parametrize(
    ("spec", "idle"),
    [
        ({"type": "contains", "config": {"substrings": []}}, True),
        ({"type": "contains-any", "config": {"substrings": []}}, True),
        ({"type": "contains", "config": {"text": ""}}, True),
        ({"type": "contains-any", "config": {"substrings": ["z", ""]}}, True),
        ({"type": "contains", "config": {"substrings": ["x", ""]}}, False),
        ({"type": "starts-with", "config": {"text": ""}}, True),
        ({"type": "ends-with", "config": {"text": ""}}, True),
        ({"type": "tool-use", "config": {"expectations": []}}, True),
        ({"type": "trajectory", "config": {"expected": []}}, True),
        ({"type": "contains", "config": {"text": "x"}}, False),
    ],
)
def test_a_check_that_checks_nothing_passes_with_a_warning(spec: Any, idle: bool) -> None:
    for one in (spec, {"type": "any-of", "config": {"evaluators": [spec]}}):
        summary = evaluate([one], answered("x"))
        assert summary.verdict == PASSED
        assert bool(summary.warnings) is idle
