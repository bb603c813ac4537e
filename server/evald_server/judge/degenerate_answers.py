"""Detection of degenerate answers: answers without anything to judge.

Some texts without content, for example ":" or "Solution", make language models say that a task was
solved, whatever the task. No judge is asked about such an answer: it fails as unproven, so that neither
negation nor a threshold can invert the verdict. Source of the phrases: Zhao et al., One Token to Fool
LLM-as-a-Judge, arXiv:2507.08794, 2025.
"""

import re
import unicodedata
from typing import Final

from evald.context import EvaluatorContext

# Phrases that announce an answer but are none. "Answer" and "Reply" are left out, because alone they can be an answer.
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

# Phrases that announce an answer only if a colon follows.
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
_WORD_CHARACTER: Final = re.compile(r"[^\W_]")

# Longer than every phrase above.
_MAX_PHRASE: Final = 80

# Longest text that is searched for emoji. The search takes 0.1 us per character.
_MAX_EMOJI_SEARCH: Final = 4000


def degenerate_kind(ctx: EvaluatorContext) -> str | None:
    """Return the kind of a degenerate answer, in words for the reason; None when there is something to judge.

    A turn with tool calls is judged by its calls, so its text may be empty. An answer that equals the
    expected text is never degenerate.
    """
    answer = ctx.answer or ""
    if not answer.strip():
        return None if ctx.turn_tool_calls else "empty"
    expected = ctx.expected.text
    if expected is not None and expected.strip() == answer.strip():
        return None
    if not _WORD_CHARACTER.search(answer) and not _has_emoji(answer):
        return "only punctuation"
    if len(answer) <= _MAX_PHRASE and _is_announcement(answer):
        return "only the announcement of an answer"
    return None


def _is_announcement(text: str) -> bool:
    normal = unicodedata.normalize("NFKC", text).casefold().replace("-", " ")
    words = _SPACE.sub(" ", "".join(filter(_is_significant, normal))).strip()
    has_colon = text.rstrip(" \t\r\n*_#`").endswith(_COLONS)
    return words in _OPENERS or (has_colon and words in _ANNOUNCERS)


def _has_emoji(text: str) -> bool:
    return len(text) <= _MAX_EMOJI_SEARCH and any(map(_is_emoji, text))


def _is_emoji(character: str) -> bool:
    """Return whether the character is an emoji, which can be an answer. U+FFFD, which replaces lost text, cannot."""
    return unicodedata.category(character) == "So" and character != "\ufffd"


def _is_significant(character: str) -> bool:
    """Return whether the character distinguishes one phrase from another."""
    return (
        character.isalnum()
        or character.isspace()
        or unicodedata.category(character)[0] == "M"
        or _is_emoji(character)
    )
