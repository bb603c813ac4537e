"""Converts OpenAI's graders: a grader, an eval with its testing criteria, or a request to run one, as JSON.

The items are in the file, or in a JSONL file of the same name beside it: `{"item": {...}, "sample": {...}}` per line,
or a line for each output item of a hosted run.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

from ..documents import Document
from .assertions import Spec
from .node import Converted, Node, asked, convert_cases, convert_each, evaluators_of, openai_connector

_TYPES: Final = ("string_check", "text_similarity", "score_model", "label_model", "python", "multi")
_DEFAULT_THRESHOLD: Final = 0.8
# --allow-code allows it by this bare name. It is examples/code/openai_python_grader.py.
PYTHON_COMMAND: Final = "openai_python_grader.py"

_VARIABLE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_ITEM_KEY: Final = re.compile(r"item(?:\.(\w+)|\[['\"]([^'\"\]]*)['\"]\])")

# Of every grader; evals that the API has returned have the ids.
_GRADER_KEYS: Final = ("type", "name", "id")
_EVAL_KEYS: Final = ("testing_criteria", "name", "metadata", "data_source_config", "data_source")
# Other objects of the API, and what is wanted instead.
_NO_EVAL: Final = {
    "list": "a page of a list; wanted one eval, an element of its `data`; "
    "output items go to a .jsonl file, one element of `data` a line",
    "eval.run": "a run, which has no graders; wanted its eval, with the run's `data_source` in it",
    "eval.run.output_item": "an item of a run; wanted its eval, with the items in a .jsonl file of the same name",
}
_SOURCE_KEYS: Final = ("type", "model", "input_messages", "sampling_params", "source")
_MEASURES: Final = {
    **{f"rouge_{order}": f"rouge-{order}" for order in ("1", "2", "3", "4", "5", "l")},
    "fuzzy_match": "fuzzy-match",
    "bleu": "bleu",
    "gleu": "gleu",
}
_NO_MEASURE: Final = {
    "cosine": "it needs an embedding model, which evald does not have; `score_model` can compare meanings",
    "meteor": "it needs WordNet's synonyms; use gleu or rouge_l",
}


def is_it(data: Any) -> bool:
    """Return whether data are a grader, an eval, or a request to run a grader."""
    if not isinstance(data, Mapping):
        return False
    grader = data.get("grader", data)
    if str(data.get("object")) in _NO_EVAL:
        return True  # to be refused with the reason
    return "testing_criteria" in data or (isinstance(grader, Mapping) and grader.get("type") in _TYPES)


def convert(document: Document) -> Converted:
    """Convert a grader or an eval with its items. Raises InvalidDocument for a feature without a counterpart."""
    root = Node.of(document)
    if other := _NO_EVAL.get(str(root["object"].data)):
        raise root["object"].refuse(f"this is {other}")
    path = Path(document.file)
    suite: dict[str, Any] = {"name": str(root["name"].data or path.stem)}
    source, graders = root["data_source"], [root]
    if "testing_criteria" in root and "metadata" in root:
        suite["metadata"] = root["metadata"].mapping()
    if "testing_criteria" in root:
        if (
            "object" not in root
        ):  # an eval that the API has returned has further keys, which configure no check
            root.keys(*_EVAL_KEYS)
        graders = list(root["testing_criteria"])
        if "data_source_config" in root:
            root["data_source_config"]["type"].choice(
                {"custom": None, "logs": None, "stored_completions": None}
            )
    elif "grader" in root:
        root.keys("grader", "item", "model_sample")
        graders = [root["grader"]]
    suite["evaluators"], places = evaluators_of(convert_each(graders, lambda grader: [_grader(grader)]))
    if not graders:
        raise root["testing_criteria"].refuse("missing; wanted at least one grader")
    if source.data is not None:
        source.keys(*_SOURCE_KEYS)
        suite |= _target(source)
    rows = _Rows(source, json.dumps(suite["evaluators"]))
    numbers = count(1)
    cases, of_cases = convert_cases(
        _rows(root, source, path), lambda row: [(rows.case(row, next(numbers)), {})]
    )
    if not cases:
        raise root.refuse(
            f"no items; wanted a file {path.with_suffix('.jsonl').name} in the same directory, with one item per line"
        )
    return Converted({**suite, "cases": cases}, places | of_cases, root.warnings)


# --- graders


def _grader(node: Node, name: str = "") -> Spec:
    """Return the spec of a grader. name: of a part of a multi grader."""
    kind = node["type"].choice({kind: kind for kind in _TYPES})
    name = name or str(node["name"].data or kind)
    return {"name": name, **_KINDS[kind](node)}


def _threshold(node: Node) -> float:
    if "pass_threshold" in node:
        return node["pass_threshold"].number()
    node.warn(f"no pass_threshold; using {_DEFAULT_THRESHOLD}")
    return _DEFAULT_THRESHOLD


def _string_check(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "input", "reference", "operation")
    operation = node["operation"].choice({name: name for name in ("eq", "ne", "like", "ilike")})
    config = {"input": node["input"].text(), "reference": node["reference"].text(), "operation": operation}
    return {"type": "string-check", "config": config}


def _text_similarity(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "input", "reference", "evaluation_metric", "pass_threshold")
    metric = node["evaluation_metric"]
    if metric.text() in _NO_MEASURE:
        raise metric.refuse(f"{metric.data} is not supported: {_NO_MEASURE[metric.data]}")
    return {
        "type": "similarity-check",
        "config": {
            "input": node["input"].text(),
            "reference": node["reference"].text(),
            "measure": metric.choice(_MEASURES),
            "threshold": _threshold(node),
        },
    }


def _score_model(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "input", "model", "range", "pass_threshold", "sampling_params")
    grader: dict[str, Any] = {"input": _prompt(node["input"])}
    if "range" in node:
        grader["range"] = [bound.number() for bound in node["range"]]
    if "pass_threshold" in node:
        grader["passThreshold"] = node["pass_threshold"].number()
    else:
        node.warn("no pass_threshold; using the value at 80 % of the range")
    return _judge(node, grader)


def _label_model(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "input", "model", "labels", "passing_labels", "sampling_params")
    grader = {
        "input": _prompt(node["input"]),
        "labels": [label.text() for label in node["labels"]],
        "passingLabels": [label.text() for label in node["passing_labels"]],
    }
    return _judge(node, grader)


def _judge(node: Node, grader: dict[str, Any]) -> Spec:
    config: dict[str, Any] = {"grader": grader, "model": node["model"].text()}
    names = {
        "temperature": "temperature",
        "max_completions_tokens": "maxOutputTokens",
        "max_tokens": "maxOutputTokens",
    }
    for key, value in _parameters(node).items():
        if key in names and value is not None:
            config[names[key]] = value
        elif value is not None:
            node["sampling_params"][key].warn("ignored: the server's configuration of the judge applies")
    return {"type": "llm-judge", "config": config}


def _parameters(node: Node) -> dict[str, Any]:
    return node["sampling_params"].mapping() if "sampling_params" in node else {}


def _prompt(node: Node) -> list[dict[str, Any]]:
    messages = []
    for one in node:
        one.keys("role", "content", "type")
        role = one["role"].text()
        if role not in ("system", "developer", "user"):
            raise one["role"].refuse(
                f"got {role[:40]!r}, wanted system or user, the roles of messages to a judge"
            )
        content = one["content"]
        parts = list(content) if isinstance(content.data, list) else [content]
        messages.append({"role": role, "content": "\n".join(_content(part) for part in parts)})
    return messages


def _content(node: Node) -> str:
    if isinstance(node.data, str):
        return node.data
    kind = node["type"].text()
    if kind not in ("input_text", "output_text", "text"):
        raise node["type"].refuse(f"got {kind[:40]!r}, but evald's judge reads only text")
    return node["text"].text()


def _python(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "source", "image_tag", "pass_threshold")
    threshold = _threshold(node)
    if not threshold > 0:
        raise node["pass_threshold"].refuse(
            f"got {threshold:g}, which every score reaches; wanted more than 0"
        )
    node.warn(
        f"runs Python code of the file; the server's operator must allow it with --allow-code .../{PYTHON_COMMAND}"
    )
    config = {"source": node["source"].text(), "passThreshold": threshold}
    return {"type": "code", "config": {"command": [PYTHON_COMMAND], "config": config}}


def _multi(node: Node) -> Spec:
    node.keys(*_GRADER_KEYS, "graders", "calculate_output", "pass_threshold")
    found = node["graders"]
    if isinstance(found.data, list):
        graders = {one["name"].text(): one for one in found}
        if len(graders) < len(found.list()):
            raise found.refuse(
                "two graders have the same name, so the formula is ambiguous; give each its own name"
            )
    elif "type" in found:
        graders = {str(found["name"].data or "grader"): found}
    else:
        graders = {name: found[name] for name in found.mapping()}
    formula = node["calculate_output"].text()
    warned = len(node.warnings)
    children = [_grader(grader, name) for name, grader in graders.items()]
    # A part needs no threshold: the formula uses its number.
    node.warnings[warned:] = [text for text in node.warnings[warned:] if "no pass_threshold" not in text]
    config = {"formula": formula, "evaluators": children, "threshold": _threshold(node)}
    return {"type": "formula", "config": config}


_KINDS: Final[Mapping[str, Callable[[Node], Spec]]] = {
    "string_check": _string_check,
    "text_similarity": _text_similarity,
    "score_model": _score_model,
    "label_model": _label_model,
    "python": _python,
    "multi": _multi,
}


# --- items and samples


def _target(source: Node) -> dict[str, Any]:
    """Return the model of a run as keys of a suite: a target with its connector."""
    source["type"].choice({"completions": None, "responses": None, "jsonl": None})
    if "model" not in source:
        return {}
    model = source["model"].text()
    parameters = _parameters(source)
    if "text" in parameters:
        raise source["sampling_params"]["text"].refuse(
            "evald asks by chat completions; write the format as `response_format`"
        )
    if "max_completions_tokens" in parameters:
        parameters = {**parameters, "max_completion_tokens": parameters["max_completions_tokens"]}
        del parameters["max_completions_tokens"]
    tools = [_tool(tool) for tool in source["sampling_params"]["tools"]] if "tools" in parameters else []
    parameters = {key: value for key, value in parameters.items() if key != "tools"}
    return {"targets": [model], "connectors": {model: openai_connector(model, parameters, tools)}}


def _tool(node: Node) -> dict[str, Any]:
    """Return a function as chat completions take it. In a run of responses its keys stand beside its type."""
    if node["type"].text() != "function":
        raise node["type"].refuse(
            f"{node['type'].data[:40]!r}: evald asks by chat completions, which have functions alone"
        )
    if "function" in node:
        return node.mapping()
    return {
        "type": "function",
        "function": {key: one for key, one in node.mapping().items() if key != "type"},
    }


def _rows(root: Node, source: Node, path: Path) -> Iterator[Node]:
    """Yield the items with their samples, from the request, the run or the JSONL file beside it."""
    if "item" in root or "model_sample" in root:
        row = {"item": root["item"].data or {}, "sample": {"output_text": root["model_sample"].data}}
        yield root.replaced({key: value for key, value in row.items() if value != {"output_text": None}})
        return
    beside = path.with_suffix(".jsonl")
    given = source["source"]
    if given.data is not None and given["type"].data == "file_content":
        yield from given["content"]
    elif beside.is_file():
        yield from root.json_lines(beside)
    elif given.data is not None:
        raise given.refuse(
            f"the items are on OpenAI's server; download them to {beside.name} in the same directory"
        )


class _Rows:
    """Makes cases from items. graders: as JSON, to find the variables that they use."""

    def __init__(self, source: Node, graders: str) -> None:
        self._messages = source["input_messages"]
        variables = _VARIABLE.findall(graders)
        self._judges_sample = any(name.startswith("sample") for name in variables) or '"code"' in graders
        self._item_keys = {
            key for name in variables for pair in _ITEM_KEY.findall(name) for key in pair if key
        }

    def case(self, row: Node, number: int) -> dict[str, Any]:
        """Return the case of a row: `{item, sample?}`, an output item, or a row of fine-tuning data with `messages`."""
        # A row of a hosted run has further keys, which configure no check.
        hosted = "datasource_item" in row or ("item" in row and "run_id" in row)
        if hosted:
            item = row.first("datasource_item", "item").mapping()
        elif "item" in row:
            row.keys("item", "sample", "id")
            item = row["item"].mapping()
        else:
            item = {key: value for key, value in row.mapping().items() if key not in ("messages", "sample")}
        lacking = sorted(self._item_keys.difference(item))
        if lacking:
            raise row.refuse(f"the item has no {lacking[0]!r}, which a grader uses")
        metadata, identifier = {"item": item}, row["id"].data or f"item-{number}"
        if hosted:
            found = {key: row[key].data for key in ("results", "grades", "passes") if key in row}
            metadata["results"] = found.get("results", found)
            # Its number in the data set, so that the cases of two runs are pairs.
            index = row.first("datasource_item_id", "data_source_idx").data
            identifier = identifier if index is None else f"item-{index}"
        case: dict[str, Any] = {"id": str(identifier), "metadata": metadata}
        messages = self._asked(row, item)
        if "sample" in row:
            case["output"] = _output(row["sample"])
        elif not self._judges_sample:
            # The graders check the item alone, so it serves as the answer.
            case["output"] = json.dumps(item, ensure_ascii=False)
        elif messages is None:
            raise row.refuse(
                "no sample, and no input_messages for the agent; "
                'wanted {"item": {...}, "sample": {"output_text": ...}}'
            )
        return case | asked(json.dumps(item, ensure_ascii=False) if messages is None else messages)

    def _asked(self, row: Node, item: Mapping[str, Any]) -> list[Any] | None:
        if (said := row["sample"].first("input", "trajectory")).data:
            return said.list()
        if self._messages.data is None:
            return row["messages"].list() if "messages" in row else None
        kind = self._messages["type"].choice({"template": "template", "item_reference": "item_reference"})
        if kind == "item_reference":
            name = self._messages["item_reference"].text().removeprefix("item.")
            found = item.get(name)
            if not isinstance(found, list):
                raise row.refuse(f"the item has no messages under {name!r}")
            return found
        return [self._filled(one, item, row) for one in self._messages["template"]]

    def _filled(self, message: Node, item: Mapping[str, Any], row: Node) -> dict[str, Any]:
        def value(found: re.Match[str]) -> str:
            data: Any = item
            first, *keys = found[1].split(".")
            if first != "item":
                raise message.refuse(
                    f"{found[0][:80]!r}: unknown variable; the input can use only variables of the item"
                )
            for key in keys:
                if not isinstance(data, Mapping) or key not in data:
                    raise row.refuse(f"the item has no value for {found[0][:80]!r}")
                data = data[key]
            return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)

        message.keys("role", "content", "type")
        return {"role": message["role"].text(), "content": _VARIABLE.sub(value, _content(message["content"]))}


def _output(node: Node) -> Any:
    """Return the recorded answer of a sample: a text, messages, or the error in place of them."""
    if isinstance(node.data, str):
        return node.data
    error = node["error"].data
    if any(error.values()) if isinstance(error, Mapping) else error:
        return {"error": error}
    if (said := node.first("output", "outputs")).data is not None:
        return said.list()
    if "choices" in node:
        message = node["choices"].list() and node["choices"][0]["message"]
        if not message:
            raise node["choices"].refuse("got no choices; wanted at least one")
        return [{"role": "assistant", **message.mapping()}]
    text = node["output_text"].data
    if text is None and "output_json" in node:
        text = json.dumps(node["output_json"].data, ensure_ascii=False)
    calls = node["output_tools"].data
    if text is None and not calls:
        raise node.refuse(
            "got a sample without an answer; wanted output_text, output_json, output_tools or choices"
        )
    if not calls:
        return text
    return [{"role": "assistant", "content": text, "tool_calls": calls}]
