"""Reasoning that a model leaves in the text of its answer, and the text without it.

At the start of a text, and nowhere else, these are reasoning:
- blocks `<think>`, `<thinking>` and `<reasoning>`, one or several;
- text that ends with a closing tag whose opening tag was part of the prompt;
- messages of gpt-oss (harmony) in any channel but `final`.
"""

import re
from typing import Final, NamedTuple

# Possessive quantifiers, because the time of a search must not grow with the square of the text's length.
_BLANK: Final = r"[\s\ufeff\u200b]*+"
_NAME: Final = r"(think|thinking|reasoning)"
_OPENING: Final = re.compile(rf"{_BLANK}<\s*+{_NAME}(?:\s[^<>]*+|/)?>", re.IGNORECASE)
_TAG: Final = re.compile(rf"<\s*+(/?)\s*+{_NAME}(?:\s[^<>]*+|/)?>", re.IGNORECASE)
FENCE: Final = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
"""Where a fenced block begins or ends."""

_HARMONY_START: Final = re.compile(rf"{_BLANK}<\|(?:start|channel)\|>")
# The prompt ended within a message, so that the text begins with the rest of it.
_HARMONY_REST: Final = re.compile(r"<\|end\|>\s*+<\|start\|>assistant[^<]*+<\|channel\|>")
_HARMONY_HEADER: Final = re.compile(
    r"(?:<\|start\|>[^<]*+)?(?:<\|channel\|>\s*+(?P<channel>\w*+)[^<]*+)?(?:<\|constrain\|>[^<]*+)?<\|message\|>"
)
_HARMONY_END: Final = re.compile(r"<\|(?:end|return|call|start|channel)\|>")


class SplitText(NamedTuple):
    """A text split into its reasoning and its answer.

    reasoning: without tags and markup. answer: None if the reasoning has no end, because the model was cut off.
    """

    reasoning: str
    answer: str | None


def split_reasoning(text: str) -> SplitText | None:
    """Split a model's text; None if it begins with no reasoning, so that all of it is the answer."""
    if "<" not in text:
        return None
    if _HARMONY_START.match(text):
        return _split_harmony(text)
    if _OPENING.match(text):
        return _split_blocks(text)
    return _split_rest(text)


def answer_text(text: str) -> str:
    """Return the answer in a model's text; "" if it has none."""
    split = split_reasoning(text)
    return text if split is None else split.answer or ""


def _split_blocks(text: str) -> SplitText:
    thoughts: list[str] = []
    position = 0
    while opening := _OPENING.match(text, position):
        position = opening.end()
        if opening[0].endswith("/>"):
            continue
        end = _closing(text, position, opening[1].lower())
        if end is None:
            thoughts.append(text[position:])
            return SplitText(_joined(thoughts), None)
        thoughts.append(text[position : end.start()])
        position = end.end()
    return SplitText(_joined(thoughts), text[position:].lstrip())


def _closing(text: str, position: int, name: str) -> re.Match[str] | None:
    """Return the closing tag of a block; None if there is none.

    It is the one that balances the opening tags, so that nested blocks are reasoning too. Reasoning may also mention
    an opening tag: where nothing balances, it is the last closing tag.
    """
    depth = 1
    last = None
    for tag in _TAG.finditer(text, position):
        if tag[2].lower() != name or tag[0].endswith("/>"):
            continue
        if not tag[1]:
            depth += 1
            continue
        depth -= 1
        last = tag
        if not depth:
            break
    return last


def _split_rest(text: str) -> SplitText | None:
    """Split a text whose opening tag or first header was part of the prompt."""
    tag = _TAG.search(text)
    if tag is not None and tag[1] and not _is_quoted(text, tag):
        rest = text[tag.end() :]
        more = split_reasoning(rest) if _OPENING.match(rest) else None
        if more is None:
            return SplitText(_joined([text[: tag.start()]]), rest.lstrip())
        return SplitText(_joined([text[: tag.start()], more.reasoning]), more.answer)
    end = _HARMONY_REST.search(text)
    if end is not None and not _is_quoted(text, end):
        rest_of = _split_harmony(text[end.start() + len("<|end|>") :])
        return SplitText(_joined([text[: end.start()], rest_of.reasoning]), rest_of.answer)
    return None


def _is_quoted(text: str, markup: re.Match[str]) -> bool:
    """Return whether markup is quoted: within a fenced block, or directly between backticks."""
    return is_between_backticks(text, markup) or len(FENCE.findall(text, 0, markup.start())) % 2 == 1


def is_between_backticks(text: str, markup: re.Match[str]) -> bool:
    """Return whether markup stands directly between backticks."""
    return text[max(0, markup.start() - 1) : markup.start()] == "`" == text[markup.end() : markup.end() + 1]


def _split_harmony(text: str) -> SplitText:
    thoughts: list[str] = []
    answers: list[str] = []
    position, open_ended = 0, True
    while header := _HARMONY_HEADER.search(text, position):
        end = _HARMONY_END.search(text, header.end())
        content = text[header.end() : end.start() if end else len(text)]
        final = (header["channel"] or "final").lower() == "final"
        (answers if final else thoughts).append(content)
        open_ended = end is None and not final
        if end is None:
            break
        # A message may end where the next one begins.
        position = end.start() if end[0] in ("<|start|>", "<|channel|>") else end.end()
    answer = None if open_ended and not answers else "".join(answers).lstrip()
    return SplitText(_joined(thoughts), answer)


def _joined(thoughts: list[str]) -> str:
    return "\n".join(part for thought in thoughts if (part := thought.strip()))
