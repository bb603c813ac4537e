"""The JSON object in what a model said although it was asked for nothing but the object."""

import json
import re
from typing import Any, Final

from evald.strict_json import no_constant

# ```json, or without the word, each at the start of a line.
_FENCED: Final = re.compile(
    r"^ {0,3}```[ \t]*(?:json)?[ \t]*\n(.*?)^ {0,3}```[ \t]*$", re.DOTALL | re.MULTILINE
)


def read_object(text: str) -> dict[str, Any]:
    """The text as a JSON object, or the one fenced block in it.

    Nothing is looked for in prose: an object there may be a quotation of what was judged. A second
    fence, a second object or a key that stands twice leave open what was meant. Raises ValueError,
    which repeats nothing of the text.
    """
    if "```" not in text:
        return _decode(text)
    found = _FENCED.search(text)
    if text.count("```") != 2 or found is None:
        raise ValueError("wanted exactly one fenced block, marked json")
    return _decode(found[1])


def _decode(text: str) -> dict[str, Any]:
    try:
        data = _DECODER.decode(text.strip())
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(data, dict):
        raise ValueError("no object")  # noqa: TRY004 - of JSON
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key stands twice")
    return data


_DECODER: Final = json.JSONDecoder(parse_constant=no_constant, object_pairs_hook=_once)
