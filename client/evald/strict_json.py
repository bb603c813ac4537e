"""Strict JSON as Python data, and back: NaN and Infinity are refused, and so is what is larger than evald reads."""

import json
import math
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NoReturn


class TooLarge(Exception):
    """The input is larger or deeper than evald reads, so nothing is known about its validity.

    Not a ValueError, because callers read a ValueError as "not valid". Evaluators do not catch it; the result
    is then ERROR with code INPUT_TOO_LARGE.
    """


NESTED_TOO_DEEP: Final = "JSON is nested deeper than the about 900 levels that evald reads"
_TOO_MANY_DIGITS: Final = "JSON has a number of more than 4,300 digits, which is more than evald reads"


def no_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity: the `parse_constant` of a strict decoder."""
    raise ValueError(f"{name} is not JSON")


# Made once: json.loads makes a decoder for each call that has options, a quarter of the whole cost.
STRICT_JSON: Final = json.JSONDecoder(parse_constant=no_constant)


@cache
def _decode_fast() -> Callable[[str], Any]:
    """Return pydantic's decoder, which takes half the time of the standard library's.

    Imported at the first use, because clients that only send requests never need it.
    """
    from pydantic_core import from_json

    # Texts of answers seldom come twice, and to look for each among those that were takes a tenth of the time.
    return partial(from_json, allow_inf_nan=False, cache_strings="keys")


def parse_json(text: str) -> Any:
    """Parse strict JSON, without NaN and Infinity.

    Raises ValueError, which says what is wrong and where, and TooLarge for JSON that is nested too deep or has
    a number with too many digits.
    """
    try:
        return _decode_fast()(text)
    except ValueError:
        pass
    # The standard library says better what is wrong, and reads half surrogate pairs.
    return _read(STRICT_JSON.decode, text)


def parse_json_at(text: str, start: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`. Returns the value and the index where it ends.

    Raises json.JSONDecodeError for what is not JSON, and TooLarge as `parse_json` does.
    """
    found: tuple[Any, int] = _read(STRICT_JSON.raw_decode, text, start)
    return found


def refuse_huge_numbers(text: str, check: Callable[[], None]) -> None:
    """Raise TooLarge for JSON with a number beyond a double, which decoders read as infinity.

    text: valid JSON. check: called about every 2 ms; may raise.
    """
    for start in range(0, len(text), _PIECE):
        if start:
            check()
        if _PERHAPS_HUGE.search(text, start, start + _PIECE + 400):
            _read(_FINITE_JSON.decode, text)
            return


_PIECE: Final = 100_000
_PERHAPS_HUGE: Final = re.compile(r"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{308})")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise TooLarge("JSON has a number beyond 1.8e308, which is more than evald reads")
    return number


_FINITE_JSON: Final = json.JSONDecoder(parse_float=_finite)


def canonical_json(data: Any) -> str:
    """Return JSON data as text with sorted keys and no white space, so that equal data give equal texts."""
    return json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _read(decode: Callable[..., Any], *args: Any) -> Any:
    try:
        return decode(*args)
    except RecursionError:
        raise TooLarge(NESTED_TOO_DEEP) from None
    except ValueError as problem:
        if "integer string conversion" in str(problem):
            raise TooLarge(_TOO_MANY_DIGITS) from None
        raise
