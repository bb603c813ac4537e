"""Reads YAML as plain data: YAML 1.2's core schema, restricted to what JSON can represent.

Aliases, anchors, tags and merge keys are refused, because a few lines of them can expand to gigabytes or to
Python objects. Uses PyYAML's parser in Python, because the one in C crashes the process on deep nesting.
"""

import re
from typing import Any, Final

import yaml

# Enough for some thousand evaluators; parsing takes a few seconds.
MAX_CHARACTERS: Final = 1 << 18
# More than a config may have.
MAX_DEPTH: Final = 64

_CONSTANTS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL: Final = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_JSON: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Digits. Python refuses to convert more than 4,300; a double has 309 at most.
_MOST_DIGITS: Final = 300


class InvalidYaml(ValueError):
    """The text is not valid YAML of this subset. The message says where."""


def parse_yaml(text: str) -> Any:
    """Parse a text with one document. Raises InvalidYaml."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidYaml(
            f"{len(text)} characters; at most {MAX_CHARACTERS} are read: write a longer file as JSON"
        )
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.process(event)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidYaml(f"{where}{problem.problem or problem.context}") from None
    except yaml.YAMLError as problem:
        raise InvalidYaml(str(problem).partition("\n")[0]) from None
    return builder.data


class _Builder:
    """Builds the data from the parser's events.

    _open: the open lists and mappings, outermost first. _keys: for each, the key whose value comes next.
    """

    def __init__(self) -> None:
        self.data: Any = None
        self._documents = 0
        self._open: list[Any] = []
        self._keys: list[str | None] = []

    def process(self, event: yaml.Event) -> None:
        """Process an event. Raises InvalidYaml."""
        if isinstance(event, yaml.AliasEvent):
            raise _refused(event, f"the alias *{event.anchor}; write the value out")
        if isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                raise _refused(event, f"the anchor &{event.anchor}; write the value out where it is wanted")
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise _refused(event, f"the tag {tag}")
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise _refused(event, "a second document")
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._begin(event, [] if isinstance(event, yaml.SequenceStartEvent) else {})
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._open.pop()
            self._keys.pop()

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        if self._wants_key:
            if event.value in self._open[-1]:
                raise _refused(event, f"the key {event.value[:60]!r} a second time")
            if event.value == "<<" and event.style is None:
                raise _refused(event, "the merge key <<; write the keys out")
            self._keys[-1] = event.value
        else:
            # Quoted and block scalars are always strings.
            self._add(_plain(event) if event.style is None else event.value)

    def _begin(self, event: yaml.Event, found: Any) -> None:
        if self._wants_key:
            raise _refused(event, "a list or mapping as a key")
        if len(self._open) >= MAX_DEPTH:
            raise _refused(event, f"more than {MAX_DEPTH} levels")
        self._add(found)
        self._open.append(found)
        self._keys.append(None)

    def _add(self, value: Any) -> None:
        if not self._open:
            self.data = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        else:
            self._open[-1][self._keys[-1]] = value
            self._keys[-1] = None

    @property
    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1], dict) and self._keys[-1] is None


def _plain(event: yaml.ScalarEvent) -> Any:
    """Resolve a plain scalar by YAML 1.2's core schema: `no`, `12:30` and `2024-01-31` are strings."""
    text = event.value
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NOT_JSON.fullmatch(text):
        raise _refused(event, f"{text}, which is not JSON")
    if len(text) > _MOST_DIGITS and (_FLOAT.fullmatch(text) or _OTHER_BASE.fullmatch(text)):
        raise _refused(event, f"a number of {len(text)} characters")
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _refused(event, f"{text[:60]}, which is beyond what a double holds")
    return number


def _refused(event: yaml.Event, what: str) -> InvalidYaml:
    mark = event.start_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return InvalidYaml(f"{where}got {what}")
