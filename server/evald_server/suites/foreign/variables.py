"""Fills in the variables of texts, `{{name}}` and `{{name.key[0]}}`, once and as plain text."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from .node import Node

VARIABLE: Final = re.compile(r"\{\{-?([^{}]*?)-?\}\}")
_NAME: Final = re.compile(r"\s*([A-Za-z_]\w*)((?:\.\w+|\[\d+\])*)\s*")
_KEY: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def check_values(variables: Mapping[str, Any], node: Node) -> None:
    """Raise InvalidDocument for a variable whose text contains another one. node: of the variables."""
    for name, value in variables.items():
        for other in VARIABLE.findall(value) if isinstance(value, str) else ():
            if other.strip() in variables:
                raise node.refuse(f"{name!r} contains the variable {other.strip()!r}; write its value")


def rendered(value: Any, variables: Mapping[str, Any], node: Node, *, whole: bool = False) -> Any:
    """Return the value with the variables of all its texts filled in. Raises InvalidDocument with the place of the text.

    node: the place of the value. whole: a text that is one variable becomes the variable's value, of any type.
    """
    if isinstance(value, str):
        if "{%" in value or "{#" in value:
            raise node.refuse("got template code ({% ... %}), but evald fills in only {{variables}}")
        if whole and (found := VARIABLE.fullmatch(value.strip())):
            return _value(found, variables, node)
        return VARIABLE.sub(lambda found: _text(_value(found, variables, node)), value)
    if isinstance(value, list | dict):
        keys = range(len(value)) if isinstance(value, list) else list(value)
        # A prompt from a file is not part of the document, whose line is then that of the file's name.
        inner = [
            rendered(value[key], variables, node[key] if node.data is value else node, whole=whole)
            for key in keys
        ]
        return inner if isinstance(value, list) else dict(zip(keys, inner, strict=True))
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(found: re.Match[str], variables: Mapping[str, Any], node: Node) -> Any:
    path = _NAME.fullmatch(found[1])
    if path is None:
        raise node.refuse(
            f"{found[0][:80]!r}: evald fills in only {{{{variables}}}}, without filters or code"
        )
    value: Any = variables
    for key in [path[1], *(name or int(index) for name, index in _KEY.findall(path[2]))]:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            known = ", ".join(variables) or "none"
            raise node.refuse(
                f"{found[0][:80]!r}: unknown variable; known variables: {known[:200]}"
            ) from None
    return value
