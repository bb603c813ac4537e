"""Assertion that the number in the answer is the expected one, and the parser of numbers in text."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Result, failed, passed, unproven

from .json_values import shown, within
from .results import Amount, MessageChoice, OnMissing, missing, no_answer, too_large

# No-break, thin and narrow space, which separate thousands, or a number and its fraction.
_SPACES: Final = "\u00a0\u2009\u202f"
_FRACTIONS: Final = "\u00bc-\u00be\u2150-\u215e\u2189"
_HAN_DIGITS: Final = "\u3007一二三四五六七八九"
_HAN_UNITS: Final = {
    "十": 10,
    "百": 100,
    "千": 1000,
    "万": 10**4,
    "萬": 10**4,
    "亿": 10**8,
    "億": 10**8,
    "兆": 10**12,
}
_HAN: Final = f"{_HAN_DIGITS}零两兩{''.join(_HAN_UNITS)}"

# All quantifiers are possessive, so that no text causes backtracking.
_NUMBER = re.compile(
    rf"""
    (?:
        (?<![\w.])                       # not inside a word ("GPT4") or a longer number
        (?P<sign>(?<![)\]}}%])[-+\u2212])?+       # "(3)-4" and "BK-12" have a hyphen, not a minus
      | (?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])(?<![{_HAN}])     # no spaces between words here
    )
    [$\u20ac\u00a3\u00a5]?+            # "-$5"
    (?:
        (?P<digits>
            (?:
                [0-9]{{1,3}}+(?:[,{_SPACES}][0-9]{{3}}(?![0-9]))++
              | [0-9]++
              | (?=\.[0-9])              # ".5"
            )
            (?:\.[0-9]++)?+
            (?:[eE][-+]?+[0-9]{{1,3}}+(?![0-9]))?+
        )
        (?:[ {_SPACES}]?(?P<fraction>[{_FRACTIONS}]))?+
        (?:[ {_SPACES}]?(?P<units>[{"".join(_HAN_UNITS)}][{_HAN}0-9]*+))?+
      | (?P<alone>[{_FRACTIONS}])
    )
    (?!\.[0-9])                          # "1.2.3" is a version
    | (?P<han>[{_HAN}]++)
    """,
    re.VERBOSE,
)

# Suffixes that change a number: an exponent too long to parse, a power of ten, a fraction with a slash.
_GOES_ON = re.compile(
    rf"""
    [eE][-+]?+[0-9]++
    | [ {_SPACES}]?[\u00d7\u00b7\u22c5xX*][ {_SPACES}]?10(?:\^[-+\u2212]?[0-9]++|[\u207a\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]++)
    | [\u2044\u2215][0-9]++
    """,
    re.VERBOSE,
)
_MAY_GO_ON: Final = frozenset(f"eExX* \u00d7\u00b7\u22c5\u2044\u2215{_SPACES}")
_RAISED: Final = "\u207a\u207b"

# 0.3 us per character of prose, 3 us of numbers only: 15 to 150 ms, with checks of the time.
MAX_SCANNED = 50_000

# Characters of a text below which its numbers are not shared with other evaluators.
_SHORT: Final = 1_000


class NumberInText(NamedTuple):
    """A part of a text that looks like a number. value: None if it cannot be parsed completely."""

    text: str
    value: float | None


def find_numbers(text: str, check: Callable[[], None] = lambda: None) -> Iterator[NumberInText]:
    """Yield the parts of a text that look like numbers, in order.

    - Digits of every script are parsed. A comma or a no-break space separates thousands if three digits follow
      ("1,234.5"), else it ends a number. The decimal sign is a dot; Arabic has its own.
    - "60%" is 60, "$5" is 5, "5kg" is 5, "1e3" is 1000, "2½" and "2 ½" are 2.5.
    - Digits inside a word ("GPT4") and versions ("1.2.3") are not numbers.
    - Chinese numerals are parsed alone ("三十五") or after digits ("1.5万"). Inside a word ("三月") they are not numbers;
      if the text has no other number, the first is yielded as unreadable.
    - Unreadable are numbers beyond a double ("1e999"), powers of ten ("3 x 10^8"), and digits followed by other
      numeric signs ("10⁴", "5①").

    check: called regularly, may raise.
    """
    text = _with_ascii_digits(text)
    inside_word: NumberInText | None = None
    nothing, position, count = True, 0, 0
    while found := _NUMBER.search(text, position):
        position = found.end()
        count += 1
        if not count & 255:
            check()
        han = found["han"]
        if han and (
            text[found.start() - 1 : found.start()].isalnum() or text[position : position + 1].isalnum()
        ):
            inside_word = inside_word or NumberInText(han, None)
            continue
        end = _end_of_number(text, position)
        value = _value(found) if end == position else None
        position = end
        nothing = False
        yield NumberInText(text[found.start() : end], value)
    if nothing and inside_word:
        yield inside_word


def _with_ascii_digits(text: str) -> str:
    """Return the text with digits of all scripts, full-width or small signs and Arabic separators in ASCII."""
    table: dict[int, str] = {0x066B: ".", 0x066C: ","}
    for char in set(text):
        if not char.isascii():
            digit = unicodedata.decimal(char, None)
            plain = str(digit) if digit is not None else unicodedata.normalize("NFKC", char)
            if digit is not None or (plain in _ASCII_SIGNS and unicodedata.east_asian_width(char) in "FW"):
                table[ord(char)] = plain
    return text.translate(table)


_ASCII_SIGNS: Final = frozenset("+-.,%$")


def _end_of_number(text: str, end: int) -> int:
    """Return the end of a number, after `end` if signs follow that were not parsed."""
    if end < len(text):
        if text[end] in _MAY_GO_ON and (more := _GOES_ON.match(text, end)):
            end = more.end()
        # In ASCII, only digits are numeric: those after a fraction.
        while end < len(text) and (text[end].isnumeric() or text[end] in _RAISED):
            end += 1
    return end


def _value(found: re.Match[str]) -> float | None:
    digits, fraction, units, alone = found.group("digits", "fraction", "units", "alone")
    number: float | None
    if found["han"]:
        return _han_number(found["han"])
    if alone:
        number = unicodedata.numeric(alone)
    else:
        digits = digits.translate(_NO_SEPARATORS)
        # A whole number stays exact, because a double has 16 digits and a longer id may differ in its last one.
        number = int(digits) if digits.isdigit() and len(digits) <= _LONGEST_INTEGER else float(digits)
        if fraction:
            number = number + unicodedata.numeric(fraction) if digits.isdigit() else None
        if units and number is not None:
            number = _han_number(units, number)
    if number is None or not isfinite(number):
        return None
    return -number if found["sign"] in {"-", "\u2212"} else number


# Digits. A double has at most 309.
_LONGEST_INTEGER: Final = 300

_NO_SEPARATORS: Final = {ord(separator): None for separator in f",{_SPACES}"}
_HAN_PIECE = re.compile(r"[0-9]+|.", re.DOTALL)


def _han_number(text: str, first: float | None = None) -> float | None:
    """Parse Chinese numerals: 三十五 is 35, 二〇二五 is 2025, 1.5 and 万 are 15000.

    first: the number of the digits before them.
    Returns None if the text is not one number or is ambiguous: 三四 is three or four, 一百五 is 105 in Japan and 150
    in China. A unit without a number is one of it (百, 一万百), but not after zero or after a larger unit than 千 (零万,
    三亿万).
    """
    if len(text) > 1 and not any(char in _HAN_UNITS for char in text):
        digits = "".join(str(_HAN_DIGITS.find(_HAN_SAME.get(char, char))) for char in text)
        return float(digits) if digits.isdigit() and (len(text) > 2 or "0" in digits) else None
    total = section = 0.0
    current, largest, last_unit, after_zero = first, inf, inf, False
    for piece in _HAN_PIECE.findall(text):
        unit = _HAN_UNITS.get(piece)
        if unit is None:
            digit = _HAN_DIGITS.find(_HAN_SAME.get(piece, piece))
            if current is not None:
                return None
            if digit or text == piece:
                current = float(piece) if digit < 0 else float(digit)  # ASCII digits: 1億2000万
            else:
                after_zero = True  # 一百零五
        elif unit < 10**4:
            if unit >= last_unit or (after_zero and current is None and not section and not total):
                return None
            section += (1 if current is None else current) * unit
            current, last_unit, after_zero = None, unit, False
        else:
            if unit >= largest or (current is None and (after_zero or (not section and largest < inf))):
                return None
            section += 1 if current is None and not section else current or 0
            total += section * unit
            section, current, largest, last_unit, after_zero = 0.0, None, unit, inf, False
    if current is not None and len(text) > 1 and last_unit != 10 and not after_zero:
        return None
    return total + section + (current or 0)


_HAN_SAME: Final = {"零": _HAN_DIGITS[0], "两": "二", "兩": "二"}


# Score of the closest miss: below a threshold of 1, also up to binary rounding.
_BEST_MISS: Final = 1 - 1e-9


def closeness(actual: float, expected: float) -> float:
    """Return 1 - difference / (|actual| + |expected|): 1 if equal, 0 if the signs differ or one is 0."""
    total = abs(actual) + abs(expected)
    if total == inf:
        return closeness(actual / 2, expected / 2)
    return max(0.0, 1 - abs(actual - expected) / total) if total else 1.0


def _digits(number: float) -> str:
    """Return the number as text, with all digits of a whole number of up to 20."""
    return f"{int(number)}" if not number % 1 and abs(number) < 10**20 else f"{number:.15g}"


class Numeric(Evaluator, type="numeric", kind=ASSERTION, aliases={"numeric-diff": {}}, inline=True):
    """The number in the answer is the expected one, within a tolerance.

    Without `expected` it compares with the context's expected data, when that
    is a number, else with the last number of its expected text. A comma
    separates thousands ("1,234.5"), the decimal sign is a dot, and percent and
    currency signs do not change a number: "60%" is 60. Digits of every script,
    fractions such as "2½" and Chinese numerals are read. A number of which
    only a part can be read ("10⁴") never passes, negated or not. Score: 1 when
    passed, else 1 - difference / (|answer| + |expected|).
    """

    expected: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="Expected number. Default: the context's expected number."
    )
    tolerance: Amount = Field(0.0, description="Maximum difference that passes.")
    relative: Amount = Field(
        0.0,
        description="Maximum difference as a fraction of the expected number: 0.01 is 1 %. The larger one of "
        "tolerance and relative applies.",
    )
    extract: Literal["first", "last", "any"] = Field(
        "last",
        description="Which number of the answer is compared; any: the one closest to the expected number.",
    )
    message: MessageChoice = "last"
    on_missing: OnMissing = "fail"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the numbers. value: the number in the answer."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        if len(answer) > MAX_SCANNED:
            return too_large("characters to search for a number", len(answer), MAX_SCANNED)
        expected = (
            ctx.once("expected-number", lambda: _expected_number(ctx))
            if self.expected is None
            else self.expected
        )
        if expected is None:
            return missing(self.on_missing, "No expected number to compare with")
        picked = self._pick(self._numbers(ctx, answer), expected)
        if picked is None:
            return failed(f"No number found in the response, expected {_digits(expected)}", 0.0)
        actual = picked.value
        if actual is None:
            return unproven(
                f"The number {shown(picked.text)} of the response cannot be read, expected {_digits(expected)}"
            )
        allowed = self._allowed(expected)
        reason = f"got {_digits(actual)}, expected {_digits(expected)}, tolerance {allowed:.15g}"
        if within(actual, expected, allowed):
            return passed(f"Number is within tolerance: {reason}", 1.0, actual)
        score = min(closeness(actual, expected), _BEST_MISS)
        return failed(f"Number is not within tolerance: {reason}", score, actual)

    def _numbers(self, ctx: EvaluatorContext, answer: str) -> Sequence[NumberInText]:
        if self.extract == "first":
            return [found for found, _ in zip(find_numbers(answer), range(1), strict=False)]
        if len(answer) < _SHORT:
            return list(find_numbers(answer))
        return ctx.once(("numbers", self.message), lambda: list(find_numbers(answer, ctx.check_time)))

    def _pick(self, numbers: Sequence[NumberInText], expected: float) -> NumberInText | None:
        if not numbers:
            return None
        if self.extract == "any":
            # An unreadable number may be the expected one, so a miss among the others proves nothing.
            known = [found for found in numbers if found.value is not None]
            nearest = min(known, key=lambda found: abs((found.value or 0) - expected), default=None)
            if nearest is not None and (len(known) == len(numbers) or self._holds(nearest.value, expected)):
                return nearest
            return next(found for found in numbers if found.value is None)
        return numbers[0 if self.extract == "first" else -1]

    def _holds(self, actual: float | None, expected: float) -> bool:
        return actual is not None and within(actual, expected, self._allowed(expected))

    def _allowed(self, expected: float) -> float:
        return max(self.tolerance, self.relative * abs(expected))


def _expected_number(ctx: EvaluatorContext) -> float | None:
    expected = ctx.expected
    if expected.has_data:
        data = expected.data
        if isinstance(data, int | float) and not isinstance(data, bool) and isfinite(data):
            return float(data)
    text = expected.text
    if text is None or len(text) > MAX_SCANNED:
        return None
    last = None
    for found in find_numbers(text, ctx.check_time):
        last = found.value
    return last
