"""Strict parsing of a judge's answer: a missing, mistyped or out-of-range value makes the answer unusable.

Values are not clamped or converted, and prose is not searched for them. Error messages quote nothing of the answer,
because the judge may have quoted the judged text.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from evald.strict_json import STRICT_JSON, DuplicateKey
from evald_server.evaluators.json_values import is_number
from evald_server.untrusted import encodable, shorten

AnswerData = Mapping[str, Any]
"""The JSON object of an answer, not validated."""

# Longest text taken from an answer, in characters. A result's reason may have 8 KiB.
MAX_TEXT: Final = 4000

# Longest JSON object of an answer, in characters. A hundred items with one sentence each take 20,000.
_MAX_OBJECT: Final = 256 << 10

# A fenced block, marked ```json or ```. Both fence lines start at the beginning of a line.
_FENCED_BLOCK: Final = re.compile(
    r"^ {0,3}```[ \t]*(?:json)?[ \t]*\n(.*?)^ {0,3}```[ \t]*$", re.DOTALL | re.MULTILINE
)


class UnusableAnswer(ValueError):
    """The answer contains no verdict. The message gives the reason and quotes nothing of the answer."""


def parse_object(text: str) -> dict[str, Any]:
    """Parse an answer that is one JSON object, or that contains exactly one fenced block with one object.

    Prose is not searched: an object in it may be a quotation of the judged text. A second block or a duplicate key
    is an error, because the answer is then ambiguous.
    Raises ValueError, whose message quotes nothing of the text.
    """
    if "```" in text:
        # With two marks alone, because with many the search takes the square of their number.
        block = _FENCED_BLOCK.search(text) if text.count("```") == 2 else None
        if block is None:
            raise ValueError("wanted exactly one fenced block, marked json")
        text = block[1]
    if len(text) > _MAX_OBJECT:
        raise ValueError(f"got {len(text)} characters, wanted at most {_MAX_OBJECT}")
    try:
        data = STRICT_JSON.decode(text.strip())
    except RecursionError:
        raise ValueError("nested too deep") from None
    except DuplicateKey:
        raise ValueError("duplicate key") from None
    if not isinstance(data, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of JSON
    return data


def require_object(data: AnswerData | None) -> AnswerData:
    """Return the data. Raises UnusableAnswer for None."""
    if data is None:
        raise UnusableAnswer("it is not a JSON object")
    return data


def get_bool(data: AnswerData, key: str) -> bool:
    """Return a required boolean."""
    value = _required(data, key)
    if not isinstance(value, bool):
        _refuse(key, value, "true or false")
    return value


def get_number(data: AnswerData, key: str, low: float, high: float) -> float:
    """Return a required number from `low` to `high`, both included."""
    value = _required(data, key)
    if not is_number(value) or not low <= value <= high:
        _refuse(key, value, f"a number from {low:g} to {high:g}")
    return float(value)


def get_integer(data: AnswerData, key: str, low: int, high: int) -> int:
    """Return a required integer from `low` to `high`. As in JSON Schema, 7.0 is an integer."""
    value = get_number(data, key, low, high)
    if not value.is_integer():
        _refuse(key, data[key], f"a whole number from {low} to {high}")
    return int(value)


def get_text(data: AnswerData, key: str) -> str:
    """Return a required text."""
    if key not in data:
        raise UnusableAnswer(f'"{key}" is missing; wanted text')
    return _text(key, data[key])


def get_optional_text(data: AnswerData, *keys: str) -> str:
    """Return the text under the first key that is present; "" when all values are missing or null."""
    if all(data.get(key) is None for key in keys):
        return ""
    return get_text(data, next(key for key in keys if key in data))


def get_texts(data: AnswerData, key: str, most: int) -> list[str]:
    """Return up to `most` texts of an optional list, without blank ones."""
    value = data.get(key)
    if value is None:
        return []
    texts = [_text(f"{key}[{position}]", item) for position, item in enumerate(_list(key, value))]
    return [text for text in texts if text][:most]


def get_objects(data: AnswerData, key: str) -> list[AnswerData]:
    """Return a required list of objects."""
    items = _list(key, _required(data, key))
    for position, item in enumerate(items):
        if not isinstance(item, Mapping):
            _refuse(f"{key}[{position}]", item, "an object")
    return items


def clean_text(text: str) -> str:
    """Return the text stripped, printable and no longer than MAX_TEXT."""
    return shorten(encodable(text).strip(), MAX_TEXT)


def _required(data: AnswerData, key: str) -> Any:
    if key not in data:
        raise UnusableAnswer(f'"{key}" is missing')
    return data[key]


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(key, value, "a list")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(key, value, "text")
    return clean_text(value)


def _refuse(key: str, value: Any, wanted: str) -> NoReturn:
    raise UnusableAnswer(f'"{key}" is {_describe(value)}; wanted {wanted}')


def _describe(value: Any) -> str:
    """Describe the value without quoting text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "a very large number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
