"""The JSON object in what a model said, where there is exactly one that was meant as its answer."""

import json
import re
from typing import Any, Final

from evald.context import no_constant

# ```json, or without the word, each at the start of a line.
_FENCED: Final = re.compile(
    r"^[ \t]*```[ \t]*(?:json)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)


def read_object(text: str) -> dict[str, Any]:
    """The text as a JSON object, or the one fenced block in it.

    Nothing is looked for in prose: an object there may be a quotation of what was judged. A second
    fence, a second object or a key that stands twice leaves open what was meant. Raises ValueError,
    which repeats nothing of the text.
    """
    try:
        return _decode(text)
    except ValueError:
        pass
    if text.count("```") != 2:
        raise ValueError("it is neither a JSON object nor has it exactly one fenced block with one")
    found = _FENCED.search(text)
    if found is None:
        raise ValueError("its fenced block holds no JSON object")
    return _decode(found[1])


def _decode(text: str) -> dict[str, Any]:
    try:
        data = _DECODER.decode(text.strip())
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as problem:
        raise ValueError(f"it is no JSON: {problem.msg} at character {problem.pos}") from None
    if not isinstance(data, dict):
        raise ValueError("it is JSON, but no object")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key stands in it twice")
    return data


_DECODER: Final = json.JSONDecoder(parse_constant=no_constant, object_pairs_hook=_once)
