"""Words of a text, also in scripts without spaces, and its normal forms."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field

# Chinese, Japanese, Thai, Lao, Burmese and Khmer letters.
_RANGES: Final = (
    *(
        (0x0E00, 0x0EFF),
        (0x1000, 0x109F),
        (0x1780, 0x17FF),
        (0x3005, 0x3007),
        (0x3031, 0x3035),
        (0x3041, 0x30FF),
    ),
    *(
        (0x3105, 0x312F),
        (0x31A0, 0x31FF),
        (0x3400, 0x4DBF),
        (0x4E00, 0x9FFF),
        (0xA9E0, 0xA9FF),
        (0xAA60, 0xAA7F),
    ),
    *((0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x1AFF0, 0x1B16F), (0x20000, 0x3FFFF)),
)


def _classes() -> tuple[str, str]:
    """Return the content of two character classes: letters without spaces between words, and marks on them."""
    letters, marks = "", "\u0300-\u036f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"
    for first, last in _RANGES:
        if last - first > 1000 or first > 0xF000:
            letters += f"{chr(first)}-{chr(last)}"
            continue
        for code in range(first, last + 1):
            category = unicodedata.category(chr(code))
            if category in ("Lo", "Lm", "Nl"):
                letters += chr(code)
            elif category.startswith("M"):
                marks += chr(code)
    return letters, marks


_LETTERS, _MARKS = _classes()
_LETTER: Final = re.compile(rf"[{_LETTERS}]")
_PIECE: Final = re.compile(rf"[{_LETTERS}][{_MARKS}]*|[^{_LETTERS}]+")
LETTER_AS_WORD: Final = rf"[{_LETTERS}][{_MARKS}]*"
"""A regular expression: a letter, with its marks, of a script without spaces."""


def split_words(text: str) -> list[str]:
    """Return what white space separates; in scripts without spaces each letter with its marks is a word."""
    words = text.split()
    return (
        words
        if text.isascii() or not _LETTER.search(text)
        else [piece for w in words for piece in _pieces(w)]
    )


def _pieces(word: str) -> Iterator[str]:
    if not _LETTER.search(word):
        yield word
        return
    for piece in _PIECE.findall(word):
        # Beside such letters, punctuation is no word of its own, as it is none beside others.
        if any(map(str.isalnum, piece)):
            yield piece


Form = Literal["nfc", "nfkc", "whitespace"]
_FORMS: Final = get_args(Form)


def _forms(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Normalize = Annotated[
    list[Form],
    BeforeValidator(_forms, json_schema_input_type=Form | list[Form]),
    Field(
        description="Normal forms in which the texts are compared, one or a list. nfc: composed characters. nfkc: also "
        "without differences of compatibility, such as full width. whitespace: each run of white space is one space, "
        "none at the ends."
    ),
]

MAX_NORMALIZED: Final = 500_000
"""Maximum number of characters that are normalized: 5 to 50 ms."""


def normalized(text: str, forms: Sequence[str]) -> str:
    """Return the text in these forms."""
    if "nfc" in forms or "nfkc" in forms:
        text = unicodedata.normalize("NFKC" if "nfkc" in forms else "NFC", text)
    return " ".join(text.split()) if "whitespace" in forms else text


_EXPLAINED: Final = 20_000
# In the order in which they are applied; the weaker of two that explain a difference comes first.
_DIFFERENCES: Final[Mapping[str, Callable[[str], str]]] = {
    "after NFC": partial(unicodedata.normalize, "NFC"),
    "but for white space": lambda text: " ".join(text.split()),
    "but for case": str.casefold,
    "after NFKC": partial(unicodedata.normalize, "NFKC"),
}


def explain(relation: str, answer: str, expected: str, holds: Callable[[str, str], bool]) -> str:
    """Return why a comparison failed, if the texts differ only in composition, white space or case; else "".

    relation: what would hold then, such as "equal". holds: the comparison of two texts.
    """
    if len(answer) + len(expected) > _EXPLAINED:
        return ""

    def holds_with(names: Sequence[str]) -> bool:
        texts = [answer, expected]
        for name in names:
            texts = [_DIFFERENCES[name](text) for text in texts]
        return holds(texts[0], texts[1])

    names = list(_DIFFERENCES)
    if not holds_with(names):
        return ""
    for name in reversed(list(_DIFFERENCES)):
        fewer = [other for other in names if other != name]
        if holds_with(fewer):
            names = fewer
    return f" ({relation} {' and '.join(names)})"
