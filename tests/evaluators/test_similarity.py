"""Similarity: the numbers of the reference implementations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.evaluator import InvalidConfig
from evald.result import Verdict
from evald_server.evaluators import similarity
from evald_server.evaluators.similarity import (
    MEASURES,
    Measure,
    TextSimilarity,
    levenshtein_similarity,
    token_f1,
)

from .contexts import answered, context, run

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

# answer, expected, and what sacrebleu 2.6.0 (sentence_bleu), rouge_score 0.1.2 (rougeL, F) and
# rapidfuzz 3.14.6 (fuzz.ratio) make of them.
REFERENCE = [
    ("Your flight HAT001 is booked.", "Your flight HAT001 was cancelled.", 0.3246679155, 0.6, 0.7741935484),
    ("The cat sat on the mat.", "The cat is on the mat.", 0.4889230224, 0.8333333333, 0.9333333333),
    ("hello", "hello world", 0.3678794412, 0.6666666667, 0.625),
    ("one two three four five", "five four three two one", 0.1597357761, 0.2, 0.5652173913),
    (
        "It costs $1,299.50, i.e. 5-6% more.",
        "It costs 1,299.50 dollars, i.e. 5-6% more.",
        0.7627414201,
        0.9523809524,
        0.8831168831,
    ),
    ("don't", "do not", 0, 0, 0.7272727273),
    ('Tom &amp; Ann said "hi"', 'Tom & Ann said: "hi!"', 0.3818502221, 0.8888888889, 0.8636363636),
    ("nothing in common", "all words differ", 0, 0, 0.1818181818),
    ("a\nb c-\nd", "a b cd", 1, 0.5714285714, 0.7142857143),
    ("Ça va très bien", "Ça va bien", 0.3535533906, 0.75, 0.8),
]


@pytest.mark.parametrize(("answer", "expected", "wanted_bleu", "wanted_rouge", "wanted_ratio"), REFERENCE)
def test_it_measures_as_the_reference_implementations_do(
    answer: str, expected: str, wanted_bleu: float, wanted_rouge: float, wanted_ratio: float
) -> None:
    assert MEASURES["bleu"](answer, expected) == pytest.approx(wanted_bleu, abs=1e-9)
    assert MEASURES["rouge-l"](answer, expected) == pytest.approx(wanted_rouge, abs=1e-9)
    assert MEASURES["fuzzy-match"](answer, expected) == pytest.approx(wanted_ratio, abs=1e-9)


# answer, expected, and what rouge_score 0.1.2 (rouge1 to rouge5, F, without stemmer) and NLTK 3.10.4
# (sentence_gleu of the tokens of sacrebleu 2.6.0's "13a") give.
NGRAM_REFERENCE = [
    ("the cat sat on the mat", "the cat is on the mat", (5 / 6, 0.6, 0.25, 0, 0), 0.5),
    ("fuzzy wuzzy was a bear", "Fuzzy Wuzzy had no hair.", (0.4, 0.25, 0, 0, 0), 0),
    (
        "It is a guide to action which ensures that the military always obeys the commands of the party",
        "It is a guide to action that ensures that the military will forever heed Party commands",
        (0.705882352941, 0.5, 0.4, 0.285714285714, 0.153846153846),
        0.439393939394,
    ),
    ("Paris", "Paris, France", (2 / 3, 0, 0, 0, 0), 1 / 6),
    (
        "a b c d e f",
        "a b c d e f g",
        (0.923076923077, 0.909090909091, 0.888888888889, 0.857142857143, 0.8),
        0.818181818182,
    ),
    ("", "x", (0, 0, 0, 0, 0), 0),
    ("one two", "three four", (0, 0, 0, 0, 0), 0),
    (
        "Guten Tag, 12.5% und 1,000 Euro!",
        "Guten Morgen, 12.5% und 1,000 Dollar!",
        (0.75, 0.571428571429, 0.5, 0.4, 0.25),
        0.533333333333,
    ),
]


@pytest.mark.parametrize(("answer", "expected", "rouge", "wanted_gleu"), NGRAM_REFERENCE)
def test_ngrams_count_as_in_the_reference_implementations(
    answer: str, expected: str, rouge: tuple[float, ...], wanted_gleu: float
) -> None:
    orders: list[Measure] = ["rouge-1", "rouge-2", "rouge-3", "rouge-4", "rouge-5"]
    assert [MEASURES[order](answer, expected) for order in orders] == pytest.approx(rouge, abs=1e-9)
    assert MEASURES["gleu"](answer, expected) == pytest.approx(wanted_gleu, abs=1e-9)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("", "", 1),
        ("a", "b", 0),
        ("", "abc", 0),
        ("ab", "ac", 0.5),
        ("abc", "axc", 2 / 3),
        ("xabxcdxxefxgx", "1ab2cd34ef5g6", 0.53846),
        ("kitten", "sitting", 4 / 7),
        ("漢字", "漢語", 0.5),
    ],
)
def test_levenshtein_counts_code_points(answer: str, expected: str, score: float) -> None:
    assert levenshtein_similarity(answer, expected) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("foo", "foo", 1),
        ("Paris", "Paris, Texas", 2 / 3),
        ("The cat!", "a CAT", 1),
        ("b a b", "b b b", 0.8),
        ("the", "an", 0),
        ("", "A", 0),
        ("a ", "A", 1),
        ("", "", 1),
        ("the", "cat", 0),
        ("x", "y", 0),
    ],
)
def test_token_f1_ignores_case_punctuation_and_articles(answer: str, expected: str, score: float) -> None:
    assert token_f1(answer, expected) == pytest.approx(score)


_TEXTS = st.text("abc é", max_size=80)


@given(_TEXTS, _TEXTS)
def test_every_measure_stays_between_0_and_1(answer: str, expected: str) -> None:
    for measure, compare in MEASURES.items():
        assert 0 <= compare(answer, expected) <= 1, measure


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("text", ["!", "漢字", "hi", "one two three four five"])
def test_equal_texts_score_1_by_every_measure(measure: Measure, text: str) -> None:
    result = run(TextSimilarity, {"expected": text, "measure": measure, "threshold": 1}, answered(text))
    assert (result.verdict, result.score) == (PASSED, 1)


def test_the_threshold_is_inclusive_and_the_reason_says_both_numbers() -> None:
    config = {"expected": "abcd", "threshold": 0.75}
    near = run(TextSimilarity, config, answered("abcx"))
    assert (near.verdict, near.score) == (PASSED, 0.75)
    assert near.reason == "Similarity (levenshtein) 0.75 >= 0.75"
    far = run(TextSimilarity, config, answered("abxx"))
    assert (far.verdict, far.score, far.reason) == (FAILED, 0.5, "Similarity (levenshtein) 0.5 < 0.75")
    rounded = run(TextSimilarity, {"expected": "abcdefghij", "threshold": 0.1}, answered("axxxxxxxxx"))
    assert rounded.verdict is PASSED, "1 - 9 / 10 < 0.1"
    for answer, verdict in (("abcdx", PASSED), ("abcxx", FAILED)):
        assert run(TextSimilarity, {"expected": "abcde"}, answered(answer)).verdict is verdict


@pytest.mark.parametrize("alias", ["levenshtein", "fuzzy-match", "bleu", "rouge-l", "token-f1"])
def test_an_alias_implies_its_measure(alias: str) -> None:
    implied = TextSimilarity.definition().aliases[alias]
    result = run(TextSimilarity, {**implied, "expected": "x y"}, answered("x"))
    assert f"({alias})" in result.reason


def test_it_falls_back_to_the_expected_text_of_the_context() -> None:
    assert run(TextSimilarity, {}, answered("abc", expected_text="abc")).verdict is PASSED
    assert run(TextSimilarity, {"expected": "abc"}, answered("abc", expected_text="xyz")).verdict is PASSED


@pytest.mark.parametrize(
    ("policy", "verdict"), [("fail", FAILED), ("pass", PASSED), ("skip", SKIPPED), ("error", ERROR)]
)
def test_without_anything_expected_it_says_what_was_asked_for(policy: str, verdict: Verdict) -> None:
    assert run(TextSimilarity, {"onMissing": policy}, answered("x")).verdict is verdict


def test_without_an_assistant_message_it_fails() -> None:
    result = run(TextSimilarity, {"expected": ""}, context())
    assert (result.verdict, result.score, result.reason) == (FAILED, 0, "No assistant message found")


@pytest.mark.parametrize("measure", MEASURES)
def test_texts_that_would_hold_up_the_server_are_an_error(
    monkeypatch: pytest.MonkeyPatch, measure: Measure
) -> None:
    monkeypatch.setattr(similarity, "MAX_CELLS", 99)
    monkeypatch.setattr(similarity, "MAX_WORDED", 19)
    config = {"expected": "a" * 10, "measure": measure}
    large = run(TextSimilarity, config, answered("b" * 10))
    assert large.error
    assert large.error.code == "INPUT_TOO_LARGE"
    assert run(TextSimilarity, config, answered("b" * 9)).verdict is FAILED
    if measure == "levenshtein":
        edits = {**config, "maxDistance": 99}
        assert run(TextSimilarity, edits, answered("b" * 10)).verdict is ERROR
        assert run(TextSimilarity, edits, answered("b" * 9)).verdict is PASSED
    if measure in {"levenshtein", "fuzzy-match"}:
        assert run(TextSimilarity, {**config, "expected": "a"}, answered("b" * 99)).verdict is FAILED


@pytest.mark.parametrize("config", [{"threshold": 1.1}, {"threshold": -0.1}, {"measure": "cosine"}])
def test_a_wrong_config_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match=f"config/{next(iter(config))}"):
        TextSimilarity.definition().compile(config)


@pytest.mark.parametrize(("most", "verdict"), [(3, Verdict.PASSED), (2, Verdict.FAILED)])
def test_a_distance_is_compared_in_edits(most: int, verdict: Verdict) -> None:
    evaluator = TextSimilarity.from_config({"expected": "sitting", "maxDistance": most})
    result = evaluator.evaluate(answered("kitten"))
    assert (result.verdict, result.value) == (verdict, 3)
    assert result.score == pytest.approx(4 / 7)
    for answer, same in (("sitting", Verdict.PASSED), ("sittin", Verdict.FAILED)):
        assert (
            run(TextSimilarity, {"expected": "sitting", "maxDistance": 0}, answered(answer)).verdict is same
        )


@pytest.mark.parametrize("more", [{"measure": "bleu"}, {"threshold": 0.5}])
def test_a_distance_goes_with_levenshtein_alone(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="maxDistance"):
        TextSimilarity.from_config({"maxDistance": 1, **more})
