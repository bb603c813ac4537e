"""Answers that hold nothing to judge.

Some texts without content, ":" or "Solution" among them, make language models answer that a task was
solved, whatever the task. No judge is asked about such an answer: it fails as unproven, which neither
negation nor a threshold turns round. Source of the phrases: Zhao et al., One Token to Fool
LLM-as-a-Judge, arXiv:2507.08794, 2025.
"""

import re
import unicodedata
from typing import Final

from evald.context import EvaluatorContext

# Announce an answer and hold none. "Answer" and "Reply" alone are not here, because they can be one.
_OPENERS: Final = frozenset(
    {
        "solution",
        "the solution",
        "thought process",
        "lets solve this problem step by step",
        "lets solve this step by step",
        "lets think step by step",
        "lets think about this step by step",
        "step by step solution",
        "here is the solution",
        "heres the solution",
        "解",
        "解答",
        "解法",
        "かいせつ",
        "解説",
        "respuesta",
        "solución",
        "lösung",
        "réponse",
        "resposta",
        "решение",
        "ответ",
    }
)

# Announce an answer only with a colon behind them.
_ANNOUNCERS: Final = frozenset(
    {
        "answer",
        "the answer",
        "final answer",
        "the final answer",
        "answer is",
        "the answer is",
        "the final answer is",
        "explanation",
        "reasoning",
        "result",
        "output",
        "reply",
        "response",
        "答案",
    }
)

_COLONS: Final = (":", "\N{FULLWIDTH COLON}")
_SPACE: Final = re.compile(r"\s+")
_WORDS: Final = re.compile(r"[^\W_]")

# Every phrase above is shorter. Pictures are looked for one character after the other, 0.1 us each.
_LONGEST_PHRASE: Final = 80
_LONGEST_PICTURE: Final = 4000


def hollow(ctx: EvaluatorContext) -> str | None:
    """What the answer is instead of one, for a reason; None when there is something to judge.

    A turn that calls tools is judged by its calls, so its text may be empty. An answer that is the
    expected text is no hollow one, whatever it looks like.
    """
    answer = ctx.answer or ""
    if not answer.strip():
        return None if ctx.turn_tool_calls else "empty"
    kind = hollow_text(answer)
    expected = ctx.expected.text
    if kind is None or (expected is not None and expected.strip() == answer.strip()):
        return None
    return kind


def hollow_text(text: str) -> str | None:
    """The same for a text that is not blank."""
    if not _WORDS.search(text) and not (len(text) <= _LONGEST_PICTURE and any(map(_is_picture, text))):
        return "only punctuation"
    if len(text) > _LONGEST_PHRASE:
        return None
    words = "".join(filter(_counts, unicodedata.normalize("NFKC", text).casefold().replace("-", " ")))
    words = _SPACE.sub(" ", words).strip()
    announces = text.rstrip(" \t\r\n*_#`").endswith(_COLONS)
    if words in _OPENERS or (announces and words in _ANNOUNCERS):
        return "only the announcement of an answer"
    return None


def _is_picture(character: str) -> bool:
    """An emoji can be an answer. U+FFFD, which stands for what was lost, can not."""
    return unicodedata.category(character) == "So" and character != "\ufffd"


def _counts(character: str) -> bool:
    """Whether the character tells one phrase from another."""
    return (
        character.isalnum()
        or character.isspace()
        or unicodedata.category(character)[0] == "M"
        or _is_picture(character)
    )
