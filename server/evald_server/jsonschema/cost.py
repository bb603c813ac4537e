"""Estimates the maximum work of a JSON Schema check, from the schema alone.

With all references expanded, each subschema is evaluated at most once for each value, so the work is at most the sum
of the subschemas' weights times the size of the value. There is no estimate for a schema that is too large when
expanded, such as one that doubles at each of 30 levels, or that refers to itself: if it does so in two ways for the
same value, the time is exponential in the value's depth.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

# Subschemas with all references expanded. If a value does not match, each may cost 10 us.
_MAX_EVALUATIONS: Final = 1000
# Levels of subschemas. Each level uses a frame of Python's stack.
_MAX_DEPTH: Final = 100
# For unevaluated* keywords, the library evaluates every subschema a second and a third time: 20 levels took 14 s.
_UNEVALUATED_FACTOR: Final = 3

_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
# Keywords whose value is a schema, schemas in a list, or schemas by name.
_SCHEMA: Final = (
    *("not", "if", "then", "else", "additionalProperties", "propertyNames", "items", "additionalItems"),
    *("contains", *_UNEVALUATED),
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas", "dependencies")


class Cost(NamedTuple):
    """Upper bounds. evaluations: of subschemas, for one value. work: the same, in units of 13 ns for each byte."""

    evaluations: int
    work: int


class Pattern(NamedTuple):
    """A regular expression and its place in the schema, a JSON Pointer."""

    place: str
    text: str


def estimate(schema: Mapping[str, Any]) -> Cost | None:
    """Return the cost of a schema, None if it has no bound. The schema may be invalid."""
    try:
        cost = _Expansion(schema).expand(schema)
    except _Unbounded:
        return None
    return cost if cost.evaluations <= _MAX_EVALUATIONS else None


def subschemas(root: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each subschema once, with its place as a JSON Pointer; also definitions that nothing refers to."""
    pending: list[tuple[str, Any]] = [("", root)]
    seen: set[int] = set()
    while pending:
        place, schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield place, schema
        pending += [(f"{place}/{keyword}", child) for keyword, child in _children(schema)]
        pending += [
            (f"{place}/{keyword}/{escape(name)}", child)
            for keyword in ("$defs", "definitions")
            for name, child in _mapping(schema, keyword).items()
        ]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            # A reference may lead to a place outside all keywords, for example below "components".
            pending.append((reference, resolve(root, reference)))


def patterns(place: str, schema: Mapping[str, Any]) -> list[Pattern]:
    """Return the regular expressions of one subschema."""
    found = [
        Pattern(f"{place}/patternProperties/{escape(text)}", text)
        for text in _mapping(schema, "patternProperties")
    ]
    if isinstance(schema.get("pattern"), str):
        found.append(Pattern(f"{place}/pattern", schema["pattern"]))
    return found


class _Unbounded(Exception):
    """The expanded schema is too large, or has no end."""


class _Expansion:
    """Expands the references of a schema and adds up the cost."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._visited = 0
        self._weights: dict[int, int] = {}
        self._open: set[int] = set()  # schemas being expanded

    def expand(self, schema: Any) -> Cost:
        """Return the cost of applying a schema to a value and its parts. Raises _Unbounded."""
        self._visited += 1
        if self._visited > _MAX_EVALUATIONS or len(self._open) > _MAX_DEPTH or id(schema) in self._open:
            raise _Unbounded
        if not isinstance(schema, dict):
            return Cost(1, 1)
        self._refuse_dynamic_references(schema)
        self._open.add(id(schema))
        costs = [self.expand(child) for _, child in _children(schema)]
        if "$ref" in schema:
            costs.append(self.expand(self._target(schema["$ref"])))
        self._open.remove(id(schema))
        factor = _UNEVALUATED_FACTOR if any(keyword in schema for keyword in _UNEVALUATED) else 1
        return Cost(
            1 + factor * sum(cost.evaluations for cost in costs),
            self._weight(schema) + factor * sum(cost.work for cost in costs),
        )

    def _refuse_dynamic_references(self, schema: Mapping[str, Any]) -> None:
        """Raise _Unbounded for references whose target depends on more than their text."""
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise _Unbounded
        if schema is not self._root and ("$id" in schema or "id" in schema):
            raise _Unbounded

    def _target(self, reference: Any) -> Any:
        target = resolve(self._root, reference)
        if target is None:
            raise _Unbounded
        return target

    def _weight(self, schema: Mapping[str, Any]) -> int:
        weight = self._weights.get(id(schema))
        if weight is None:
            weight = self._weights[id(schema)] = _weight(schema)
        return weight


def _weight(schema: Mapping[str, Any]) -> int:
    """Return the cost of evaluating this schema, in plain evaluations (13 ns)."""
    lists = (schema[key] for key in ("properties", "required") if isinstance(schema.get(key), list | dict))
    weight = 1 + sum(map(len, lists)) // 8
    choices = schema.get("enum")
    if isinstance(choices, list):
        # Compared one by one; a float, array or object takes 0.2 to 1.4 us.
        weight += sum(100 if isinstance(choice, float | list | dict) else 1 for choice in choices)
    return weight + sum(pattern_size(pattern.text) for pattern in patterns("", schema))


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each applied subschema, with its place."""
    for keyword in _SCHEMA:
        if keyword in schema and not isinstance(schema[keyword], list):
            yield keyword, schema[keyword]
    for keyword in _LISTS:
        children = schema.get(keyword)
        if isinstance(children, list):
            for index, child in enumerate(children):
                yield f"{keyword}/{index}", child
    for keyword in _NAMED:
        for name, child in _mapping(schema, keyword).items():
            yield f"{keyword}/{escape(name)}", child


def _mapping(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def resolve(root: Mapping[str, Any], reference: Any) -> Any:
    """Return the target of a reference within the document; None for other references and for anchors."""
    if reference != "#" and not (isinstance(reference, str) and reference.startswith("#/")):
        return None
    found: Any = root
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
    return found


def escape(step: str) -> str:
    """Return one step of a JSON Pointer."""
    return step.replace("~", "~0").replace("/", "~1")


def pattern_size(pattern: str) -> int:
    """Return the approximate number of states of a regular expression, with counted repetitions expanded.

    A class of Unicode characters counts as its many ranges. The expression may be invalid.
    """
    sizes, last = [0], 0  # of each open group, and of the last repeatable element
    position = 0
    while position < len(pattern):
        char = pattern[position]
        end = position + 1
        if char == "(":
            sizes.append(0)
            last = 0
        elif char == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif char == "{":
            end = pattern.find("}", position) + 1 or len(pattern)
            counts = pattern[position + 1 : end - 1].split(",")
            times = max((int(count[:9]) for count in counts if count.strip().isdecimal()), default=1)
            sizes[-1] += last * (times - 1)
            last = 0
        else:
            if char == "\\":
                end = position + 2
                kind = pattern[position + 1 : end]
                if kind in {"p", "P"} and pattern[end : end + 1] == "{":
                    end = pattern.find("}", end) + 1 or len(pattern)
                last = 500 if kind in {"p", "P"} else 5 if kind.isupper() else 1
            elif char == "[":
                end = max(pattern.find("]", position + 2) + 1, position + 1)
                inner = pattern[position:end]
                last = 500 if "\\p" in inner.lower() else 5 if inner.startswith("[^") else 1
            else:
                last = 5 if char == "." else 0 if char in "^$" else 1
            sizes[-1] += last
        position = end
    return sum(sizes)
