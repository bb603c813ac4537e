"""Reads what a judge answered, strictly: what is missing, of another type or out of range is unusable.

Nothing is clamped, converted or picked out of prose, and no text of the answer is repeated in what is
said to be wrong with it: the judge may have quoted what it judged.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from evald_server.evaluators.json_values import is_number, printable

Data = Mapping[str, Any]
"""The object that the judge answered."""

# Of one text in an answer, in characters. A result's reason may have 8 KiB.
MAX_TEXT: Final = 4000


class Unusable(ValueError):
    """The answer holds no verdict. Says what is wrong with it, without any of its texts."""


def shortened(value: str, most: int = MAX_TEXT) -> str:
    """The text, cut to so many characters."""
    return value if len(value) <= most else value[: most - 1] + "…"


def flag(data: Data, key: str) -> bool:
    """A true or false."""
    value = _required(data, key)
    if not isinstance(value, bool):
        _refuse(key, value, "true or false")
    return value


def number(data: Data, key: str, low: float, high: float) -> float:
    """A number within the bounds, which belong to it."""
    value = _required(data, key)
    if not is_number(value) or not math.isfinite(value) or not low <= value <= high:
        _refuse(key, value, f"a number from {low:g} to {high:g}")
    return float(value)


def whole(data: Data, key: str, low: int, high: int) -> int:
    """A whole number within the bounds. 7.0 is one, as in JSON Schema."""
    value = number(data, key, low, high)
    if not value.is_integer():
        _refuse(key, data[key], f"a whole number from {low} to {high}")
    return int(value)


def text(data: Data, *keys: str) -> str:
    """The text under the first of these keys that is there."""
    for key in keys:
        if key in data:
            return _text(key, data[key])
    raise Unusable(f'"{keys[0]}" is missing; wanted text')


def text_or_nothing(data: Data, *keys: str) -> str:
    """The same, "" when there is none."""
    return text(data, *keys) if any(data.get(key) is not None for key in keys) else ""


def texts(data: Data, key: str, most: int) -> list[str]:
    """The first texts of a list, blank ones left out; empty when there is no list."""
    value = data.get(key)
    if value is None:
        return []
    found = [_text(f"{key}[{position}]", one) for position, one in enumerate(_list(key, value))]
    return [one for one in found if one][:most]


def objects(data: Data, key: str) -> list[Data]:
    """The objects of a list."""
    found = _list(key, _required(data, key))
    for position, one in enumerate(found):
        if not isinstance(one, Mapping):
            _refuse(f"{key}[{position}]", one, "an object")
    return found


def _required(data: Data, key: str) -> Any:
    if key not in data:
        raise Unusable(f'"{key}" is missing')
    return data[key]


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(key, value, "a list")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(key, value, "text")
    return shortened(printable(value).strip())


def _refuse(key: str, value: Any, wanted: str) -> NoReturn:
    raise Unusable(f'"{key}" is {_described(value)}; wanted {wanted}')


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "a very large number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
