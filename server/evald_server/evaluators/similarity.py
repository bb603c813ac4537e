"""Assertion that the answer is similar to an expected text, by published measures."""

import re
import string
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import exp, log
from typing import Annotated, Literal

from pydantic import Field
from rapidfuzz.distance import LCSseq, Levenshtein

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator, InvalidConfig
from evald.result import ASSERTION, Result, failed, passed, reaches

from .results import MessageChoice, OnMissing, Threshold, missing, no_answer, too_large
from .words import LETTER_AS_WORD, MAX_NORMALIZED, Normalize, explain, normalized, split_words

Measure = Literal[
    "levenshtein",
    "fuzzy-match",
    "bleu",
    "gleu",
    "rouge-1",
    "rouge-2",
    "rouge-3",
    "rouge-4",
    "rouge-5",
    "rouge-l",
    "token-f1",
]

# Characters of both texts together. Splitting and counting their words takes 5 ms, at worst 22 (BLEU of dots).
MAX_WORDED = 20_000

# Product of both lengths. rapidfuzz takes 10 ms for this.
MAX_CELLS = 100_000_000


def levenshtein_similarity(answer: str, expected: str) -> float:
    """Return 1 - edit distance / length of the longer text, in Unicode code points."""
    longest = max(len(answer), len(expected))
    return 1 - Levenshtein.distance(answer, expected) / longest if longest else 1.0


def fuzzy_match(answer: str, expected: str) -> float:
    """Return 2 * length of the longest common subsequence / sum of both lengths: rapidfuzz's `ratio`."""
    total = len(answer) + len(expected)
    return 2 * LCSseq.similarity(answer, expected) / total if total else 1.0


def _f1(common: int, answer_length: int, expected_length: int) -> float:
    """Return the harmonic mean of precision and recall."""
    return 2 * common / (answer_length + expected_length) if common else 0.0


def rouge_l(answer: str, expected: str) -> float:
    """Return the F1 of the longest common subsequence of words, on the text as one sequence.

    Words are runs of a-z and 0-9 in lower case, without stemming, and each letter of scripts without spaces between
    words. So texts in other scripts, such as Cyrillic, score 0 unless they are equal. Source: C.-Y. Lin, "ROUGE", ACL 2004; tokens as in Google's rouge_score 0.1.2.
    """
    answer_words, expected_words = _rouge_words(answer), _rouge_words(expected)
    common = LCSseq.similarity(answer_words, expected_words)
    return _f1(common, len(answer_words), len(expected_words))


def rouge_n(order: int, answer: str, expected: str) -> float:
    """Return the F1 of the common n-grams of `order` words; 0 for a text with fewer words. Words as for `rouge_l`."""
    ours, theirs = _ngrams(_rouge_words(answer), order), _ngrams(_rouge_words(expected), order)
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _rouge_words(text: str) -> list[str]:
    return _ROUGE_WORD.findall(text.lower())


_ROUGE_WORD = re.compile(rf"[a-z0-9]+|{LETTER_AS_WORD}")


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _squad_words(text: str) -> list[str]:
    return split_words(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)))


def token_f1(answer: str, expected: str) -> float:
    """Return the F1 of the common words, in any order.

    In lower case, without ASCII punctuation and English articles. If nothing else is in both texts, such as the
    letter "A", the score is 1 if they are equal, ignoring case, else 0. Source: P. Rajpurkar et al., "SQuAD", EMNLP
    2016, official evaluation script 1.1.
    """
    answer_words, expected_words = _squad_words(answer), _squad_words(expected)
    if not answer_words and not expected_words:
        return float(answer.strip().lower() == expected.strip().lower())
    common = (Counter(answer_words) & Counter(expected_words)).total()
    return _f1(common, len(answer_words), len(expected_words))


_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
# ASCII symbols are separate tokens, except apostrophe, dot, comma and hyphen, which may be part of a word or number.
_SYMBOL = re.compile(r"([!-&(-+/:-@\[-`{-~])")
_DOT_AFTER_TEXT = re.compile(r"([^0-9])([.,])")
_DOT_BEFORE_TEXT = re.compile(r"([.,])([^0-9])")
_HYPHEN_AFTER_DIGIT = re.compile(r"([0-9])(-)")


def _13a_words(text: str) -> list[str]:
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    text = _SYMBOL.sub(r" \1 ", f" {text} ")
    text = _DOT_AFTER_TEXT.sub(r"\1 \2 ", text)
    text = _DOT_BEFORE_TEXT.sub(r" \1 \2", text)
    return split_words(_HYPHEN_AFTER_DIGIT.sub(r"\1 \2 ", text))


def bleu(answer: str, expected: str) -> float:
    """Return the sentence BLEU up to 4 words, from 0 to 1.

    Case-sensitive. A short answer is measured up to its longest n-grams (effective order), and an order without a
    match counts as half of the previous one (exponential smoothing). Source: K. Papineni et al., ACL 2002;
    tokens "13a", smoothing and order as in sacrebleu 2's `sentence_bleu`.
    """
    answer_words, expected_words = _13a_words(answer), _13a_words(expected)
    halvings, logs = 0, []
    any_match = False
    for order in range(1, min(4, len(answer_words)) + 1):
        ours, theirs = _ngrams(answer_words, order), _ngrams(expected_words, order)
        total = len(answer_words) - order + 1
        matches = sum(min(count, theirs.get(gram, 0)) for gram, count in ours.items())
        if matches:
            any_match = True
        else:
            halvings += 1
        logs.append(log((matches or 0.5**halvings) / total))
    if not any_match:
        return 0.0
    brevity = min(0.0, 1 - len(expected_words) / len(answer_words))
    return exp(brevity + sum(logs) / len(logs))


def gleu(answer: str, expected: str) -> float:
    """Return the GLEU: the lower of precision and recall of all n-grams of 1 to 4 words.

    Case-sensitive. Source: Y. Wu et al., arXiv 1609.08144, section 4.3; as in NLTK's `sentence_gleu`, with the
    tokens of `bleu`.
    """
    answer_words, expected_words = _13a_words(answer), _13a_words(expected)
    common = ours_total = theirs_total = 0
    for order in range(1, 5):
        ours, theirs = _ngrams(answer_words, order), _ngrams(expected_words, order)
        common += (ours & theirs).total()
        ours_total += ours.total()
        theirs_total += theirs.total()
    return common / max(ours_total, theirs_total) if common else 0.0


def _ngrams(words: list[str], order: int) -> "Counter[tuple[str, ...]]":
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


MEASURES: dict[Measure, Callable[[str, str], float]] = {
    "levenshtein": levenshtein_similarity,
    "fuzzy-match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    "rouge-1": partial(rouge_n, 1),
    "rouge-2": partial(rouge_n, 2),
    "rouge-3": partial(rouge_n, 3),
    "rouge-4": partial(rouge_n, 4),
    "rouge-5": partial(rouge_n, 5),
    "rouge-l": rouge_l,
    "token-f1": token_f1,
}


class TextSimilarity(
    Evaluator,
    type="text-similarity",
    kind=ASSERTION,
    aliases={measure: {"measure": measure} for measure in MEASURES},
    inline=True,
):
    """The answer is similar enough to the expected text.

    Without `expected` it compares with the expected text of the context. Equal
    texts score 1 by every measure.
    """

    expected: str | None = Field(None, description="Expected text. Default: the context's expected text.")
    measure: Measure = Field("levenshtein", description="How the similarity is computed.")
    threshold: Threshold = Field(0.8, description="Minimum score that passes.")
    max_distance: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Maximum number of edits that passes; only with measure levenshtein, in place of threshold.",
    )
    normalize: Normalize = Field([])
    message: MessageChoice = "last"
    on_missing: OnMissing = "fail"

    def prepare(self) -> None:
        """Raise InvalidConfig if a distance is set with another measure or with a threshold."""
        if self.max_distance is not None and (
            self.measure != "levenshtein" or "threshold" in self.model_fields_set
        ):
            raise InvalidConfig.at(
                "/maxDistance",
                "only allowed with measure levenshtein and without threshold; remove it, or change these",
            )

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return the similarity as the score, from 0 to 1."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        expected = ctx.expected.text if self.expected is None else self.expected
        if expected is None:
            return missing(self.on_missing, "No expected text to compare with")
        if self.normalize:
            if max(len(answer), len(expected)) > MAX_NORMALIZED:
                return too_large("characters to normalize", max(len(answer), len(expected)), MAX_NORMALIZED)
            answer, expected = normalized(answer, self.normalize), normalized(expected, self.normalize)
        if self.max_distance is not None:
            return _within(answer, expected, self.max_distance)
        return compare(self.measure, answer, expected, self.threshold)


def _within(answer: str, expected: str, most: int) -> Result:
    if problem := _oversize("levenshtein", answer, expected):
        return problem
    distance = Levenshtein.distance(answer, expected)
    reason, score = f"{distance} edits, wanted at most {most}", levenshtein_similarity(answer, expected)
    return passed(reason, score, distance) if distance <= most else failed(reason, score, distance)


def compare(measure: Measure, answer: str, expected: str, threshold: float) -> Result:
    """Return the verdict on two texts. Equal texts score 1 by every measure."""
    if answer == expected:
        score = 1.0
    elif problem := _oversize(measure, answer, expected):
        return problem
    else:
        score = MEASURES[measure](answer, expected)
    if reaches(score, threshold):
        return passed(f"Similarity ({measure}) {score:.4g} >= {threshold:.15g}", score)
    hint = explain("equal", answer, expected, str.__eq__)
    return failed(f"Similarity ({measure}) {score:.4g} < {threshold:.15g}{hint}", score)


def _oversize(measure: Measure, answer: str, expected: str) -> Result | None:
    if measure in {"levenshtein", "fuzzy-match"}:
        cells = len(answer) * len(expected)
        if cells > MAX_CELLS:
            return too_large("characters of the answer times those of the expected text", cells, MAX_CELLS)
    elif len(answer) + len(expected) > MAX_WORDED:
        return too_large("characters to compare", len(answer) + len(expected), MAX_WORDED)
    return None
