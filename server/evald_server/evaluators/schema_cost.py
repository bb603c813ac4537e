"""How much work a JSON Schema can make of an answer, told from the schema alone.

Every subschema that applies to a value is one evaluation. References let a few
subschemas unfold into very many evaluations of the same value:

- `{"anyOf": [X, X]}`, where X is again such a pair, and so on: 2^n.
- A schema that reaches itself in two ways for the same part of the value, for
  example through two branches of an anyOf: exponential in the value's depth.

The schema is read as a graph: subschemas are nodes, keywords that apply other
subschemas are edges, labelled with the part of the value that they apply to.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

_HERE: Final = ("here", "")
"""Label of keywords that apply a subschema to the same value."""

_EVERY: Final = "*"
_REST: Final = "rest"

_HERE_ONE: Final = ("not", "if", "then", "else")
_HERE_MANY: Final = ("allOf", "anyOf", "oneOf")
_HERE_NAMED: Final = ("dependentSchemas", "dependencies")
_NAMED: Final = ("$defs", "definitions")

# Which part of the value each keyword with one subschema applies to. `contains` and the unevaluated
# ones may meet the same parts as their neighbours, the others share the parts out among themselves.
_PARTS: Final = {
    "additionalProperties": ("object", _REST),
    "unevaluatedProperties": ("object", _EVERY),
    "propertyNames": ("names", ""),
    "additionalItems": ("array", _REST),
    "contains": ("array", _EVERY),
    "unevaluatedItems": ("array", _EVERY),
}

# To know what is unevaluated, the library looks at every subschema a second and a third time:
# 20 levels of it took 14 s.
_UNEVALUATED_FACTOR: Final = 3

# No need to count further.
_ENDLESS: Final = 1 << 40

Label = tuple[str, str]


class Pattern(NamedTuple):
    """A regular expression and where it stands, as a JSON Pointer."""

    place: str
    text: str


class Cost(NamedTuple):
    """subschemas: how many there are. branches: evaluations that one value may get at most, when the
    schema does not reach itself ambiguously, which `ambiguous` tells. work: the same, those with long lists
    counted for as many as take the same time. patterns: all of them."""

    subschemas: int
    branches: int
    work: int
    ambiguous: bool
    patterns: list[Pattern]


class _Node:
    __slots__ = ("edges", "place", "schema", "weight")

    def __init__(self, schema: Mapping[str, Any], place: str) -> None:
        self.schema = schema
        self.place = place
        self.edges: list[tuple[Label, _Node]] = []
        self.weight = _weight(schema)


def _weight(schema: Mapping[str, Any]) -> int:
    """How many plain evaluations (13 ns) take as long as this one."""
    lists = (schema[key] for key in ("properties", "required") if isinstance(schema.get(key), list | dict))
    weight = 1 + sum(map(len, lists)) // 8
    choices = schema.get("enum")
    if isinstance(choices, list):
        # Compared one by one; a fraction or a compound value takes 0.2 to 1.4 us.
        weight += sum(100 if isinstance(choice, float | list | dict) else 1 for choice in choices)
    return weight


class _Graph:
    """The subschemas of a document and which applies which."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.nodes: dict[int, _Node] = {}
        self.patterns: list[Pattern] = []
        self.opaque = False
        self._anchors: dict[str, Mapping[str, Any]] = {}
        self._references: list[tuple[_Node, str]] = []
        self._pending: list[_Node] = []
        self._add(root, "")
        self._walk()
        while self._references:
            node, reference = self._references.pop()
            target = self._resolve(reference)
            if isinstance(target, dict):
                # May stand where no keyword is, for example under "components".
                node.edges.append((_HERE, self._add(target, reference)))
                self._walk()

    def _add(self, schema: Mapping[str, Any], place: str) -> _Node:
        node = self.nodes.get(id(schema))
        if node is None:
            node = self.nodes[id(schema)] = _Node(schema, place)
            self._pending.append(node)
        return node

    def _walk(self) -> None:
        while self._pending:
            node = self._pending.pop()
            self._note(node)
            for label, keyword, child in _children(node.schema):
                if isinstance(child, dict):
                    target = self._add(child, f"{node.place}/{keyword}")
                    if label is not None:
                        node.edges.append((label, target))

    def _note(self, node: _Node) -> None:
        schema = node.schema
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors[f"#{schema[keyword]}"] = schema
        for keyword in ("$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str) and schema is not self.root:
                # A document within the document: what its references mean is left to the library.
                self._anchors[name] = schema
                self.opaque = self.opaque or not name.startswith("#")
        if isinstance(schema.get("$ref"), str):
            self._references.append((node, schema["$ref"]))
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            self.opaque = True
        if isinstance(schema.get("pattern"), str):
            self.patterns.append(Pattern(f"{node.place}/pattern", schema["pattern"]))
        named = schema.get("patternProperties")
        if isinstance(named, dict):
            self.patterns += [
                Pattern(f"{node.place}/patternProperties/{_escape(text)}", text) for text in named
            ]

    def _resolve(self, reference: str) -> Any:
        if reference in self._anchors:
            return self._anchors[reference]
        if reference != "#" and not reference.startswith("#/"):
            self.opaque = True
            return None
        found: Any = self.root
        for step in unquote(reference).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
            if isinstance(found, dict):
                found = found.get(step)
            elif isinstance(found, list):
                found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        return found


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[Label | None, str, Any]]:
    """Each subschema with its label and place; the label is None where it is only defined."""
    for keyword in _HERE_ONE:
        if keyword in schema:
            yield _HERE, keyword, schema[keyword]
    for keyword, part in _PARTS.items():
        if keyword in schema:
            yield part, keyword, schema[keyword]
    for keyword in (*_HERE_MANY, "prefixItems", "items"):
        value = schema.get(keyword)
        if isinstance(value, list):
            for index, child in enumerate(value):
                label = _HERE if keyword in _HERE_MANY else ("array", str(index))
                yield label, f"{keyword}/{index}", child
        elif keyword == "items":
            yield ("array", _REST), keyword, value
    for keyword in (*_HERE_NAMED, *_NAMED, "properties", "patternProperties"):
        value = schema.get(keyword)
        if not isinstance(value, dict):
            continue
        for name, child in value.items():
            place = f"{keyword}/{_escape(name)}"
            if keyword == "properties":
                yield ("object", f"={name}"), place, child
            elif keyword == "patternProperties":
                yield ("object", _EVERY), place, child
            else:
                yield _HERE if keyword in _HERE_NAMED else None, place, child


def estimate(schema: Mapping[str, Any]) -> Cost:
    """The cost of a schema. A wrong schema gets some cost too: whether it is right is not looked at here."""
    graph = _Graph(schema)
    branches: dict[_Node, int] = {}
    work: dict[_Node, int] = {}
    recursive: set[_Node] = set()
    ambiguous = graph.opaque
    for component in _components(list(graph.nodes.values())):
        inside = set(component)
        cyclic = len(component) > 1 or any(target in inside for _, target in component[0].edges)
        evaluations = steps = 0
        for node in component:
            below = [target for _, target in node.edges if target not in inside]
            looks_again = "unevaluatedProperties" in node.schema or "unevaluatedItems" in node.schema
            factor = _UNEVALUATED_FACTOR if looks_again else 1
            evaluations += 1 + factor * sum(branches[target] for target in below)
            steps += node.weight + factor * sum(work[target] for target in below)
            if cyclic:
                again = [label for label, target in node.edges if target in inside or target in recursive]
                ambiguous = ambiguous or looks_again or _overlap(again)
        for node in component:
            branches[node], work[node] = min(evaluations, _ENDLESS), min(steps, _ENDLESS)
        if cyclic or any(target in recursive for node in component for _, target in node.edges):
            recursive |= inside
    root = graph.nodes[id(schema)]
    return Cost(len(graph.nodes), branches[root], work[root], ambiguous, graph.patterns)


def _overlap(labels: list[Label]) -> bool:
    """Whether two of the labels may stand for the same part of a value."""
    if len(labels) < 2:
        return False
    kinds = [kind for kind, _ in labels]
    return (
        _HERE in labels
        or len(set(labels)) < len(labels)
        or any(kinds.count(kind) > 1 for kind, part in labels if part == _EVERY)
    )


def _components(nodes: list[_Node]) -> Iterator[list[_Node]]:
    """The strongly connected components, each after all that it leads to.

    Source: R. Tarjan, SIAM J. Computing 1(2), 1972; without recursion, because
    a schema may be deeper than the stack.
    """
    order: dict[_Node, int] = {}
    lowest: dict[_Node, int] = {}
    stack: list[_Node] = []
    on_stack: set[_Node] = set()
    for start in nodes:
        if start in order:
            continue
        work: list[tuple[_Node, Iterator[tuple[Label, _Node]]]] = [(start, iter(start.edges))]
        order[start] = lowest[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, edges = work[-1]
            for _, target in edges:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(target.edges)))
                    break
                if target in on_stack:
                    lowest[node] = min(lowest[node], order[target])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    component: list[_Node] = []
                    while not component or component[-1] is not node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component


def pattern_size(pattern: str) -> int:
    """About how many states a regular expression has: its counted repetitions written out.

    A class of Unicode characters counts for the many ranges that it stands for.
    An expression that is not one gets some size too.
    """
    sizes, last = [0], 0
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
            times = [
                int(part[:9])
                for part in pattern[position + 1 : end - 1].split(",")
                if part.strip().isdecimal()
            ]
            sizes[-1] += last * (max(times, default=1) - 1)
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
                last = 5 if char == "." else 1
            sizes[-1] += last
        position = end
    return sum(sizes)
