"""Converts promptfoo's configuration: every prompt with every test is a case, every provider a target."""

import csv
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from ..documents import Document, InvalidDocument, csv_delimiter, parse_json_text
from .assertions import JUDGED, Spec, assertion, judge_settings, least_score
from .node import (
    Converted,
    Node,
    Places,
    asked,
    convert_cases,
    convert_each,
    evaluators_of,
    is_agentv,
    openai_connector,
)
from .variables import VARIABLE, check_values, rendered

_REPORTS: Final = "ignored: it configures promptfoo's own reports; see `evald test --output`"
_NO_CODE: Final = "it runs code of the suite in the test runner"
# Keys that change no verdict; they cause warnings.
_UNUSED: Final = frozenset(
    {"outputPath", "sharing", "commandLineOptions", "derivedMetrics", "writeLatestResults", "env", "$schema"}
)
_KEYS: Final = (
    *("description", "prompts", "providers", "targets", "tests", "defaultTest"),
    *("evaluateOptions", "assertionTemplates", "tags", "metadata", *_UNUSED),
)
_REFUSED_KEYS: Final = {
    "scenarios": "evald has only tests; write each combination as a test",
    "redteam": "evald does not generate attacks; `evald calibrate` has a fixed attack suite",
    "extensions": _NO_CODE,
    "nunjucksFilters": _NO_CODE,
    "tracing": "evald reads tool calls, not spans of a trace",
}
_TEST_KEYS: Final = ("description", "vars", "assert", "threshold", "options", "metadata", "providerOutput")
_REFUSED_TEST_KEYS: Final = {
    "assertScoringFunction": _NO_CODE,
    "provider": "evald runs every case against every target; write a suite for each target",
    "providers": "evald runs every case against every target; write a suite for each target",
    "prompts": "evald runs every test with every prompt; write a suite for each prompt",
}
_OPTION_KEYS: Final = ("prefix", "suffix", "provider", "disableVarExpansion", "runSerially")
_REFUSED_OPTION_KEYS: Final = {
    "transform": "it changes the answer with JavaScript before the check",
    "postprocess": "it changes the answer with JavaScript before the check",
    "transformVars": _NO_CODE,
    "rubricPrompt": "evald's judge has its own prompt; write the instructions into `value`",
    "storeOutputAs": "cases of evald are independent of each other",
}
_RUN_KEYS: Final = ("maxConcurrency", "repeat", "cache", "showProgressBar")
_REFUSED_RUN_KEYS: Final = {
    "timeoutMs": "set the timeout of the connector",
    "maxEvalTimeMs": "evald always runs the whole suite",
    "delay": "evald waits as long as the endpoint's rate limit requires",
    "generateSuggestions": "evald does not generate prompts",
}
# Combinations of the values of lists in one test.
_MOST_COMBINATIONS: Final = 10_000

_CODE_FILES: Final = (".js", ".cjs", ".mjs", ".ts", ".py", ".rb", ".go", ".sh")
_PROMPT_FILES: Final = (".txt", ".md", ".json", ".yaml", ".yml", ".j2", *_CODE_FILES, ".csv")

_EXPECTED: Final = re.compile(r"((?:not-)?[a-z][a-z0-9:-]*)(?:\(([0-9.]+)\))?:\s*(.*)", re.DOTALL)
_JSON_PATH: Final = re.compile(r"json((?:\??\.\w+|\[\d+\])+)")


class _Prompt(NamedTuple):
    """A prompt: text, or chat messages as data. node: for errors."""

    content: Any
    node: Node


def is_it(data: Any) -> bool:
    """Return whether data are a promptfoo configuration."""
    if not isinstance(data, Mapping) or is_agentv(data):
        return False
    return "providers" in data or ("prompts" in data and ("defaultTest" in data or "targets" in data))


def convert(document: Document) -> Converted:
    """Convert a configuration. Raises InvalidDocument for a feature without a counterpart."""
    root = Node(document, document.data, base=Path(document.file).parent)
    if "repeat" in root["commandLineOptions"]:
        raise root["commandLineOptions"]["repeat"].refuse("not supported here; write it into evaluateOptions")
    for key in root.keys(*_KEYS, refused=_REFUSED_KEYS):
        if key in _UNUSED and key != "$schema":
            root[key].warn(
                _REPORTS if key != "env" else "ignored: set the variables in the environment of evald"
            )
    path = Path(document.file).resolve()
    # promptfoo's default name of the file says nothing about the suite.
    suite: dict[str, Any] = {"name": path.parent.name if path.stem == "promptfooconfig" else path.stem}
    if "description" in root:
        suite["description"] = root["description"].text()
    about = {key: root[key].data for key in ("tags", "metadata") if key in root}
    if about:
        suite["metadata"] = about
    suite |= _run_options(root["evaluateOptions"]) if "evaluateOptions" in root else {}
    echoes = _targets(root.first("providers", "targets"), suite)
    if "prompts" not in root:
        raise root.refuse("missing prompts; wanted at least one under `prompts`")
    prompts = list(_prompts(root["prompts"]))
    default = _default_test(root["defaultTest"]) if "defaultTest" in root else root["defaultTest"]
    numbers = itertools.count(1)

    def converted(test: Node) -> Iterator[tuple[dict[str, Any], Places]]:
        name = f"test-{next(numbers)}"
        return _Test(test, default, root["assertionTemplates"]).cases(name, prompts, echo=echoes)

    cases, places = convert_cases(_tests(root["tests"]), converted)
    if not cases:
        raise root.refuse("missing tests; wanted at least one under `tests`")
    return Converted({**suite, "cases": cases}, places, root.warnings)


def _run_options(node: Node) -> dict[str, Any]:
    node.keys(*_RUN_KEYS, refused=_REFUSED_RUN_KEYS)
    names = {"maxConcurrency": "max_concurrency", "repeat": "trials"}
    return {name: node[key].integer() for key, name in names.items() if key in node}


# --- providers

_OPENAI: Final = re.compile(r"openai:(?:chat:)?((?:gpt|o\d|chatgpt|ft:)[\w.:-]*)")
_OPENAI_PARAMETERS: Final = frozenset(
    {"temperature", "max_tokens", "max_completion_tokens", "top_p", "frequency_penalty", "presence_penalty"}
    | {"seed", "stop", "response_format", "tool_choice", "reasoning_effort", "verbosity"}
)


def _targets(node: Node, suite: dict[str, Any]) -> bool:
    """Fill in the targets and connectors. Return True if the only provider echoes the prompt."""
    providers = list(node) if isinstance(node.data, list) else [node]
    names = [_provider(provider, suite) for provider in providers if provider.data is not None]
    if names == ["echo"]:
        return True
    if "echo" in names:
        raise node.refuse(
            "got echo together with other providers, but its answer is the prompt; write a suite for each"
        )
    if len(set(names)) < len(names):
        raise node.refuse("two providers have the same name; give each its own label")
    if names:
        suite["targets"] = names
    return False


_REFUSED_PROVIDER_KEYS: Final = {
    "prompts": "evald runs every case against every target; write a suite for each target",
    "transform": "it changes the answer with JavaScript",
    "delay": "evald waits as long as the endpoint's rate limit requires",
    "env": "set the variables in the environment of evald",
}


def _provider(node: Node, suite: dict[str, Any]) -> str:
    """Return the name of a provider's target, and add its connector to the suite if evald has one."""
    data = node.data
    if isinstance(data, str):
        identifier, name, config = data, data, node.replaced({})
    else:
        if "id" not in node and len(node.mapping()) == 1:
            identifier = next(iter(node.mapping()))
            node = node[identifier].replaced({"id": identifier, **node[identifier].mapping()})
        node.keys("id", "label", "config", refused=_REFUSED_PROVIDER_KEYS)
        identifier = node["id"].text()
        name = node["label"].text() if "label" in node else identifier
        config = node["config"] if "config" in node else node.replaced({})
    if identifier == "echo":
        return "echo"
    connector = _connector(identifier, config)
    if isinstance(connector, str):
        node.warn(
            f"{identifier[:80]!r}: {connector}; store a connector named {name[:80]!r}, or choose one with --target"
        )
    else:
        suite.setdefault("connectors", {})[name] = connector
    return name


def _connector(identifier: str, config: Node) -> dict[str, Any] | str:
    """Return a connector, or the reason why there is none."""
    if identifier.startswith(("http://", "https://")):
        return _http(identifier, config)
    found = _OPENAI.fullmatch(identifier)
    if found is None:
        return "evald has no connector for this provider"
    known = _OPENAI_PARAMETERS | {"tools", "apiBaseUrl", "apiKeyEnvar"}
    unknown = [key for key in config.mapping() if key not in known]
    if unknown:
        return f"config.{unknown[0]} has no counterpart"
    tools = config["tools"].open().data if isinstance(config["tools"].data, str) else config["tools"].data
    parameters = {key: value for key, value in config.mapping().items() if key in _OPENAI_PARAMETERS}
    connector = openai_connector(found[1], parameters, tools, config["apiKeyEnvar"].data)
    return connector | {"baseUrl": config["apiBaseUrl"].data or connector["baseUrl"]}


def _http(url: str, config: Node) -> dict[str, Any] | str:
    known = ("method", "headers", "body", "transformResponse", "responseParser", "url")
    unknown = [key for key in config.mapping() if key not in known]
    if unknown:
        return f"config.{unknown[0]} has no counterpart"
    method = str(config["method"].data or "POST").upper()
    if method not in ("POST", "PUT", "PATCH"):
        return f"evald calls agents with POST, PUT or PATCH, not {method[:20]}"
    made: dict[str, Any] = {} if method == "POST" else {"method": method}
    if "body" in config:
        body = json.dumps(config["body"].data)
        foreign = [name for name in VARIABLE.findall(body) if name.strip() != "prompt"]
        if foreign:
            return (
                f"the body has the variable {foreign[0].strip()[:40]!r}, but evald fills in only the prompt"
            )
        made["body"] = json.loads(VARIABLE.sub("{{message}}", body))
    transform = config.first("transformResponse", "responseParser").data
    if transform is not None:
        path = _JSON_PATH.fullmatch(str(transform))
        if path is None:
            return "transformResponse is code, wanted a path such as json.choices[0].text"
        made["textPath"] = path[1].replace("?", "").removeprefix(".")
    headers = {
        str(name): re.sub(r"\{\{\s*env\.(\w+)\s*\}\}", r"${\1}", str(value))
        for name, value in (config["headers"].mapping() if "headers" in config else {}).items()
        if str(name).lower() != "content-type"
    }
    if any("{{" in text for text in (url, *headers.values())):
        return (
            "the address or a header has a variable, but evald fills in only environment variables in headers"
        )
    made_headers = {"headers": headers} if headers else {}
    return {"type": "http", "baseUrl": url, **made_headers, **({"config": made} if made else {})}


# --- prompts


def _prompts(node: Node) -> Iterator[_Prompt]:
    for given in node if isinstance(node.data, list) else [node]:
        one = given
        if isinstance(given.data, dict):
            given.keys("id", "label", "raw", "file")
            one = given["raw"] if "raw" in given else given.first("id", "file")
        text = one.text()
        if text.startswith("exec:"):
            raise one.refuse(_NO_CODE)
        suffix = PurePath(text).suffix.lower()
        if text.startswith("file://") or (suffix in _PROMPT_FILES and not re.search(r"\s", text)):
            yield from _prompt_file(one, suffix)
        else:
            yield _Prompt(_chat(text, one), one)


def _prompt_file(node: Node, suffix: str) -> Iterator[_Prompt]:
    if ".".join(("", *suffix.split(":", maxsplit=1)[0].split(".")[1:])) in _CODE_FILES:
        raise node.refuse(f"not supported: {_NO_CODE}")
    if suffix in (".yaml", ".yml"):
        opened = node.open()
        if not isinstance(opened.data, str | list):
            raise opened.refuse("missing prompt; wanted text or a list of messages")
        yield _Prompt(opened.data, node)
    elif suffix == ".txt":
        for text in re.split(r"^---[ \t]*$", node.file_text(), flags=re.MULTILINE):
            if text.strip():
                yield _Prompt(_chat(text.strip(), node), node)
    elif suffix in (".md", ".j2", ".json"):
        yield _Prompt(_chat(node.file_text().strip(), node), node)
    else:
        raise node.refuse("unknown type of prompt file; wanted .txt, .md, .json or .yaml")


def _chat(text: str, node: Node) -> Any:
    """Return a prompt as data if it is a JSON list of messages, else unchanged."""
    if not text.startswith("[") or '"role"' not in text:
        return text
    try:
        return parse_json_text(text, node.document.file, node.line)
    except InvalidDocument:
        if "{%" in text:
            raise node.refuse(
                "got template code ({% ... %}) in a prompt, but evald fills in only {{variables}}"
            ) from None
        raise


# --- tests


def _default_test(node: Node) -> Node:
    node = node.open() if isinstance(node.data, str) else node
    node.keys(*_TEST_KEYS, refused=_REFUSED_TEST_KEYS)
    return node


def _tests(node: Node) -> Iterator[Node]:
    if node.data is None:
        return
    if isinstance(node.data, str):
        yield from _test_files(node)
        return
    for one in node:
        if isinstance(one.data, str):
            yield from _test_files(one)
        elif "path" in one:
            raise one["path"].refuse(
                "not supported: it generates tests with code; write the tests into the file"
            )
        else:
            yield one


def _test_files(node: Node) -> Iterator[Node]:
    name = node.text().removeprefix("file://")
    if "://" in name:
        raise node.refuse(f"{name[:80]!r} is not a local file; download the tests")
    if any(mark in name for mark in "*?["):
        if PurePath(name).is_absolute():
            raise node.refuse("got an absolute pattern of files; wanted a pattern relative to the suite")
        found = [str(path.relative_to(node.folder)) for path in sorted(node.folder.glob(name))]
        if not found:
            raise node.refuse(f"no file matches {name[:200]!r}")
    else:
        found = [name]
    for one in found:
        suffix = PurePath(one).suffix.lower()
        if suffix == ".csv":
            yield from _csv_tests(node, one)
        elif suffix == ".jsonl":
            yield from node.json_lines(node.file(one))
        elif suffix in (".yaml", ".yml", ".json"):
            yield from node.open(one)
        else:
            raise node.refuse(
                f"{one[:200]!r}: unknown type of test file; wanted .csv, .json, .jsonl or .yaml"
            )


def _csv_tests(node: Node, name: str) -> Iterator[Node]:
    text = node.file_text(name)
    reader = csv.DictReader(
        io.StringIO(text), strict=True, delimiter=csv_delimiter(text.lstrip().partition("\n")[0])
    )
    file = str(node.folder / name)
    try:
        columns = Counter(column.strip() for column in reader.fieldnames or ())
        twice = [name for name, count in columns.items() if count > 1 and name]
        if twice:
            raise InvalidDocument(file, 1, f"got a duplicate column {twice[0][:80]!r}")
        for row in reader:
            if None not in row and not any(cell.strip() for cell in row.values() if cell):
                continue  # an empty row of a spreadsheet
            document = Document({}, {(): reader.line_num}, file)
            place = Node(document, {}, (), node.warnings, node.base)
            yield place.replaced(_csv_test(row, place))
    except csv.Error as problem:
        raise InvalidDocument(file, reader.line_num, f"not valid CSV: {problem}") from None


def _csv_test(row: Mapping[Any, Any], node: Node) -> dict[str, Any]:
    if None in row or None in row.values():
        raise node.refuse("the number of cells differs from that of the first line")
    test: dict[str, Any] = {"vars": {}, "assert": [], "options": {}, "metadata": {}}
    metric = ""
    for column, cell in row.items():
        name = column.strip()
        if re.fullmatch(r"__expected\d*", name):
            if cell.strip():
                test["assert"].append(_csv_assertion(cell.strip(), node))
        elif name in ("__prefix", "__suffix"):
            test["options"][name[2:]] = cell
        elif name == "__description":
            test["description"] = cell
        elif name == "__threshold":
            test["threshold"] = _cell_number(cell, node) if cell.strip() else ""
        elif name.startswith("__metadata:"):
            key = name.removeprefix("__metadata:")
            listed = [part.replace("\\,", ",").strip() for part in re.split(r"(?<!\\),", cell)]
            test["metadata"][key.removesuffix("[]")] = listed if key.endswith("[]") else cell
        elif name == "__metric":
            metric = cell
        elif name.startswith(("__", "_expected")):
            raise node.refuse(f"the column {name!r} has no counterpart")
        else:
            test["vars"][name] = cell
    for one in test["assert"]:
        if metric:
            one["metric"] = metric
    return {key: value for key, value in test.items() if value not in ({}, [], "")}


def _csv_assertion(cell: str, node: Node) -> dict[str, Any]:
    """Return the assertion of a cell: `type(threshold): value`, or a text that the answer must equal."""
    code = re.match(r"(javascript|fn|eval|python):", cell)
    if code:
        return {"type": "python" if code[1] == "python" else "javascript"}
    if cell.startswith("grade:"):
        return {"type": "llm-rubric", "value": cell.removeprefix("grade:").strip()}
    found = _EXPECTED.fullmatch(cell)
    if found is None:
        bare = cell in ("is-json", "contains-json", "not-is-json")
        return {"type": cell} if bare else {"type": "equals", "value": cell}
    made: dict[str, Any] = {"type": found[1], "value": found[3]} if found[3] else {"type": found[1]}
    if found[1] in ("latency", "cost"):
        return {"type": found[1], "threshold": _cell_number(found[2] or found[3], node)}
    return {**made, "threshold": _cell_number(found[2], node)} if found[2] else made


def _cell_number(text: str, node: Node) -> float:
    try:
        return float(text)
    except ValueError:
        raise node.refuse(f"got {text[:60]!r}, wanted a number") from None


class _Test:
    """A test, with the default test's values for missing keys."""

    def __init__(self, node: Node, default: Node, templates: Node) -> None:
        node.keys(*_TEST_KEYS, refused=_REFUSED_TEST_KEYS)
        self._node = node
        self._default = default
        self._templates = templates
        self._options = self._merged("options")
        self._metadata = self._merged("metadata")
        for place in (default, node):
            if "options" in place:
                place["options"].keys(*_OPTION_KEYS, refused=_REFUSED_OPTION_KEYS)
        if "conversationId" in self._metadata:
            raise node["metadata"].refuse(
                "not supported: conversationId joins tests into a conversation; write one case with `turns`"
            )

    def cases(
        self, identifier: str, prompts: list[_Prompt], *, echo: bool
    ) -> Iterator[tuple[dict[str, Any], Places]]:
        """Yield a case for every prompt and every combination of the values of lists."""
        combinations = list(self._combinations())
        for number, (prompt, variables) in enumerate(itertools.product(prompts, combinations), 1):
            several = len(prompts) * len(combinations) > 1
            yield self._case(
                f"{identifier}.{number}" if several else identifier, prompt, variables, echo=echo
            )

    def _case(
        self, identifier: str, prompt: _Prompt, variables: Mapping[str, Any], *, echo: bool
    ) -> tuple[dict[str, Any], Places]:
        node = self._node
        case: dict[str, Any] = {"id": identifier}
        if "description" in node:
            case["description"] = node["description"].text()
        filled = rendered(prompt.content, variables, prompt.node)
        if isinstance(filled, str):
            filled = f"{self._options.get('prefix', '')}{filled}{self._options.get('suffix', '')}"
        case |= asked(filled)
        given = node["providerOutput"] if "providerOutput" in node else self._default["providerOutput"]
        if given.data is not None:
            case["output"] = given.data if isinstance(given.data, str) else json.dumps(given.data)
        elif echo:
            case["output"] = filled if isinstance(filled, str) else json.dumps(filled, ensure_ascii=False)
        case["evaluators"], places = self._evaluators(variables)
        if not case["evaluators"]:
            raise node.refuse("got no assertion; wanted at least one")
        threshold = node["threshold"] if "threshold" in node else self._default["threshold"]
        if threshold.data is not None:
            # 0 meant no threshold in older versions of promptfoo.
            case["options"] = {"aggregation": "weighted_mean", "threshold": least_score(threshold)}
        if self._metadata:
            case["metadata"] = self._metadata
        return case, places

    def _evaluators(self, variables: Mapping[str, Any]) -> tuple[list[Spec], Places]:
        def converted(given: Node) -> Iterator[Spec]:
            one = self._template(given) if "$ref" in given else given
            data = rendered(one.data, variables, one)
            kind = data.get("type") if isinstance(data, dict) else None
            if isinstance(kind, str) and kind in JUDGED and "provider" not in data:
                data = {**data, "provider": self._provider()}
            yield assertion(one.replaced(data))

        lists = [place["assert"] for place in (self._default, self._node) if "assert" in place]
        return evaluators_of(convert_each(itertools.chain(*lists), converted))

    def _provider(self) -> Any:
        """Return the provider of the test's judges, None for the server's. Raises InvalidDocument with its place."""
        options = (place["options"] for place in (self._node, self._default))
        found = next((one["provider"] for one in options if "provider" in one), None)
        if found is None:
            return None
        judge_settings(found)
        return found.data

    def _template(self, given: Node) -> Node:
        given.keys("$ref")
        node = given["$ref"]
        name = node.text().removeprefix("#/assertionTemplates/")
        if name not in self._templates:
            raise node.refuse(f"unknown assertion template {name[:80]!r}")
        return self._templates[name]

    def _merged(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for place in (self._default, self._node):
            if key in place:
                found |= place[key].mapping()
        return found

    def _combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the variables for every combination of the values of lists."""
        variables: dict[str, Any] = {}
        for place in (self._default, self._node):
            if "vars" in place:
                read = place["vars"].open() if isinstance(place["vars"].data, str) else place["vars"]
                variables |= {name: _variable(read[name]) for name in read.mapping()}
        check_values(variables, self._node["vars"])
        if self._options.get("disableVarExpansion"):
            yield variables
            return
        lists = [name for name, value in variables.items() if isinstance(value, list)]
        count = math.prod(len(variables[name]) for name in lists)
        if count > _MOST_COMBINATIONS:
            raise self._node["vars"].refuse(
                f"got {count} combinations of values, wanted at most {_MOST_COMBINATIONS}"
            )
        for values in itertools.product(*(variables[name] for name in lists)):
            yield {**variables, **dict(zip(lists, values, strict=True))}


def _variable(node: Node) -> Any:
    """Return the value of a variable. A file name, also as an item of a list, is replaced by the file's content."""
    if isinstance(node.data, list):
        return [_variable(one) if isinstance(one.data, str) else one.data for one in node]
    if not isinstance(node.data, str) or not node.data.startswith("file://"):
        return node.data
    suffix = PurePath(node.data).suffix.lower()
    if suffix in _CODE_FILES:
        raise node.refuse(f"not supported: {_NO_CODE}")
    if suffix in (".json", ".yaml", ".yml"):
        return node.open().data
    if suffix not in (".txt", ".md", ".csv", ".html", ".xml", ""):
        raise node.refuse("got a file that is not text; wanted a text file")
    return node.file_text().strip()
