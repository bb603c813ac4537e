"""The fence around judged text: whatever stands inside is data, and nothing inside can end it.

A model cannot tell its task from the text that it judges unless the two are kept apart by something
that the author of the text cannot write. That is the nonce: 128 random bits, new in every question.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

# Beyond what JSON escapes: the characters of markup and of chat templates ("<|im_start|>"), and what people
# do not see: controls, bidirectional overrides, zero-width, filling and tag characters, variation selectors,
# private use, halves of surrogate pairs. Hidden instructions become visible to the judge.
_ESCAPED: Final = re.compile(
    "[<>&`\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)

BLANK_NONCE: Final = "0" * 32
"""Stands for the nonce where two questions are compared."""


class Fence:
    """The fence of one question. nonce: 32 hexadecimal digits; a random one when left out."""

    __slots__ = ("nonce",)

    def __init__(self, nonce: str | None = None) -> None:
        self.nonce = secrets.token_hex(16) if nonce is None else nonce

    def around(self, lines: Iterable[str]) -> str:
        """Encoded records, one a line, inside the fence."""
        return "\n".join((f"<data-{self.nonce}>", *lines, f"</data-{self.nonce}>"))


def encode(record: Mapping[str, Any]) -> str:
    """JSON-like data as one line of JSON without any character that could end the fence or hide.

    Raises ValueError for NaN and infinity, RecursionError for data nested too deep.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(_escape, text)


@lru_cache(maxsize=4096)
def _escape_of(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _escape(found: re.Match[str]) -> str:
    return _escape_of(found[0])
