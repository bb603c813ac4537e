"""Assertion that the number in the answer is the expected one, and the parser of numbers in text."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from math import inf, isfinite
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Result, failed, passed

from .json_values import shown, within
from .results import Amount, MessageChoice, OnMissing, UnreadableAnswer, missing, no_answer, too_large

# No-break, figure, thin and narrow spaces, which separate thousands, or a number and its fraction.
_SPACES: Final = "\u00a0\u2007\u2008\u2009\u202f"
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
_UNITS: Final = "".join(_HAN_UNITS)
_HAN: Final = f"{_HAN_DIGITS}零两兩{_UNITS}"
# Scripts without spaces between words, and Hangul, whose words touch their numbers.
_TOUCHING: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_CURRENCIES: Final = "".join(
    char
    for char in map(chr, (*range(0x24, 0x25), *range(0xA2, 0x20D0)))
    if unicodedata.category(char) == "Sc"
)
_LETTERS: Final = rf"[^\W0-9_{_TOUCHING}{_FRACTIONS}]"
_DASHES: Final = "\u2010-\u2015\u2212"

# What may stand between the digits of one token: separators of every notation, of dates, times, versions and ranges,
# signs of arithmetic, and letters. Only few of the tokens can be read; none is read in part.
_BETWEEN: Final = rf"""(?:
      [.,:'\u2018\u2019\u00b4`_/\u2044\u2215\u00b7\u22c5\u02d9\u00b0\u00ad\u2026\u30fb\u2032\u2033\u2000-\u200d\u205f\u2060\ufeff{_SPACES}]{{1,3}}+
    | (?<![0-9]{{4}})[ \u3000](?=[0-9]{{3}}(?![0-9]))                                # 1 000 000
    | &(?:nbsp|thinsp|\#160|\#8201|\#8239);
    | \*\*?[,.] | </?su[bp]> | _?\{{                                                 # **1**,000, 10<sup>6</sup>
    | [ ](?:times|(?:multiplied|divided)[ ]by|(?:raised[ ])?to[ ]the[ ]power[ ]of)[ ]
    | [ ]?(?:h|hrs?|hours?|mins?|minutes?|ft|feet|lbs?)[ ]                            # 2 h 30
    | [ ](?=[0-9]++[/\u2044\u2215][0-9])                                            # 2 1/2
    | (?:%|{_LETTERS}{{1,4}})?[ ]?[-~\u301c\uff5e\u30fc{_DASHES}]{{1,2}}[ ]?[{_CURRENCIES}]?   # 5-10, 5% - 10%, $5-$10
    | [ ]?(?:\^|\*\*?|[\u00d7\u22c5\u00b7\u00f7xX/\u2044\u2215]|\\(?:times|cdot|div))[ ]?   # 3 x 10
    | \.?[eE][-+\u2212]? | [ ][eE][-+\u2212]?(?=[0-9])
    | {_LETTERS}{{1,20}}                                                             # 0x1F, 1h30
    | \{{,\}} | \\[,;:!]                                                            # LaTeX's 1{{,}}000
    | [年月日号號时時点點년월일시분] | 分[之の]                                            # 2025年1月, 3分の1
)"""
# All quantifiers outside `_BETWEEN` are possessive, so that no text causes backtracking.
_NUMBER = re.compile(
    rf"""
    (?P<digits>\.?[0-9]++(?:{_BETWEEN}[0-9]++)*+)
    (?:[ {_SPACES}]?(?P<fraction>[{_FRACTIONS}]))?+
    (?:[ {_SPACES}]?(?P<units>[{_UNITS}](?:[{_HAN}0-9]|[,.](?=[0-9])|[ ](?=[0-9,.]+[{_UNITS}]))*+))?+
    | (?P<alone>[{_FRACTIONS}])
    | (?P<latex>\\(?:[a-z]?frac|sqrt(?:\[[^\[\]{{}}]{{0,20}}\])?)[ ]?(?:\{{[^{{}}]{{0,50}}\}}[ ]?|[0-9])++)
    | (?P<han>[{_HAN}]++)
    """,
    re.VERBOSE,
)
_READABLE = re.compile(
    r"""
    (?:
        [0-9]*
      | [1-9][0-9]{0,2}(?P<separator>[,'\u2019_\u00a0])[0-9]{3}(?:(?P=separator)[0-9]{3})*   # 1,234,567
      | [1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}                                                 # 12,34,567 in India
    )
    (?:\.[0-9]+)?
    (?P<exponent>[eE][-+\u2212]?[0-9]{1,3})?
    """,
    re.VERBOSE,
)
_BEFORE = re.compile(
    rf"""
    (?P<sign>[-+{_DASHES}\u00b1\u2213\u221a-\u221c]*)
    (?P<letters>(?<=[-+{_DASHES}])[A-Za-z]{{1,4}}\.?)?      # -US$5
    (?P<currency>[{_CURRENCIES}])?
    (?(currency)[ {_SPACES}]?|(?(letters)[ ]?))             # but "- 5" is an item of a list
    (?P<inner>[-+\u2212]?)
    \Z
    """,
    re.VERBOSE,
)
# Codes of currencies, after which a hyphen may be a minus.
_CODE = re.compile(
    r"(?<![A-Za-z])(?:USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD|NZD|BRL|MXN|KRW|RUB|SEK|NOK|DKK|PLN|CZK|HUF|TRY|ZAR|SGD|HKD)\Z"
)
_LOOK_BEHIND: Final = 16
_NEGATIVE: Final = (
    *("minus ", "negative ", "moins ", "menos ", "meno ", "eksi ", "минус ", "мінус ", "âm ", "سالب "),
    *("负", "負", "負の", "マイナス", "零下", "氷点下", "영하", "마이너스", "ลบ"),
)
_INSIDE_WORD = re.compile(r"\w++(?:\.\w++)*+")
_LETTER = re.compile(rf"[^\W0-9_{_FRACTIONS}]")
_TOUCHING_LETTER = re.compile(rf"[{_TOUCHING}]")

_AFTER = re.compile(
    rf"(?:\*\*?|__|`|\))?(?P<space>[ {_SPACES}-]?\(?)(?P<word>{_LETTERS}++(?:\.m\.)?)"
)  # **5** million, 5 (million), five (5) million
# Units of ten in scripts whose letters touch numbers or are no words for `re`, and parts of one, in words.
_MORE_UNITS = re.compile(
    rf"""
      [ {_SPACES}]?(?:
        [多余餘几幾来來][个個]?[{_UNITS}] | [个個][亿億兆万萬半] | [京垓仟佰拾廿割折]
      | [십백천만억조경]+(?:(?![가-힣])|(?=[원명개달년여은는을를이가의에으로도입]))
      | ร้อย | พัน(?!ธ) | หมื่น | แสน | ล้าน
      | ह(?:ज़|ज\u093c|ज)ार | लाख | करोड | अरब
      )
    | [ -](?:and|et|y|e|und)[ -](?:(?:a|an|one|un|une|ein)[ -])?(?:half|third|quarter|demie?|medi[oa]|mei[oa]|mezz[oa]|halb)\b
    | [ {_SPACES}]?[\u2030\u2031]
    """,
    re.VERBOSE,
)
_MULTIPLIERS: Final = {
    "k": 3,
    "K": 3,
    "M": 6,
    "bn": 9,
    "Bn": 9,
    "B": 9,
    "thousand": 3,
    "million": 6,
    "millions": 6,
    "billion": 9,
    "billions": 9,
    "trillion": 12,
    "trillions": 12,
}
# Words after a number that change it, in ways that depend on the country or the context.
_CHANGING: Final = frozenset(
    {
        *(
            "hundred",
            "dozen",
            "dozens",
            "lakh",
            "lakhs",
            "lac",
            "crore",
            "crores",
            "mio",
            "mln",
            "mrd",
            "mn",
            "tn",
        ),
        *("millionen", "milliarde", "milliarden", "milliard", "milliards", "tausend", "mille", "mil"),
        *(
            "millones",
            "millón",
            "milhões",
            "milhão",
            "bilhões",
            "bilhão",
            "milioni",
            "milione",
            "miliardi",
            "miliardo",
        ),
        *(
            "тыс",
            "тысяч",
            "тысячи",
            "млн",
            "млрд",
            "миллион",
            "миллиона",
            "миллионов",
            "миллиард",
            "миллиардов",
        ),
        *("juta", "ribu", "miliar", "triệu", "tỷ", "nghìn", "thousands", "hundreds", "gross", "score"),
        *(
            "tsd",
            "billionen",
            "mila",
            "mlrd",
            "mld",
            "md",
            "quadrillion",
            "quadrillions",
            "milliers",
            "millier",
        ),
        *(
            "bin",
            "milyon",
            "milyar",
            "trilyon",
            "tys",
            "tysiąc",
            "tysiące",
            "tysięcy",
            "miliony",
            "milionów",
            "tisíc",
        ),
        *(
            "duizend",
            "miljoen",
            "miljard",
            "tusen",
            "tusind",
            "miljoner",
            "millioner",
            "miljarder",
            "milliarder",
        ),
        *(
            "тис",
            "мільйон",
            "мільйонів",
            "χιλιάδες",
            "εκατομμύρια",
            "ألف",
            "آلاف",
            "مليون",
            "مليار",
            "אלף",
            "מיליון",
        ),
        *("thirds", "fifths", "tenths", "hundredths", "thousandth", "thousandths", "millionth", "millionths"),
        *("squared", "cubed"),
        *("am", "pm", "a.m.", "p.m.", "uhr", "o"),
    }
)
# The same directly at the number: also letters that may be a unit, a multiplier or a part of an ordinal.
_CHANGING_SUFFIXES: Final = frozenset(
    {*("st", "nd", "rd", "th", "er", "re", "e", "ère", "ème", "º", "ª", "i", "j", "ⁿ", "ⁱ", "π")}
    | {*("m", "b", "t", "T", "G", "MM", "Cr", "cr", "L")}
)
# A number goes on after its multiplier: 3 million 200 thousand.
_MORE = re.compile(rf"[ {_SPACES}]+(?:and )?[{_CURRENCIES}]?(?=[0-9])")
_POWER = re.compile(r"[ ]?\^[ ]?[({+\u2212-]*\w*[)}]?")
_RAISED: Final = "\u207a\u207b\u2070\u207f\u2071\u2030\u2031\u221a"

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

    Digits with everything between them that may belong to one token are one part, which is read whole or not at all:
    see the documentation for what can be read.
    - Digits of every script are parsed. The decimal sign is a dot; Arabic has its own.
    - Digits inside a word ("GPT4") are not numbers.
    - Chinese numerals are parsed alone ("三十五") or after digits ("1.5万"). Inside a word ("三月") they are not numbers;
      if the text has no other number, the first is yielded as unreadable.

    check: called regularly, may raise.
    """
    text = _with_ascii_digits(text)
    inside_word: NumberInText | None = None
    nothing, position, count = True, 0, 0
    while found := _NUMBER.search(text, position):
        start, position = found.span()
        count += 1
        if not count & 255:
            check()
        if han := found["han"]:
            if any(
                char.isalnum() or char == "\u30fb"
                for char in text[max(0, start - 1) : start] + text[position : position + 1]
            ):
                inside_word = inside_word or NumberInText(han, None)
                continue
            sign: int | None = 1
        else:
            before = text[start - 1 : start]
            if found["digits"] and before and (_LETTER.match(before) or before == "_"):
                stem = text[:start].rstrip("_")[-1:]
                if stem and stem.isalnum() and (stem in _HAN or not _TOUCHING_LETTER.match(stem)):
                    if found["digits"].startswith("."):
                        nothing = False
                        yield NumberInText(found[0], None)
                    else:
                        word = _INSIDE_WORD.match(text, start)
                        position = word.end() if word else position
                    continue
            start, sign = _signed(text, start)
        end, factor = _end_of_number(text, found)
        value = _value(found) if sign is not None and factor is not None else None
        if value is not None and factor:
            value = _scaled(value, factor)
        position = end
        nothing = False
        yield NumberInText(text[start:end], None if value is None or sign is None else sign * value)
    if nothing and inside_word:
        yield inside_word


def _signed(text: str, start: int) -> tuple[int, int | None]:
    """Return the start of the number with its signs, and 1 or -1; None if the signs cannot be read."""
    before = text[max(0, start - _LOOK_BEHIND) : start]
    if before.endswith(("^", "..")) or (text.startswith(".", start) and before.endswith(".")):
        return start, None
    found = _BEFORE.search(before)
    assert found is not None  # it matches ""
    outer, inner = found["sign"], found["inner"]
    if not found["currency"] and not found["letters"]:
        outer, inner = outer + inner, ""
    begin = start - (len(before) - found.start()) if outer or found["currency"] else start
    words = before[: len(before) - (start - begin)].lower()
    if words.endswith(_NEGATIVE) or words.rstrip(f" {_SPACES}").endswith(_NEGATIVE):
        return begin, None
    signs = outer + inner
    if not signs:
        return begin, 1
    previous = before[found.start() - 1 : found.start()] if found.start() else ""
    touched = previous.isalnum() and not _TOUCHING_LETTER.match(previous)
    if outer and _CODE.search(before, 0, found.start()):
        return start, None  # EUR-5
    if outer and "\u221a" not in outer and (touched or previous in {*")]}%"}):
        return start, 1  # "(3)-4" and "BK-12" have a hyphen, not a minus
    if found["letters"] or signs not in {"-", "+", "\u2212"}:
        return begin, None
    return begin, 1 if signs == "+" else -1


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


def _end_of_number(text: str, found: re.Match[str]) -> tuple[int, int | None]:
    """Return the end of a number with what follows and changes it, and the power of ten that this is; None if unreadable."""
    end: int = found.end()
    factor: int | None = 0
    if found["han"]:
        pass
    elif more_units := _MORE_UNITS.match(text, end):
        end, factor = more_units.end(), None
    elif after := _AFTER.match(text, end):
        word, touches = after["word"], not after["space"]
        power = _MULTIPLIERS.get(word if touches and len(word) < 3 else word.lower())
        if not touches and len(word) < 3:
            power = None
            changes = word in {"M", "B", "bn", "Bn", "k", "MM"} or word.lower() in _CHANGING
        else:
            changes = word.lower() in _CHANGING or (touches and word in _CHANGING_SUFFIXES)
        digits = found["digits"] or ""
        changes = changes and text[after.end() : after.end() + 1] not in {"\u00b2", "\u00b3"}  # 5m²
        if touches and (
            ("e" in digits.lower()) or (digits == "0" and re.fullmatch("[xX][0-9A-Fa-f]+|[bBoO]", word))
        ):
            changes = True
        if power is not None or changes:
            end, factor = after.end(), None if changes else power
            while (
                power is not None
                and (more := _MORE.match(text, end))
                and (rest := _NUMBER.match(text, more.end()))
            ):
                end, factor = rest.end(), None
                if further := _AFTER.match(text, end):
                    end = further.end()
    if power_sign := _POWER.match(text, end):
        end, factor = power_sign.end(), None
    # In ASCII, only digits are numeric: those after a fraction.
    while end < len(text) and (text[end].isnumeric() or text[end] in _RAISED) and not found["han"]:
        end, factor = end + 1, None
    return end, factor


def _scaled(number: float, power: int) -> float:
    exact = Decimal(number if isinstance(number, int) else repr(number)).scaleb(power)
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def _value(found: re.Match[str]) -> float | None:
    digits, fraction, units, alone = found.group("digits", "fraction", "units", "alone")
    number: float | None
    if found["han"]:
        return _han_number(found["han"])
    if found["latex"]:
        return None
    if alone:
        number = unicodedata.numeric(alone)
    else:
        digits = digits.translate(_ONE_SPACE)
        if not _READABLE.fullmatch(digits):
            return None
        digits = digits.translate(_NO_SEPARATORS)
        # A whole number stays exact, because a double has 16 digits and a longer id may differ in its last one.
        number = int(digits) if digits.isdigit() and len(digits) <= _LONGEST_INTEGER else float(digits)
        if fraction:
            number = number + unicodedata.numeric(fraction) if digits.isdigit() else None
        if units and number is not None:
            number = _han_number(units, number)
    return number if number is not None and isfinite(number) else None


# Digits. A double has at most 309.
_LONGEST_INTEGER: Final = 300

_ONE_SPACE: Final = {ord(space): "\u00a0" for space in _SPACES}
_NO_SEPARATORS: Final = {**dict.fromkeys(map(ord, ",'\u2019_\u00a0")), 0x2212: "-"}
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
            if current is not None or piece in " ,.":
                return None  # 1億 2,000万
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
        le=1,
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
            raise UnreadableAnswer(
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
