"""Converts AgentV's suites: YAML, or JSONL with a YAML file of the same name beside it."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from ..documents import Document, read_document
from .assertions import KNOWN, Spec, least_score, searched, spec_of
from .assertions import REFUSED as PROMPTFOO_REFUSED
from .node import (
    Converted,
    Node,
    Places,
    asked,
    convert_cases,
    convert_each,
    evaluators_of,
    is_agentv,
)
from .variables import check_values, rendered

_CASES: Final = ("tests", "cases", "evalcases", "eval_cases", "testcases")
_INPUT: Final = ("input", "input_messages")
_EXPECTED: Final = ("expected_output", "expected_messages", "reference_answer")
_CRITERIA: Final = ("criteria", "expected_outcome", "outcome")
_CHECKS: Final = ("evaluators", "assert", "assertions")
_DEFAULT_THRESHOLD: Final = 0.8

_WORKSPACE: Final = (
    "evald does not prepare workspaces for agents; prepare it in the agent, or before `evald test`"
)
_ABOUT: Final = ("version", "author", "license", "requires", "tags", "dataset", "category")
_KEYS: Final = (
    *(
        *_CASES,
        *_CHECKS,
        "input",
        "evaluator",
        "grader",
        "target",
        "targets",
        "providers",
        "execution",
        *_ABOUT,
    ),
    *("name", "suite", "description", "metadata", "$schema", "prompts", "threshold", "vars"),
    *("evaluate_options", "default_test", "repeat", "env"),
)
_JUDGE_BUDGET: Final = "evald limits the cost of judges on the server; see `judge_budget`"
_NO_CODE: Final = "evald does not run code of the suite"
_REPEAT: Final = "AgentV replaced it by `repeat`, with `count` and `strategy`"
_LIMITS: Final = {
    **dict.fromkeys(("budget_usd", "budgetUsd", "total_budget_usd"), _JUDGE_BUDGET),
    **dict.fromkeys(("timeout_seconds", "agent_timeout_ms"), "set the timeout of the connector"),
}
_REFUSED_KEYS: Final = {
    **_LIMITS,
    **dict.fromkeys(("runs", "early_exit"), _REPEAT),
    "extensions": _NO_CODE,
    "scenarios": "evald has only tests; write each combination as a test",
    "input_files": "write the content into the input, or use a block {type: file, value: ...}",
    "workspace": _WORKSPACE,
    "environment": _WORKSPACE,
    "preprocessors": "evald does not run code of the suite on its files",
    "experiment": "choose the target with --target",
    "imports": "a suite of evald is one file; copy the imported cases into it",
}
_TURN_KEYS: Final = (*_INPUT, *_EXPECTED, *_CRITERIA, *_CHECKS, "id")
_CASE_KEYS: Final = (
    *(*_TURN_KEYS, "evaluator", "grader", "execution", "description", "note", "conversation_id", "dataset"),
    *("rubrics", "vars", "tags", "metadata", "mode", "turns", "aggregation", "threshold", "weight", "target"),
    *("repeat", "run", "options", "suite"),
)
_DEFAULT_TEST_KEYS: Final = ("vars", "assert", "options", "metadata", "description")
_NO_TRANSFORM: Final = dict.fromkeys(("transform", "postprocess", "preprocessors"), _NO_CODE)
_RUN_KEYS: Final = ("max_concurrency", "repeat")
_REFUSED_CASE_KEYS: Final = {
    "workspace": _WORKSPACE,
    "depends_on": "cases of evald are independent of each other",
    "input_files": "write the content into the input, or use a block {type: file, value: ...}",
    "on_turn_failure": "evald always runs all turns",
    "window_size": "evald's judge reads the whole conversation; see `includeHistory`",
    "on_dependency_failure": "cases of evald are independent of each other",
    "include": "a suite of evald is one file; copy the included cases into it",
}
_EXECUTION_KEYS: Final = (
    *("target", "targets", *_CHECKS, "skip_defaults", "trials", "repeat", "threshold"),
    *("workers", "max_concurrency", "cache", "verbose", "fail_on_error"),
)
_REFUSED_EXECUTION_KEYS: Final = {**_LIMITS, **dict.fromkeys(("runs", "early_exit"), _REPEAT)}
_NO_SKILLS: Final = "evald reads tool calls, not a coding agent's skills; use `tool-use`"
_REFUSED: Final[Mapping[str, str]] = {
    **PROMPTFOO_REFUSED,
    **dict.fromkeys(("skill-trigger", "skill-used", "not-skill-used"), _NO_SKILLS),
    "agent-judge": "evald's judge has no workspace",
    "expected-messages": "use `tool_trajectory`, with the calls under `expected`",
    "agent-rubric": "evald's judge has no workspace",
}


def is_it(data: Any) -> bool:
    """Return whether data are an AgentV suite, by keys that evald's own suites do not have."""
    if not isinstance(data, Mapping):
        return False
    if any(key in data for key in ("tests", "evalcases", "eval_cases", "testcases")):
        return is_agentv(data) or "providers" not in data
    own = ("cases" in data and "execution" in data) or str(data.get("$schema", "")).startswith("agentv")
    # The YAML file beside a JSONL file has no cases.
    return own or ("dataset" in data and ("execution" in data or "evaluator" in data or "grader" in data))


def convert(document: Document) -> Converted:
    """Convert a suite. Raises InvalidDocument for a feature without a counterpart."""
    root = Node.of(document)
    if not any(key in root for key in _CASES):
        return convert_jsonl(Path(document.file).with_suffix(".jsonl"))
    return _Suite(root).converted(_cases(root))


def convert_jsonl(path: Path) -> Converted:
    """Convert a JSONL file with one case per line, and the YAML file beside it if there is one."""
    beside = next(
        (found for suffix in (".yaml", ".yml") if (found := path.with_suffix(suffix)).is_file()), None
    )
    document = read_document(beside) if beside is not None else Document({}, {(): 1}, str(path))
    root = Node.of(document)
    return _Suite(root, path.stem).converted(root.json_lines(path))


def _cases(root: Node) -> Iterator[Node]:
    found = root.first(*_CASES)
    if isinstance(found.data, str):
        yield from _case_file(found)
        return
    for one in found:
        if isinstance(one.data, str):
            yield from _case_file(one)
        else:
            yield one


def _case_file(node: Node) -> Iterator[Node]:
    """Yield the cases of a file that the suite names."""
    path = node.file()
    if path.suffix not in (".yaml", ".yml", ".json", ".jsonl"):
        raise node.refuse("unknown type of file; wanted .yaml, .json or .jsonl")
    yield from node.json_lines(path) if path.suffix == ".jsonl" else node.open()


_Fill: TypeAlias = Callable[[Node], Node]


class _Suite:
    """The settings of a suite for all its cases."""

    def __init__(self, root: Node, stem: str = "") -> None:
        root.keys(*_KEYS, refused=_REFUSED_KEYS)
        _check_texts(root)
        self._root = root
        self._execution = _execution(root)
        names = (root[key].data for key in ("name", "suite", "dataset"))
        self._name = next(filter(None, names), None) or stem or Path(root.document.file).name.split(".")[0]
        self._targets = _target_names(root, self._execution)
        self._default = _default_test(root)
        self._prompts = list(_prompts(root))
        self._options = root["evaluate_options"]
        if self._options.data is not None:
            self._options.keys(*_RUN_KEYS, refused=_LIMITS)
        if "env" in root:
            root["env"].warn("ignored: set the variables in the environment of evald")
        # Criteria of cases and turns by which no evaluator judges.
        self._unjudged: list[Node] = []

    def converted(self, cases: Iterator[Node]) -> Converted:
        """Return the suite with its cases."""
        root = self._root
        suite: dict[str, Any] = {"name": str(self._name)}
        if "description" in root:
            suite["description"] = root["description"].text()
        if self._targets:
            suite["targets"] = self._targets
        metadata = {key: root[key].data for key in _ABOUT if key in root}
        metadata |= root["metadata"].mapping() if "metadata" in root else {}
        if metadata:
            suite["metadata"] = metadata
        threshold = _one_of(root["threshold"], self._execution["threshold"])
        least = _DEFAULT_THRESHOLD if threshold.data is None else threshold.number()
        suite["options"] = {"aggregation": "weighted_mean", "threshold": least}
        suite |= _trials(
            _one_of(
                self._options["repeat"], root["repeat"], self._execution["repeat"], self._execution["trials"]
            )
        )
        if suite.get("min_passed") == suite.get("trials"):
            suite.pop("min_passed", None)  # all, by default
        workers = _one_of(
            self._options["max_concurrency"], self._execution.first("workers", "max_concurrency")
        )
        if workers.data is not None:
            suite["max_concurrency"] = workers.integer()
        found, places = convert_cases(cases, self._cases)
        if not found:
            raise root.refuse("missing; wanted at least one case")
        if self._unjudged:
            count = len(self._unjudged)
            self._unjudged[0].warn(f"no evaluator judges by the criteria (cases and turns: {count})")
        return Converted({**suite, "cases": found}, places, root.warnings)

    def _cases(self, node: Node) -> Iterator[tuple[dict[str, Any], Places]]:
        """Yield a case for every prompt."""
        node.keys(*_CASE_KEYS, refused=_REFUSED_CASE_KEYS)
        if node.document is not self._root.document:
            _check_texts(node)
        if "id" not in node:
            raise node.refuse("the case has no id")
        variables: dict[str, Any] = {}
        for place in (self._root, self._default, node):
            if "vars" in place:
                variables |= place["vars"].mapping()
        check_values(variables, node["vars"])
        fill = self._fill(node, variables)
        texts = fill(node.replaced({key: value for key, value in node.data.items() if key != "vars"}))
        node = node.replaced({**texts.data, "vars": variables})
        own = any(key in node for key in (*_INPUT, "turns"))
        asks = [None] if own or not self._prompts else [fill(prompt) for prompt in self._prompts]
        for number, prompt in enumerate(asks, 1):
            made, places = self._case(node, prompt, fill)
            yield made if len(asks) == 1 else {**made, "id": f"{made['id']}.{number}"}, places

    def _fill(self, node: Node, variables: Mapping[str, Any]) -> _Fill:
        """Return a function that fills in the variables of a case."""
        if not variables and not self._prompts:
            return lambda one: one  # an older file, whose texts may contain braces
        expected = node.first(*_EXPECTED).data
        known = {"expected_output": expected, **variables, "vars": variables}
        if known["expected_output"] is None:
            del known["expected_output"]
        return lambda one: one.replaced(rendered(one.data, known, one, whole=True))

    def _case(self, node: Node, prompt: Node | None, fill: _Fill) -> tuple[dict[str, Any], Places]:
        made: dict[str, Any] = {"id": node["id"].text()}
        places: Places = {}
        execution = _execution(node)
        run = node["run"]
        if run.data is not None:
            run.keys("threshold", "repeat", refused=_LIMITS)
        if "options" in node:
            node["options"].keys("repeat", refused=_NO_TRANSFORM)
        for key in ("trials", "workers", "max_concurrency"):
            if key in execution:
                raise execution[key].refuse(
                    "applies to the whole suite; wanted it in the suite's `execution`"
                )
        targets = _target_names(node, execution)
        if targets and targets != self._targets:
            raise (execution if "target" in execution else node)["target"].refuse(
                f"evald runs all cases of a suite against the same target; move the case to a suite for {targets[0]!r}"
            )
        if "description" in node:
            made["description"] = node["description"].text()
        made |= {key: node[key].data for key in ("tags", "weight") if key in node}
        made |= _trials(
            _one_of(node["repeat"], node["options"]["repeat"], run["repeat"], execution["repeat"])
        )
        metadata = {
            key: node[key].data for key in ("conversation_id", "note", "dataset", "suite") if key in node
        }
        for place in (self._default, node):
            metadata |= place["metadata"].mapping() if "metadata" in place else {}
        if metadata:
            made["metadata"] = metadata
        expected = _one_of(node.first(*_EXPECTED), node["vars"]["expected_output"])
        criteria = node.first(*_CRITERIA).text() if any(key in node for key in _CRITERIA) else None
        if "turns" in node or "mode" in node:
            if expected.data is not None:
                raise expected.refuse("given together with turns; wanted it in each turn")
            made["turns"] = []
            for index, (turn, inner) in enumerate(self._turns(node)):
                made["turns"].append(turn)
                places |= {("turns", index, *path): one for path, one in inner.items()}
            if any(key in node for key in _INPUT):
                made["messages"] = _listed(self._input(node, execution, None))
            elif "input" in self._root and not _skips_defaults(execution):
                made["messages"] = _listed(_messages(self._root["input"]))
        else:
            if "aggregation" in node:
                raise node["aggregation"].refuse("needs `turns`")
            made |= asked(self._input(node, execution, prompt))
            if not made["input"]:
                raise node.first(*_INPUT).refuse("ends with an answer; wanted a user message at the end")
        if expected.data is not None:
            made["expected"] = _expected(expected)
        judge = _Judge(criteria, expected.data is not None)
        made["evaluators"], of_case = evaluators_of(self._evaluators(node, execution, judge, fill))
        places |= of_case
        self._note_unjudged(node, judge)
        # The list has the suite's evaluators already, unless the case skips them.
        made["inherit"] = False
        threshold = _one_of(node["threshold"], run["threshold"], execution["threshold"])
        if threshold.data is not None:
            made["options"] = {"aggregation": "weighted_mean", "threshold": threshold.number()}
        return made, places

    def _input(self, node: Node, execution: Node, prompt: Node | None) -> Any:
        given = node.first(*_INPUT) if prompt is None else prompt
        if given.data is None:
            raise node.refuse("the case has no input")
        messages = _messages(given)
        if "input" in self._root and not _skips_defaults(execution):
            before = _messages(self._root["input"])
            return [*_listed(before), *_listed(messages)]
        return messages

    def _evaluators(
        self, node: Node, execution: Node, judge: "_Judge", fill: _Fill
    ) -> Iterator[tuple[Node, Spec]]:
        """Yield the evaluators of a case: its own, then the suite's; without any, the judge of its criteria."""
        found: list[tuple[Node, Spec]] = []
        own = _lists(node, execution)
        suite = [] if _skips_defaults(execution) else _lists(self._root, self._execution)
        default = [self._default["assert"]] if "assert" in self._default else []
        for place in (*own, *map(fill, (*default, *suite))):
            found += judge.specs(place)
        if "rubrics" in node:
            found.append((node["rubrics"], judge.items(node["rubrics"], "rubrics")))
        if not found and not (node["turns"].data and judge.criteria is None):
            found.append((node, self._legacy(node, judge)))
        elif found:
            for key in ("evaluator", "grader"):
                if key in node:
                    node[key].warn("not used, because the list of evaluators goes before it")
        yield from found

    def _legacy(self, node: Node, judge: "_Judge") -> Spec:
        """Return the judge. Warn of the deprecated field `grader`, and if `evaluator` or `grader` names an unknown type."""
        for place in (node, self._root):
            if "grader" in place:
                place["grader"].warn("`grader` is deprecated; use `evaluator`")
            key = "evaluator" if "evaluator" in place else "grader"
            if key in place:
                name = place[key].text()
                kind = name.replace("_", "-")
                if kind not in _JUDGES:
                    place[key].warn(f"unknown evaluator {name[:80]!r}; an llm-judge is used in its place")
                return judge.spec(node, {})
        return judge.spec(node, {})

    def _turns(self, node: Node) -> Iterator[tuple[dict[str, Any], Places]]:
        if "mode" in node:
            node["mode"].choice({"conversation": None})
        way = node["aggregation"].choice({"mean": "mean", "min": "min"}) if "aggregation" in node else "mean"
        if way == "mean":
            node.warn("evald requires every turn to pass; AgentV uses the mean of the turns")
        for turn in node["turns"]:
            turn.keys(*_TURN_KEYS)
            expected = turn.first(*_EXPECTED)
            made: dict[str, Any] = {"input": _messages(turn.first(*_INPUT))}
            if expected.data is not None:
                made["expected"] = _expected(expected)
            criteria = turn.first(*_CRITERIA).text() if any(key in turn for key in _CRITERIA) else None
            judge = _Judge(criteria, expected.data is not None)
            specs, places = evaluators_of(
                spec for place in _lists(turn, turn["execution"]) for spec in judge.specs(place)
            )
            if criteria is not None and not specs:
                specs = [judge.spec(turn, {})]
            if specs:
                made["evaluators"] = specs
            self._note_unjudged(turn, judge)
            yield made, places

    def _note_unjudged(self, node: Node, judge: "_Judge") -> None:
        if judge.criteria is not None and not judge.criteria_used:
            self._unjudged.append(node.first(*_CRITERIA))


def _execution(node: Node) -> Node:
    found = node["execution"]
    if found.data is not None:
        for key in found.keys(*_EXECUTION_KEYS, refused=_REFUSED_EXECUTION_KEYS):
            if key in ("cache", "fail_on_error", "verbose"):
                found[key].warn(
                    "ignored: evald caches only answers of judges, and an error is never a verdict"
                )
    return found


def _skips_defaults(execution: Node) -> bool:
    return "skip_defaults" in execution and execution["skip_defaults"].flag()


def _check_texts(node: Node) -> None:
    """Raise InvalidDocument for an environment variable in any text."""
    if isinstance(node.data, str) and "${{" in node.data:
        raise node.refuse(
            "contains an environment variable (${{...}}), which evald does not fill in; write the value"
        )
    inner = range(len(node.data)) if isinstance(node.data, list) else node.data
    for key in inner if isinstance(inner, dict | range) else ():
        _check_texts(node[key])


def _lists(node: Node, execution: Node) -> list[Node]:
    found = node.first(*_CHECKS)
    return [one for one in (found, execution.first(*_CHECKS)) if one.data is not None]


def _one_of(*nodes: Node) -> Node:
    """Return the first node that has a value; the last if none has."""
    return next((node for node in nodes if node.data is not None), nodes[-1])


def _target_names(node: Node, execution: Node) -> list[str]:
    for place in (execution, node):
        found = place.first("target", "targets", "providers")
        if isinstance(found.data, list):
            return [_target_name(one) for one in found]
        if found.data is not None:
            return [_target_name(found)]
    return []


def _target_name(node: Node) -> str:
    if not isinstance(node.data, dict):
        return node.text()
    if "hooks" in node:
        raise node["hooks"].refuse(f"not supported: {_NO_CODE}")
    name = _one_of(*(node[key] for key in ("label", "name", "id", "extends"))).text()
    if node.data.keys() - {"label", "name", "id"}:
        node.warn(
            f"only its name is read; store a connector named {name[:80]!r}, or choose one with --target"
        )
    return name


def _prompts(root: Node) -> Iterator[Node]:
    """Yield the prompts: texts, also of files, or lists of messages."""
    for given in root["prompts"] if "prompts" in root else []:  # noqa: SIM401 - a Node has no get
        one = given
        if isinstance(one.data, dict):
            one.keys("id", "label", "prompt", "raw")
            one = one.first("prompt", "raw")
        if isinstance(one.data, str) and one.data.startswith("file://"):
            if not one.data.endswith((".md", ".txt")):
                raise one.refuse("unknown type of prompt file; wanted .txt or .md")
            one = one.replaced(one.file_text())
        if not isinstance(one.data, str | list):
            raise one.refuse("wanted text or a list of messages")
        yield one


def _default_test(root: Node) -> Node:
    node = root["default_test"]
    if node.data is None:
        return node
    node = node.open() if isinstance(node.data, str) else node
    node.keys(*_DEFAULT_TEST_KEYS)
    if "options" in node:
        node["options"].keys(refused=_NO_TRANSFORM)
    return node


def _trials(node: Node) -> dict[str, Any]:
    """Return a number of trials, or their count and strategy, as keys of a suite or case."""
    if node.data is None:
        return {}
    if not isinstance(node.data, dict):
        return {"trials": node.integer(), "min_passed": 1}
    limits = dict.fromkeys(("cost_limit_usd", "costLimitUsd"), _JUDGE_BUDGET)
    node.keys("count", "strategy", "early_exit", refused=limits)
    if "early_exit" in node and node["early_exit"].flag():
        node["early_exit"].warn("ignored: evald runs all trials; the verdict is the same")
    strategy = str(node["strategy"].data or "pass_at_k")
    if strategy not in ("pass_at_k", "pass_any", "pass_all"):
        raise node["strategy"].refuse(
            f"{strategy[:40]!r} is not supported: evald counts the trials that pass; see `min_passed`"
        )
    count = node["count"].integer()
    return {"trials": count, "min_passed": count if strategy == "pass_all" else 1}


def _listed(messages: Any) -> list[Any]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def _messages(node: Node) -> Any:
    """Return an input as text, or as messages with the text of the files in their content."""
    if isinstance(node.data, str):
        return node.data
    if isinstance(node.data, dict):
        return json.dumps(node.data, ensure_ascii=False)
    return [_message(one) for one in node]


def _message(node: Node) -> dict[str, Any]:
    data = dict(node.mapping())
    if isinstance(data.get("content"), list):
        data["content"] = "\n\n".join(_block(one) for one in node["content"])
    elif isinstance(data.get("content"), dict):
        data["content"] = json.dumps(data["content"], ensure_ascii=False)
    return data


def _block(node: Node) -> str:
    """Return the text of a content block; for a file, its content."""
    node.keys("type", "value", "text")
    kind = node["type"].choice({"text": "text", "file": "file"})
    value = node.first("value", "text")
    if kind == "text":
        return value.text()
    return f"<file path={json.dumps(value.text())}>\n{value.file_text()}\n</file>"


def _expected(node: Node) -> dict[str, Any] | str:
    """Return the expected answer: text, data if the content is data, or messages."""
    if isinstance(node.data, str):
        return node.data
    if isinstance(node.data, bool | int | float):
        return json.dumps(node.data)
    if isinstance(node.data, dict):
        return _reference(node.data)
    messages = list(node)
    if len(messages) == 1 and "tool_calls" not in messages[0]:
        content = messages[0]["content"]
        if isinstance(content.data, dict):
            return _reference(content.data)
        text = _message(messages[0]).get("content")
        return text if isinstance(text, str) else content.text()
    return {"messages": [_message(one) for one in messages]}


def _reference(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": dict(data), "text": json.dumps(data, ensure_ascii=False)}


class _Judge:
    """Makes specs of evaluators. Judges default to the case's criteria, and get its expected answer."""

    def __init__(self, criteria: str | None, expected: bool) -> None:
        self.criteria = criteria
        self.criteria_used = False
        self._expected = expected

    def specs(self, node: Node) -> Iterator[tuple[Node, Spec]]:
        """Yield the specs of a list of evaluators with their nodes. Texts in it become the items of one rubric.

        Raises InvalidDocuments with the problems of all of them.
        """
        texts = [one for one in node if isinstance(one.data, str)]
        if texts:
            items = self.items(node.replaced([one.data for one in texts]), "criteria")
            # Each text counts like an evaluator.
            yield texts[0], {**items, "weight": len(texts)} if len(texts) > 1 else items
        yield from convert_each(
            (one for one in node if not isinstance(one.data, str)), lambda one: [self._one(one)]
        )

    def items(self, node: Node, name: str) -> Spec:
        """Return the spec of a judge with items, which sees the expected answer, too."""
        spec = _items(node, name)
        if self._expected:
            spec["config"]["includeExpected"] = True
        return spec

    def _one(self, node: Node) -> Spec:
        if "include" in node:
            raise node["include"].refuse("evald reads no templates of assertions; write them out")
        kind = node["type"].text().replace("_", "-")
        plain = kind.removeprefix("not-")
        if plain in _REFUSED or kind in _REFUSED:
            raise node["type"].refuse(f"{kind} is not supported: {_REFUSED.get(kind) or _REFUSED[plain]}")
        keys = dict(node.mapping())
        common = _common(node, keys)
        if kind != plain and "negate" in common:
            raise node["negate"].refuse("given together with `not-`; give one of the two")
        if plain in _JUDGES:
            spec = self.spec(node, keys)
        elif plain in ("composite", "assert-set"):
            spec = self._set(node, keys)
        elif plain in _KINDS:
            spec = _KINDS[plain](node, keys)
        else:
            keys = {key: value for key, value in keys.items() if key not in ("value", "threshold")}
            if plain not in KNOWN:
                raise node["type"].unknown_assertion({*KNOWN, *_JUDGES, *_KINDS, "composite"})
            spec = spec_of(kind, node)
        if keys:
            known = (_EVALUATOR_KEYS | node.mapping().keys()).difference(keys)
            raise node.unknown_key(next(iter(keys)), known, all_known=False)
        return {**spec, **common, **({"negate": True} if kind != plain else {})}

    def spec(self, node: Node, keys: dict[str, Any]) -> Spec:
        """Return the spec of a judge."""
        for key in ("target", "grader_target", "max_steps", "config", "temperature", "max_output_tokens"):
            if keys.pop(key, None) is not None:
                raise node[key].refuse(
                    "not supported: judges are configured on evald's server; see docs/judge-endpoints.md"
                )
        config: dict[str, Any] = {}
        rubrics = keys.pop("rubrics", None)
        # Without keys the node may be the case itself, whose criteria are in self.criteria.
        given = node.replaced(None) if not keys else node.first("criteria", "value")
        _pop(keys, "criteria", "value")
        if rubrics is not None:
            if given.data is not None:
                raise given.refuse("given together with rubrics; give one of the two")
            config = _items(node["rubrics"], "")["config"]
        elif isinstance(given.data, list):
            config = _items(given, "")["config"]
        else:
            criteria = self.criteria if given.data is None else given.text()
            self.criteria_used |= given.data is None
            if criteria is None or not criteria.strip():
                raise node.refuse(
                    "the judge has no criteria; wanted `criteria` in the case or in the evaluator"
                )
            config["criteria"] = criteria
        if keys.pop("prompt", None) is not None:
            config["prompt"] = _prompt(node["prompt"])
        if keys.pop("model", None) is not None:
            config["model"] = node["model"].text()
        if keys.pop("threshold", None) is not None:
            config["threshold"] = least_score(node["threshold"])
        if self._expected:
            config["includeExpected"] = True
        return {"type": "llm-judge", "config": config}

    def _set(self, node: Node, keys: dict[str, Any]) -> Spec:
        """Return the spec of a set of evaluators: their weighted mean, or the share that passes."""
        found = node.first("assert", "assertions", "evaluators")
        _pop(keys, "assert", "assertions", "evaluators")
        children = [spec for _, spec in self.specs(found)]
        threshold = keys.pop("threshold", None)
        aggregator = node["aggregator"]
        measure = "score"
        if keys.pop("aggregator", None) is not None:
            kind = aggregator["type"].choice(
                {"weighted_average": "score", "threshold": "passed", "weighted_mean": "score"}
            )
            aggregator.keys("type", "weights", "threshold")
            measure = kind
            weights = aggregator["weights"]
            by_name = {child.get("name"): child for child in children}
            for name in weights.mapping() if "weights" in aggregator else ():
                if name not in by_name:
                    raise weights[name].refuse("no evaluator of the set has this name")
                by_name[name]["weight"] = weights[name].number()
            threshold = aggregator["threshold"].data if "threshold" in aggregator else threshold
        if threshold is None:
            threshold = _DEFAULT_THRESHOLD
        if threshold == 0:
            raise node.refuse("got a threshold of 0, which every answer reaches; wanted a threshold above 0")
        return {
            "type": "at-least",
            "config": {"evaluators": children, "threshold": threshold, "measure": measure},
        }


# For hints: "did you mean".
_EVALUATOR_KEYS: Final = frozenset(
    (
        "criteria",
        "expected",
        "metric",
        "model",
        "prompt",
        "required",
        "rubrics",
        "threshold",
        "value",
        "weight",
    )
)
_JUDGES: Final = (
    *("llm-judge", "llm-grader", "llm-rubric", "quality", "rubric", "rubrics"),
    *("model-graded-closedqa", "g-eval"),
)


def _common(node: Node, keys: dict[str, Any]) -> Spec:
    """Remove the keys that all evaluators share: description, name, weight, required, negate, min_score. Return them as a spec."""
    for name in ("type", "description"):
        keys.pop(name, None)
    spec: Spec = {}
    name = keys.pop("name", None) or keys.pop("metric", None)
    if name is not None:
        spec["name"] = str(name)
    if keys.pop("weight", None) is not None:
        weight = node["weight"].number()
        spec |= {"shadow": True} if weight == 0 else {"weight": weight}
    required = keys.pop("required", None)
    if isinstance(required, bool):
        spec |= {"required": True} if required else {}
    elif required is not None:
        spec |= {"required": True, "threshold": least_score(node["required"])}
    if keys.pop("min_score", None) is not None:
        spec["threshold"] = least_score(node["min_score"])
    if keys.pop("negate", None):
        spec["negate"] = node["negate"].flag()
    return spec


_ITEM_KEYS: Final = ("id", "outcome", "description", "text", "weight", "required", "operator")
_REFUSED_ITEM_KEYS: Final = dict.fromkeys(
    ("score_ranges", "min_score", "required_min_score"),
    "items of evald's judge are either met or not met; use a judge with `criteria`",
)


def _items(node: Node, name: str) -> Spec:
    """Return the spec of a judge with items: texts, or mappings with an id, a text, a weight and `required`."""
    items = []
    for number, one in enumerate(node, 1):
        if isinstance(one.data, str):
            items.append({"id": f"item-{number}", "text": one.data})
            continue
        one.keys(*_ITEM_KEYS, refused=_REFUSED_ITEM_KEYS)
        text = one.first("outcome", "description", "text").text()
        if "operator" in one:
            against = one["operator"].choice({"correctness": False, "contradiction": True})
            text = f"Does not contradict: {text}" if against else text
        item: dict[str, Any] = {"id": str(one["id"].data or f"item-{number}"), "text": text}
        items.append(item | {key: one[key].data for key in ("weight", "required") if key in one})
    named = {"name": name} if name else {}
    return {"type": "llm-judge", **named, "config": {"items": items}}


def _prompt(node: Node) -> str:
    """Return a prompt: the text of a file, or the text itself."""
    if isinstance(node.data, dict):
        raise node.refuse("got a prompt that a script creates, which is not supported; write the prompt")
    text = node.text()
    if text.startswith("file://") or ("\n" not in text and text.endswith((".md", ".txt", ".prompt"))):
        text = node.file_text()
    if "{{" in text:
        raise node.refuse(
            "contains variables ({{...}}); remove them: evald adds the conversation after the prompt"
        )
    return text


def _pop(keys: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove keys. Return those that are not null."""
    found = {name: keys.pop(name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _code(node: Node, keys: dict[str, Any]) -> Spec:
    found = node.first("script", "command")
    _pop(keys, "script", "command")
    if found.data is None:
        raise node.refuse("the code evaluator has no script")
    config: dict[str, Any] = {"command" if isinstance(found.data, list) else "script": found.data}
    if "cwd" in node:
        config["cwd"] = keys.pop("cwd")
    timeouts = [keys.pop(name, None) for name in ("timeout_ms", "agent_timeout_ms")]
    timeout = next((one for one in timeouts if one is not None), None)
    if timeout is not None:
        config["timeoutMs"] = timeout
    if keys.pop("target", None) is not None:
        raise node["target"].refuse("not supported: evald gives a script no access to a model")
    # AgentV passes all other keys to the script.
    given = node["config"].mapping() if keys.pop("config", None) is not None else {}
    further = {**given, **keys}
    keys.clear()
    return {"type": "code", "config": {**config, **({"config": further} if further else {})}}


def _limit(kind: str, limit: str, *names: str) -> Callable[[Node, dict[str, Any]], Spec]:
    def spec(node: Node, keys: dict[str, Any]) -> Spec:
        _pop(keys, *names)
        return {"type": kind, "config": {limit: node.first(*names).number(), "scoreFormula": "binary"}}

    return spec


def _token_usage(node: Node, keys: dict[str, Any]) -> Spec:
    names = {"max_total": {}, "max_input": {"inputOnly": True}, "max_output": {"outputOnly": True}}
    found = _pop(keys, *names)
    if not found:
        raise node.refuse("missing limit; wanted max_total, max_input or max_output")
    specs = [
        {"type": "token-budget", "config": {"maxTokens": node[name].number(), **names[name]}}
        for name in found
    ]
    return specs[0] if len(specs) == 1 else {"type": "all-of", "config": {"evaluators": specs}}


def _metrics(node: Node, keys: dict[str, Any]) -> Spec:
    names = {
        "max_tool_calls": "maxToolCalls",
        "max_tokens": "maxTokens",
        "max_cost_usd": "maxCostUsd",
        "max_duration_ms": "maxDurationMs",
        "max_turns": "maxTurns",
    }
    for key in ("max_llm_calls", "target_exploration_ratio", "exploration_tolerance"):
        if key in node:
            raise node[key].refuse(
                "not supported: evald reads tool calls, not the agent's model calls or their purpose"
            )
    limits = _pop(keys, *names)
    return {"type": "execution-limits", "config": {names[name]: node[name].number() for name in limits}}


def _trajectory(node: Node, keys: dict[str, Any]) -> Spec:
    mode = keys.pop("mode", "exact")
    if "minimums" in node:
        minimums = node["minimums"].mapping()
        if mode != "any_order" or "expected" in node:
            raise node["minimums"].refuse("needs `mode: any_order`")
        keys.pop("minimums")
        if not minimums:
            raise node["minimums"].refuse("is empty, so that nothing would be checked")
        wanted = [{"name": name, "minCalls": least} for name, least in minimums.items()]
        return {"type": "tool-use", "config": {"expectations": wanted}}
    expected = []
    for one in node["expected"] if "expected" in node else []:  # noqa: SIM401 - a Node has no get
        one.keys("tool", "args", "args_match", "argsMatch", "max_duration_ms")
        step: dict[str, Any] = {"tool": one["tool"].text()}
        if "args" in one and one["args"].data != "any":
            step["args"] = one["args"].data
        else:
            step["argsMatch"] = "ignore"
        way = one.first("args_match", "argsMatch").data
        if way is not None:
            step["argsMatch"] = way
        if "max_duration_ms" in one:
            step["maxDurationMs"] = one["max_duration_ms"].number()
        expected.append(step)
    keys.pop("expected", None)
    config = {"mode": mode, "score": "mode" if mode == "subset" else "recall"}
    way = keys.pop("args_match", None) or keys.pop("argsMatch", None)
    if way is not None:
        config["argsMatch"] = way
    return {"type": "trajectory", "config": {**config, **({"expected": expected} if expected else {})}}


def _field_accuracy(node: Node, keys: dict[str, Any]) -> Spec:
    matches = {"exact": "exact", "numeric_tolerance": "numeric", "numeric": "numeric", "date": "date"}
    fields = []
    for one in node["fields"]:
        known = ("path", "match", "tolerance", "relative", "required", "weight", "formats")
        one.keys(*known)
        field = {key: one[key].data for key in known if key in one and key != "formats"}
        if "formats" in one:
            one["formats"].warn("ignored: evald reads dates in all formats that it knows")
        if "match" in one:
            field["match"] = one["match"].choice(matches)
        fields.append(field)
    keys.pop("fields")
    ways = {"weighted_average": "weighted", "all_or_nothing": "all"}
    way = node["aggregation"].choice(ways) if keys.pop("aggregation", None) else "weighted"
    return {"type": "field-accuracy", "config": {"fields": fields, "aggregation": way}}


def _regex(node: Node, keys: dict[str, Any]) -> Spec:
    keys.pop("value", None)
    return {"type": "regex", "config": {"pattern": searched(node), **_pop(keys, "flags")}}


def _ends_with(node: Node, keys: dict[str, Any]) -> Spec:
    keys.pop("value", None)
    return {"type": "ends-with", "config": {"text": searched(node)}}


_KINDS: Final[Mapping[str, Callable[[Node, dict[str, Any]], Spec]]] = {
    **dict.fromkeys(("code", "code-judge", "code-grader", "script"), _code),
    "latency": _limit("latency", "maxMs", "threshold", "max_ms", "max"),
    "cost": _limit("cost", "maxUsd", "threshold", "budget", "max_usd"),
    "token-usage": _token_usage,
    "execution-metrics": _metrics,
    "tool-trajectory": _trajectory,
    "field-accuracy": _field_accuracy,
    "regex": _regex,
    "ends-with": _ends_with,
}
