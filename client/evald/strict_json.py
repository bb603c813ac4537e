"""Strict JSON as Python data: NaN and Infinity are refused."""

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NoReturn


def no_constant(name: str) -> NoReturn:
    """For a decoder's `parse_constant`: NaN and Infinity are not JSON."""
    raise ValueError(f"{name} is not JSON")


# Made once: json.loads makes a decoder for each call that has options, a quarter of the whole cost.
STRICT_JSON: Final = json.JSONDecoder(parse_constant=no_constant)


@cache
def _decode_fast() -> Callable[[str], Any]:
    """pydantic's decoder takes half the time of the standard library's. Imported when first needed:
    who only sends requests never does."""
    from pydantic_core import from_json

    # Texts of answers seldom come twice, and to look for each among those that were takes a tenth of the time.
    return partial(from_json, allow_inf_nan=False, cache_strings="keys")


def parse_json(text: str) -> Any:
    """Strict JSON: NaN and Infinity are refused. Raises ValueError with what is wrong and where."""
    try:
        return _decode_fast()(text)
    except ValueError:
        pass
    # The standard library says better what is wrong, and reads half surrogate pairs.
    try:
        return STRICT_JSON.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError as problem:
        if "integer string conversion" in str(problem):
            raise ValueError("a number has more than 4,300 digits, which is more than evald reads") from None
        raise
