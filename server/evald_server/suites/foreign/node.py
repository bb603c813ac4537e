"""Reads the values of another tool's document, and refuses features without a counterpart in evald."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ..documents import (
    DataPath,
    Document,
    InvalidDocument,
    InvalidDocuments,
    parse_json_lines,
    parse_yaml,
    path_text,
    read_document,
    read_text,
)

T = TypeVar("T")

NOTHING: Final[Mapping[str, str]] = {}

# Converting stops after this many problems.
_MOST_PROBLEMS: Final = 100


class Node:
    """A value of a document, with its place for errors.

    base: the folder where files are looked up before that of the document; None: no other.
    """

    def __init__(
        self,
        document: Document,
        data: Any,
        path: DataPath = (),
        warnings: list[str] | None = None,
        base: Path | None = None,
    ) -> None:
        self.document = document
        self.data = data
        self.path = path
        self.warnings = [] if warnings is None else warnings
        self.base = base

    @classmethod
    def of(cls, document: Document) -> "Node":
        """Return the root of a document."""
        return cls(document, document.data)

    @property
    def line(self) -> int:
        """The line of the value."""
        return self.document.line(self.path)

    @property
    def folder(self) -> Path:
        """The folder of the document's file."""
        return Path(self.document.file).parent

    def refuse(self, message: str) -> InvalidDocument:
        """Return an error about this value, with its place."""
        return InvalidDocument(self.document.file, self.line, f"{self._place}{message}")

    def warn(self, message: str) -> None:
        """Add a warning about this value."""
        self.warnings.append(f"{self.document.file}:{self.line}: {self._place}{message}")

    @property
    def _place(self) -> str:
        return f"{path_text(self.path)}: " if self.path else ""

    def __contains__(self, key: str) -> bool:
        return isinstance(self.data, Mapping) and self.data.get(key) is not None

    def __getitem__(self, key: str | int) -> "Node":
        """Return the value of a key or index; its data are None if the key is absent."""
        data = None
        if isinstance(self.data, Mapping):
            data = self.data.get(key)
        elif isinstance(self.data, list) and isinstance(key, int):
            data = self.data[key]
        return Node(self.document, data, (*self.path, key), self.warnings, self.base)

    def __iter__(self) -> Iterator["Node"]:
        for index in range(len(self.list())):
            yield self[index]

    def first(self, *keys: str) -> "Node":
        """Return the value of the one key that is present. Raises InvalidDocument if two are."""
        found = [key for key in keys if key in self]
        if len(found) > 1:
            raise self[found[1]].refuse(f"given together with {found[0]}; give one of the two")
        return self[found[0] if found else keys[0]]

    def keys(self, *known: str, refused: Mapping[str, str] = NOTHING) -> list[str]:
        """Return the keys. Raises InvalidDocuments for all unknown and refused keys. refused: reasons by key."""
        names = list(self.mapping())
        problems = [
            self[name].refuse(f"not supported: {refused[name]}")
            if name in refused
            else self.unknown_key(name, [*known, *refused])
            for name in names
            if (name in refused and name in self) or name not in (*known, *refused)
        ]
        if problems:
            raise InvalidDocuments(problems)
        return names

    def unknown_key(self, name: str, known: Iterable[str], *, all_known: bool = True) -> InvalidDocument:
        """Return an error about an unknown key, with the nearest known one. all_known: the known keys are complete."""
        return self[name].refuse(f"unknown key{_hint(name, known, 'keys' if all_known else '')}")

    def unknown_assertion(self, known: Iterable[str]) -> InvalidDocument:
        """Return an error about this value, which names an unknown assertion, with the nearest known one."""
        hint = _hint(self.text().removeprefix("not-"), known, "assertions")
        return self.refuse(f"unknown assertion {self.text()[:80]!r}{hint}")

    def mapping(self) -> dict[str, Any]:
        """Return the mapping. Raises InvalidDocument."""
        if not isinstance(self.data, dict):
            raise self.refuse(f"got {_shown(self.data)}, wanted a mapping")
        return self.data

    def list(self) -> list[Any]:
        """Return the list. Raises InvalidDocument."""
        if not isinstance(self.data, list):
            raise self.refuse(f"got {_shown(self.data)}, wanted a list")
        return self.data

    def text(self) -> str:
        """Return the text. Raises InvalidDocument."""
        if not isinstance(self.data, str):
            raise self.refuse(f"got {_shown(self.data)}, wanted text")
        return self.data

    def number(self) -> float:
        """Return the number. Raises InvalidDocument."""
        if isinstance(self.data, bool) or not isinstance(self.data, int | float):
            raise self.refuse(f"got {_shown(self.data)}, wanted a number")
        return self.data

    def integer(self) -> int:
        """Return the whole number. Raises InvalidDocument."""
        if isinstance(self.data, bool) or not isinstance(self.data, int):
            raise self.refuse(f"got {_shown(self.data)}, wanted a whole number")
        return self.data

    def flag(self) -> bool:
        """Return the truth value. Raises InvalidDocument."""
        if not isinstance(self.data, bool):
            raise self.refuse(f"got {_shown(self.data)}, wanted true or false")
        return self.data

    def choice(self, choices: Mapping[str, Any]) -> Any:
        """Return the choice for a text. Raises InvalidDocument for an unknown text."""
        text = self.text()
        if text not in choices:
            raise self.refuse(f"got {text[:80]!r}, wanted one of: {', '.join(choices)}")
        return choices[text]

    def file(self, name: str | None = None) -> Path:
        """Return the path of the file that the text names, relative to the document. Raises InvalidDocument."""
        name = (self.text() if name is None else name).removeprefix("file://")
        for folder in filter(None, (self.base, self.folder)):
            if (folder / name).is_file():
                return folder / name
        raise self.refuse(f"the file {name[:200]!r} does not exist in the suite's directory")

    def file_text(self, name: str | None = None) -> str:
        """Return the text of the file that the text names. Raises InvalidDocument."""
        path = self.file(name)
        try:
            return read_text(path)
        except InvalidDocument as problem:
            raise self.refuse(str(problem)) from None

    def json_lines(self, path: Path) -> Iterator["Node"]:
        """Yield the values of a JSON Lines file. Raises InvalidDocument."""
        for number, data in parse_json_lines(read_text(path), str(path)):
            yield Node(Document(data, {(): number}, str(path)), data, (), self.warnings, self.base)

    def open(self, name: str | None = None) -> "Node":
        """Return the root of the document that the text names. Raises InvalidDocument."""
        document = read_document(self.file(name))
        return Node(document, document.data, (), self.warnings, self.base)

    def replaced(self, data: Any) -> "Node":
        """Return a node with other data at the same place."""
        return Node(self.document, data, self.path, self.warnings, self.base)


Places: TypeAlias = dict[DataPath, Node]
"""The values from which values of a converted suite were made, by their paths in it or in one of its cases."""


class Converted(NamedTuple):
    """Another tool's suite as data of an evald suite file. places: of its cases and evaluators."""

    suite: dict[str, Any]
    places: Places
    warnings: list[str]


def convert_each(nodes: Iterable[Node], convert: Callable[[Node], Iterable[T]]) -> list[tuple[Node, T]]:
    """Convert nodes. Return the results, each with its node. Raises InvalidDocuments with the problems of all nodes."""
    made, rest = [], iter(nodes)
    problems: dict[str, InvalidDocument] = {}  # by text, to report shared problems once
    while len(problems) < _MOST_PROBLEMS:
        try:
            node = next(rest, None)
            if node is None:
                break
            found = list(convert(node))
        except InvalidDocument as problem:
            problems |= {str(one): one for one in problem.problems}
            continue
        made += [(node, one) for one in found]
    if problems:
        raise InvalidDocuments(list(problems.values()))
    return made


def convert_cases(
    nodes: Iterable[Node], convert: Callable[[Node], Iterable[tuple[dict[str, Any], Places]]]
) -> tuple[list[dict[str, Any]], Places]:
    """Convert nodes to cases, each with the places in it. Return the cases, and the places in the suite.

    Raises InvalidDocuments with the problems of all nodes.
    """
    cases: list[dict[str, Any]] = []
    places: Places = {}
    for index, (node, (case, inner)) in enumerate(convert_each(nodes, convert)):
        cases.append(case)
        places["cases", index] = node
        places |= {("cases", index, *path): one for path, one in inner.items()}
    return cases, places


def evaluators_of(found: Iterable[tuple[Node, dict[str, Any]]]) -> tuple[list[dict[str, Any]], Places]:
    """Return specs as the list `evaluators`, with their places."""
    listed = list(found)
    return [spec for _, spec in listed], {
        ("evaluators", index): node for index, (node, _) in enumerate(listed)
    }


def _hint(name: Any, known: Iterable[str], what: str) -> str:
    every = sorted({*known})
    near = difflib.get_close_matches(str(name), every, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known {what}: {', '.join(every)}" if what else ""


def is_agentv(data: Mapping[str, Any]) -> bool:
    """Return whether a suite with `tests` is AgentV's: a test has an id, or a key is in snake_case; promptfoo's have neither."""
    tests = data.get("tests")
    if "evaluate_options" in data or "default_test" in data:
        return True
    return isinstance(tests, list) and any(isinstance(one, Mapping) and "id" in one for one in tests)


def load_yaml(text: str, node: Node) -> Any:
    """Parse a text of a document as YAML. Raises InvalidDocument with the place of the text."""
    try:
        return parse_yaml(text, node.document.file).data
    except InvalidDocument as problem:
        raise node.refuse(problem.message) from None


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


def asked(messages: Any) -> dict[str, Any]:
    """Return messages as keys of a case: `input` is all after the last answer, `messages` the rest."""
    if isinstance(messages, str):
        return {"input": messages}
    roles = [one.get("role") if isinstance(one, Mapping) else None for one in messages]
    last = max((index for index, role in enumerate(roles) if role in ("assistant", "tool")), default=-1) + 1
    before = {"messages": messages[:last]} if last else {}
    return {**before, "input": messages[last:]}


def openai_connector(
    model: str, parameters: Mapping[str, Any], tools: Any, key_variable: str | None = None
) -> dict[str, Any]:
    """Return a connector to OpenAI's chat completions. key_variable: environment variable of the API key."""
    optional = {"parameters": parameters, "tools": tools}
    return {
        "type": "openai-chat",
        "baseUrl": "https://api.openai.com/v1",
        "headers": {"Authorization": f"Bearer ${{{key_variable or 'OPENAI_API_KEY'}}}"},
        "config": {"model": model, **{name: value for name, value in optional.items() if value}},
    }
