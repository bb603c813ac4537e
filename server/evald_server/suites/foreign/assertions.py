"""Converts promptfoo's `assert:` vocabulary to evald's specs: `type`, `value`, `threshold`, `weight`, `metric`, `not-`."""

import csv
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from .node import Node, load_yaml

Spec = dict[str, Any]

_NO_CODE: Final = "it runs code of the suite in the test runner; write a script for evald's `code` evaluator"
_NO_EMBEDDINGS: Final = (
    "it needs an embedding model, which evald does not have; `llm-rubric` can compare meanings"
)
_NO_SERVICE: Final = "it calls its own external service"
_NO_SYNTAX: Final = "evald cannot check this language"
_NO_TRACE: Final = "evald reads tool calls, not spans of a trace"
_NO_CONTEXT: Final = (
    "it uses promptfoo's own prompts on the retrieved context; use `llm-rubric` with your criteria"
)
_NO_PROVIDER: Final = "it uses the provider's own list of functions; use `tool-use` with expectations"

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("javascript", "python", "ruby"), _NO_CODE),
    **dict.fromkeys(("similar", "answer-relevance", "similar:cosine", "similar:dot"), _NO_EMBEDDINGS),
    **dict.fromkeys(
        ("webhook", "classifier", "moderation", "guardrails", "pi", "search-rubric"), _NO_SERVICE
    ),
    **dict.fromkeys(
        ("is-xml", "contains-xml", "is-sql", "contains-sql", "is-html", "contains-html"), _NO_SYNTAX
    ),
    **dict.fromkeys(("trace-span-count", "trace-span-duration", "trace-error-spans"), _NO_TRACE),
    **dict.fromkeys(
        ("context-recall", "context-relevance", "context-faithfulness", "conversation-relevance"), _NO_CONTEXT
    ),
    **dict.fromkeys(
        ("is-valid-function-call", "is-valid-openai-function-call", "is-valid-openai-tools-call"),
        _NO_PROVIDER,
    ),
    **dict.fromkeys(
        ("select-best", "max-score"),
        "it compares the answers of several providers; run each and use `evald compare`",
    ),
    **dict.fromkeys(
        ("perplexity", "perplexity-score"), "it needs the log probabilities of the answer's tokens"
    ),
    "is-refusal": "it has a fixed list of phrases; use `icontains-any` with your own list, or `llm-rubric`",
    "meteor": "it needs WordNet's synonyms; use `rouge-n` or `gleu`",
    "skill-used": "evald reads tool calls, not a coding agent's skills",
    "trajectory:step-count": "evald counts tool calls, not steps; use `tool-call-budget`",
    "trajectory:goal-success": "it uses promptfoo's own prompt; use `llm-rubric` with your criteria",
}

_TEXT_FILES: Final = (".txt", ".md", ".csv", ".html", ".xml")
_KEYS: Final = ("type", "value", "threshold", "weight", "metric", "provider", "description")
_NO_CONFIG: Final = {"config": "it applies to code only"}
_REFUSED_KEYS: Final = {
    **_NO_CONFIG,
    "transform": "it changes the answer with JavaScript before the check",
    "contextTransform": "it extracts the context from the answer with JavaScript",
    "rubricPrompt": "evald's judge has its own prompt; write the instructions into `value`",
}


def assertion(node: Node) -> Spec:
    """Return the spec of an assertion. Raises InvalidDocument for one without a counterpart."""
    kind = node["type"].text()
    if kind == "assert-set":
        return assert_set(node)
    node.keys(*_KEYS, refused=_REFUSED_KEYS)
    return {**spec_of(kind, node), **common(node)}


def assert_set(node: Node) -> Spec:
    """Return the spec of a set: all must pass, or their mean score must reach the threshold."""
    node.keys("type", "assert", "threshold", "weight", "metric", "description", refused=_NO_CONFIG)
    config: Spec = {"evaluators": [assertion(child) for child in node["assert"]]}
    spec = {"type": "assert-set", "config": config, **common(node)}
    if "threshold" in node:
        config["threshold"] = least_score(node["threshold"])
    return spec


def least_score(node: Node) -> float:
    """Return a threshold of a score. Raises InvalidDocument if every answer reaches it."""
    if not node.number() > 0:
        raise node.refuse(f"got {node.number():g}, which every answer reaches; wanted a threshold above 0")
    return node.number()


def common(node: Node) -> Spec:
    """Return the keys of every kind: name and weight. An assertion of weight 0 is reported but decides nothing."""
    spec: Spec = {}
    if "metric" in node:
        spec["name"] = node["metric"].text()
    if "weight" in node:
        weight = node["weight"].number()
        spec |= {"shadow": True} if weight == 0 else {"weight": weight}
    return spec


def spec_of(kind: str, node: Node) -> Spec:
    """Return the spec of one kind, with its value and threshold. Raises InvalidDocument."""
    plain = kind.removeprefix("not-")
    if plain in REFUSED:
        raise node["type"].refuse(f"{kind} is not supported: {REFUSED[plain]}")
    make = _KINDS.get(plain)
    if make is None:
        raise node["type"].unknown_assertion(KNOWN)
    spec = make(node)
    if plain not in _WITH_THRESHOLD and "threshold" in node:
        raise node["threshold"].refuse(f"does not apply to {plain}; remove it")
    return {**spec, "negate": True} if kind != plain else spec


def _spec(kind: str, **config: Any) -> Spec:
    kept = {key: value for key, value in config.items() if value is not None}
    return {"type": kind, "config": kept} if kept else {"type": kind}


def string_value(node: Node) -> str:
    """Return the value as text: a text, the content of a text file, a number, true or false."""
    value = node["value"]
    if isinstance(value.data, str) and value.data.startswith("file://"):
        if not value.data.lower().endswith(_TEXT_FILES):
            raise value.refuse(f"is no file of text; wanted a name that ends in {', '.join(_TEXT_FILES)}")
        # Not the line end of the last line: no answer would contain it.
        return value.file_text().strip()
    if isinstance(value.data, bool | int | float):
        return json.dumps(value.data)
    return value.text()


def searched(node: Node) -> str:
    """Return the value as text to search for. Raises InvalidDocument if it is empty, because every answer has that."""
    text = string_value(node)
    if not text:
        raise node["value"].refuse("is empty, so that nothing would be checked")
    return text


def list_value(node: Node) -> list[str]:
    """Return the value as texts to search for: a list, also of a file; a text is split at commas, with quotes as in CSV."""
    value = node["value"]
    if isinstance(value.data, str) and _is_data_file(value.data):
        value = value.open()
    if isinstance(value.data, str):
        try:
            rows = list(csv.reader([string_value(node)], skipinitialspace=True, escapechar="\\", strict=True))
        except csv.Error as problem:
            raise value.refuse(f"is not a comma-separated list of texts: {problem}") from None
        found = [part.strip() for row in rows for part in row]
    else:
        found = [
            json.dumps(one) if isinstance(one, int | float) else value[index].text()
            for index, one in enumerate(value.list())
        ]
    if not found or "" in found:
        raise value.refuse("has an empty text or none, so that nothing would be checked")
    return found


def data_value(node: Node) -> Any:
    """Return the value as data: unchanged, from a file, or parsed from YAML in a text."""
    value = node["value"]
    if not isinstance(value.data, str):
        return value.data
    if value.data.startswith("file://"):
        return value.open().data
    return load_yaml(value.data, value)


def _is_data_file(text: str) -> bool:
    return text.startswith("file://") and text.lower().endswith((".json", ".yaml", ".yml"))


def _threshold(node: Node, default: float) -> float:
    if "threshold" not in node:
        return default
    return least_score(node["threshold"])


def _equals(node: Node) -> Spec:
    value = node["value"].data
    if isinstance(value, str) and _is_data_file(value):
        value = data_value(node)
    if isinstance(value, dict | list):
        return _spec("json-match", expected=value)
    return _spec("equals", expected=string_value(node))


def _is_json(node: Node) -> Spec:
    return _spec("json-schema", schema=data_value(node)) if "value" in node else _spec("is-json")


def _contains_json(node: Node) -> Spec:
    """Return the spec for a JSON object within the answer; arrays, such as the [1] of a reference, do not count."""
    schema = data_value(node) if "value" in node else {"type": "object"}
    return _spec("json-schema", schema=schema, extract="any")


def _word_count(node: Node) -> Spec:
    value = node["value"]
    if isinstance(value.data, dict):
        value.keys("min", "max")
        limits = {key: value[key].number() for key in ("min", "max") if key in value}
        if not limits or limits.get("min", 0) > limits.get("max", limits.get("min", 0)):
            raise value.refuse(f"got {value.data}, wanted min, max, or both")
        return _spec("word-count", **limits)
    if isinstance(value.data, str) and re.fullmatch(r"\d{1,9}", value.data):
        value = value.replaced(int(value.data))
    count = value.number()
    return _spec("word-count", min=count, max=count)


def _similarity(measure: str, default: float) -> Callable[[Node], Spec]:
    return lambda node: _spec(
        "text-similarity", measure=measure, expected=string_value(node), threshold=_threshold(node, default)
    )


def judged(node: Node, criteria: str, threshold: float | None = None) -> Spec:
    """Return the spec of a judge that scores by criteria. `provider` names its model."""
    if not criteria.strip():
        raise node["value"].refuse("got no criteria, wanted text")
    if "threshold" in node:
        threshold = least_score(node["threshold"])
    return _spec("llm-judge", criteria=criteria, threshold=threshold, **judge_settings(node["provider"]))


_JUDGE_SETTINGS: Final = {"temperature": "temperature", "max_tokens": "maxOutputTokens"}


def judge_settings(node: Node) -> Spec:
    """Return the settings of a judge that a grading provider names: its model and parameters. Raises InvalidDocument.

    node: a name, a mapping with id and config, or a mapping of names by kind, of which `text` is the judge's.
    """
    if node.data is None:
        return {}
    if "text" in node:
        return judge_settings(node["text"])
    given: Spec = {}
    if isinstance(node.data, dict):
        node.keys("id", "config")
        if "config" in node:
            config = node["config"]
            config.keys(*_JUDGE_SETTINGS)
            given = {_JUDGE_SETTINGS[key]: config[key].number() for key in config.mapping()}
        node = node["id"]
    found = re.fullmatch(r"openai:(?:(?:chat|responses):)?([\w.-]+)", str(node.data))
    if found is None:
        raise node.refuse(f"got {str(node.data)[:80]!r}, wanted a model of an OpenAI-compatible endpoint")
    return {"model": found[1], **given}


def _criteria(node: Node) -> str:
    value = node["value"]
    if isinstance(value.data, list):
        return "\n".join(f"- {one.text()}" for one in value)
    if isinstance(value.data, dict):
        return json.dumps(value.data, ensure_ascii=False)
    return string_value(node)


_FACTS: Final = """\
Compare the facts of the submitted answer with those of the reference. Ignore differences of style, grammar and \
punctuation. Choose one label: "subset" (it holds a part of the reference's facts and agrees with them), "superset" \
(it holds all of them and more, and agrees), "same" (the same facts), "disagrees" (it contradicts the reference), \
"differs" (they differ, but not in what matters for facts).

Reference:
{reference}

Submitted answer:
{{{{sample.output_text}}}}"""
_FACT_LABELS: Final = ("subset", "superset", "same", "disagrees", "differs")


def _factuality(node: Node) -> Spec:
    reference = string_value(node).replace("{{", "{ {")
    grader = {
        "input": [{"role": "user", "content": _FACTS.format(reference=reference)}],
        "labels": list(_FACT_LABELS),
        "passingLabels": [label for label in _FACT_LABELS if label != "disagrees"],
    }
    return _spec("llm-judge", grader=grader, **judge_settings(node["provider"]))


def _tool_used(node: Node) -> Spec:
    value = node["value"]
    names = {"name": "name", "pattern": "pattern", "min": "minCalls", "max": "maxCalls"}
    expectations = []
    for one in value if isinstance(value.data, list) else [value]:
        if isinstance(one.data, str):
            expectations.append({"name": one.data})
        else:
            one.keys(*names)
            expectations.append({names[key]: data for key, data in one.mapping().items()})
    if len(expectations) > 1 and node["type"].text().startswith("not"):
        # Each of the tools is forbidden, not only the use of all of them.
        each = [_spec("tool-use", expectations=[expectation]) for expectation in expectations]
        return _spec("any-of", evaluators=each)
    return _spec("tool-use", expectations=expectations)


def _tool_args(node: Node) -> Spec:
    value = node["value"]
    value.keys("name", "pattern", "args", "arguments", "defaults", "ignore", "mode")
    found = {key: value[key].data for key in ("name", "pattern", "defaults") if key in value}
    arguments = value.first("args", "arguments").data
    ignored = value["ignore"].data or []
    expectation = {
        **found,
        **({} if arguments is None else {"args": arguments}),
        "argsMatch": value["mode"].choice({"partial": "partial", "exact": "exact"})
        if "mode" in value
        else "partial",
        "ignore": [ignored] if isinstance(ignored, str) else ignored,
    }
    return _spec("tool-use", expectations=[expectation])


def _tool_sequence(node: Node) -> Spec:
    value = node["value"]
    mode: str = "in_order"
    if isinstance(value.data, dict):
        value.keys("mode", "steps")
        mode = value["mode"].choice({"in_order": "in_order", "exact": "exact"}) if "mode" in value else mode
        value = value["steps"]
    if not value.list():
        raise value.refuse("got no steps; wanted at least one")
    return _spec("trajectory", mode=mode, expected=value.list(), argsMatch="ignore")


def _tool_f1(node: Node) -> Spec:
    spec = _spec("trajectory", mode="unordered", expected=list_value(node), score="f1", argsMatch="ignore")
    if "threshold" in node:
        spec["threshold"] = least_score(node["threshold"])
    return spec


def _regex(node: Node) -> Spec:
    return _spec("regex", pattern=searched(node))


def _levenshtein(node: Node) -> Spec:
    most = node["threshold"].number() if "threshold" in node else 5
    return _spec("levenshtein", expected=string_value(node), maxDistance=int(most))


_KINDS: Final[Mapping[str, Callable[[Node], Spec]]] = {
    "contains": lambda node: _spec("contains", text=searched(node)),
    "icontains": lambda node: _spec("icontains", text=searched(node)),
    "contains-all": lambda node: _spec("contains-all", substrings=list_value(node)),
    "contains-any": lambda node: _spec("contains-any", substrings=list_value(node)),
    "icontains-all": lambda node: _spec("icontains-all", substrings=list_value(node)),
    "icontains-any": lambda node: _spec("icontains-any", substrings=list_value(node)),
    "starts-with": lambda node: _spec("starts-with", text=searched(node)),
    "equals": _equals,
    "regex": _regex,
    "is-json": _is_json,
    "contains-json": _contains_json,
    "latency": lambda node: _spec("latency", maxMs=node["threshold"].number()),
    "cost": lambda node: _spec("cost", maxUsd=node["threshold"].number()),
    "word-count": _word_count,
    "finish-reason": lambda node: _spec("finish-reason", allowed=[string_value(node)]),
    "levenshtein": _levenshtein,
    "rouge-n": _similarity("rouge-1", 0.75),
    "bleu": _similarity("bleu", 0.5),
    "gleu": _similarity("gleu", 0.5),
    "llm-rubric": lambda node: judged(node, _criteria(node)),
    "model-graded-closedqa": lambda node: judged(node, _criteria(node)),
    "g-eval": lambda node: judged(node, _criteria(node), 0.7),
    "factuality": _factuality,
    "model-graded-factuality": _factuality,
    "tool-call-f1": _tool_f1,
    "trajectory:tool-used": _tool_used,
    "trajectory:tool-args-match": _tool_args,
    "trajectory:tool-sequence": _tool_sequence,
}
KNOWN: Final = frozenset({*_KINDS, "assert-set"})
_WITH_THRESHOLD: Final = (
    *("latency", "cost", "levenshtein", "rouge-n", "bleu", "gleu"),
    *("llm-rubric", "model-graded-closedqa", "g-eval", "tool-call-f1"),
)
# Kinds that ask a model.
JUDGED: Final = frozenset(
    {"llm-rubric", "model-graded-closedqa", "g-eval", "factuality", "model-graded-factuality"}
)
