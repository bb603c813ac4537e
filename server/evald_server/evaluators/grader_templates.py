"""Templates of OpenAI's graders: texts with `{{item.label}}` and `{{sample.output_text}}` in them.

`item` is the key `item` of the caller's metadata, `sample` is the turn. A template is filled in once, with plain
text. There are no filters and no code, and variables within values are not filled in.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from evald.context import EvaluatorContext
from evald.result import Result, errored, unproven
from evald.strict_json import TooLarge, parse_json

from .results import no_answer

_VARIABLE: Final = re.compile(r"\{\{([^{}]*)\}\}")
_PATH: Final = re.compile(r"""\s*(item|sample)((?:\.\w+|\[\d{1,9}\]|\['[^'\]]*'\]|\["[^"\]]*"\])*)\s*""")
_KEY: Final = re.compile(r"""\.(\w+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")


class Variable(NamedTuple):
    """A variable of a template: its namespace, the keys below it, and its source text."""

    namespace: str
    keys: tuple[str | int, ...]
    text: str


TemplatePart: TypeAlias = str | Variable
"""Text between variables, or a variable."""


def parse_template(text: str) -> list[TemplatePart]:
    """Split a template into texts and variables. Raises ValueError for an invalid variable."""
    parts: list[TemplatePart] = []
    end = 0
    for found in _VARIABLE.finditer(text):
        if found.start() > end:
            parts.append(text[end : found.start()])
        parts.append(_variable(found))
        end = found.end()
    if end < len(text):
        parts.append(text[end:])
    return parts


def _variable(found: re.Match[str]) -> Variable:
    path = _PATH.fullmatch(found[1])
    if path is None:
        raise ValueError(
            f"{found[0][:80]!r} is not a variable; wanted item.KEY or sample.KEY, optionally followed by .KEY "
            "or [0]"
        )
    keys = tuple(
        int(key[2]) if key[2] is not None else str(key[1] or key[3] or key[4])
        for key in _KEY.finditer(path[2])
    )
    if path[1] == "sample" and (not keys or keys[0] not in _SAMPLE):
        known = ", ".join(_SAMPLE)
        raise ValueError(f"unknown variable {found[0][:80]!r}; the keys of sample are {known}")
    return Variable(path[1], keys, found[1].strip())


def fill(parts: list[TemplatePart], ctx: EvaluatorContext) -> str | Result:
    """Fill in a template. Returns the assertion's result if a variable has no value in this turn."""
    texts = []
    for part in parts:
        if isinstance(part, Variable):
            value = value_of(part, ctx)
            if isinstance(value, Result):
                return value
            texts.append(as_text(value))
        else:
            texts.append(part)
    return "".join(texts)


def as_text(value: Any) -> str:
    """Return the text of a value in a filled template: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def value_of(variable: Variable, ctx: EvaluatorContext) -> Any:
    """Return the value of a variable; if this turn has none, the assertion's result.

    The assertion fails if the sample lacks it, because that is the agent's fault. It is an ERROR if the item lacks
    it, because that is the caller's fault.
    """
    if variable.namespace == "item":
        item = ctx.once("grader-item", lambda: ctx.metadata.get("item", _NONE))
        value = _look_up(item, variable.keys)
        if value is _NONE:
            return errored("MISSING_DATA", f"The case's metadata has no {variable.text}")
        return value
    first, *rest = variable.keys
    if ctx.answer is None and (first == "output_text" or not ctx.agent_spoke("turn")):
        return no_answer(ctx)
    value = _look_up(_SAMPLE[str(first)](ctx), rest)
    return unproven(f"The turn has no {variable.text}") if value is _NONE else value


_NONE: Final = object()


def _look_up(value: Any, keys: Sequence[str | int]) -> Any:
    """Return the value at the keys; _NONE if one of them is missing. Keys below `arguments` are of its JSON text."""
    before: str | int = ""
    for key in keys:
        if before == "arguments" and isinstance(value, str):
            value = _parsed(value)
        before = key
        if isinstance(value, Mapping):
            value = value.get(key, _NONE)
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key] if key < len(value) else _NONE
        else:
            return _NONE
    return value


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, TooLarge):
        return _NONE


def _output_json(ctx: EvaluatorContext) -> Any:
    data, problem = ctx.answer_json
    return _NONE if problem else data


def _output_tools(ctx: EvaluatorContext) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in ctx.turn_tool_calls
    ]


def _choices(ctx: EvaluatorContext) -> list[dict[str, Any]]:
    # Absent rather than null, which would be a text that differs from every reference.
    content = {} if ctx.answer is None else {"content": ctx.answer}
    message = {"role": "assistant", **content, "tool_calls": _output_tools(ctx)}
    finish = ctx.last_invocation.finish_reason
    return [{"index": 0, "message": message, **({} if finish is None else {"finish_reason": finish})}]


# The variables in the graders' guide, except audio: https://developers.openai.com/api/docs/guides/graders
_SAMPLE: Final[Mapping[str, Callable[[EvaluatorContext], Any]]] = {
    "output_text": lambda ctx: ctx.answer,
    "output_json": _output_json,
    "output_tools": _output_tools,
    "choices": _choices,
}
