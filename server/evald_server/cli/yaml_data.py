"""YAML as plain data: YAML 1.2's core schema, and of the language no more than JSON can say.

Aliases, anchors, tags and merge keys are refused, because a few lines of them can stand for gigabytes or
for objects of Python. The parser is PyYAML's own in Python: the one in C ends the process on deep nesting.
"""

import re
from typing import Any, Final

import yaml

# 256 KiB: some thousand evaluators, and a few seconds.
MAX_CHARACTERS: Final = 1 << 18
# Deeper than a config may be.
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
# Python converts no longer ones, and JSON's readers take few of them exactly.
_MOST_DIGITS: Final = 300


class InvalidYaml(ValueError):
    """The text is no such YAML. The message says where."""


def parse_yaml(text: str) -> Any:
    """The data of a text that holds one document. Raises InvalidYaml."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidYaml(
            f"{len(text)} characters; at most {MAX_CHARACTERS} are read: write a longer file as JSON"
        )
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidYaml(f"{where}{problem.problem or problem.context}") from None
    except yaml.YAMLError as problem:
        raise InvalidYaml(str(problem).partition("\n")[0]) from None
    return builder.data


class _Builder:
    """Builds the data out of the parser's events.

    _open: the lists and mappings around the next node. _keys: beside each, the key that waits for its value.
    """

    def __init__(self) -> None:
        self.data: Any = None
        self._documents = 0
        self._open: list[Any] = []
        self._keys: list[str | None] = []

    def take(self, event: yaml.Event) -> None:
        """Add what the event says. Raises InvalidYaml."""
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
            # What is quoted, or a block, is a text whatever it looks like.
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
    """A scalar without quotes, by YAML 1.2's core schema: `no`, `12:30` and `2024-01-31` are texts."""
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
