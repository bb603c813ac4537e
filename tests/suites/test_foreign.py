"""Real suites of AgentV and promptfoo and real graders of OpenAI: run as they are, or refused with the reason."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from evald.convert.spec import read_spec
from evald.structs import struct_to_dict
from evald.turn import Turn
from evald.v1.result_pb2 import Verdict
from evald_server.config import Settings
from evald_server.suites.documents import InvalidDocument
from evald_server.suites.suite_file import Suite, load_suites

from ..isolation import ISOLATION
from ..vectors.replay import Call

DATA = Path(__file__).with_name("data") / "foreign"
GRADER = Path(__file__).parents[2] / "examples/code/openai_python_grader.py"

# File, number of cases, targets, words of the warnings in order.
ACCEPTED: list[tuple[str, int, list[str], list[str]]] = [
    ("agentv/assert.yaml", 4, ["llm"], []),
    ("agentv/assert-set.yaml", 2, ["llm"], []),
    ("agentv/basic.yaml", 5, ["llm"], []),
    ("agentv/basic-jsonl.yaml", 5, ["default"], []),
    ("agentv/basic-jsonl.jsonl", 5, ["default"], []),
    ("agentv/default-evaluators.yaml", 3, ["default"], ["no evaluator judges by the criteria"]),
    ("agentv/deterministic-graders.yaml", 7, ["llm"], []),
    ("agentv/rubric-examples.yaml", 4, ["default"], ["no evaluator judges by the criteria"]),
    ("agentv/tool-trajectory-demo.yaml", 6, ["mock_agent"], ["no evaluator judges by the criteria"]),
    (
        "promptfoo/adaline-eval-factuality/promptfooconfig.yaml",
        2,
        ["adaline:openai:chat:gpt-4o-mini"],
        ["no connector"],
    ),
    ("promptfoo/csv-metadata/promptfooconfig.yaml", 3, ["openai:gpt-4.1"], []),
    ("promptfoo/getting-started/promptfooconfig.yaml", 4, ["openai:gpt-4.1", "openai:o4-mini"], []),
    ("promptfoo/gpt-4o-vs-4o-mini/promptfooconfig.yaml", 4, ["openai:gpt-5", "openai:gpt-5-mini"], []),
    ("graders/hosted-run.json", 3, [], []),
    ("graders/label-model.json", 2, [], []),
    ("graders/own-multi.json", 1, [], ["--allow-code", "no pass_threshold"]),
    ("graders/python.json", 2, [], ["no pass_threshold", "--allow-code"]),
    ("graders/receipts.json", 2, [], []),
    ("graders/run-score-model.json", 1, [], ["no pass_threshold", "top_p", "seed"]),
    ("graders/string-check.json", 2, [], []),
    ("graders/text-similarity.json", 2, [], ["no pass_threshold"]),
]

# File, line, words of the reason.
REFUSED: list[tuple[str, int, str]] = [
    (
        "agentv/code-and-targets.yaml",
        10,
        "tests[0].execution.target: evald runs all cases of a suite against the same target",
    ),
    ("agentv/composite.yaml", 51, "aggregator.type: got 'code_judge', wanted one of: weighted_average"),
    (
        "agentv/execution-metrics.yaml",
        37,
        "max_llm_calls: not supported: evald reads tool calls",
    ),
    (
        "promptfoo/deepseek-r1-vs-openai-o1/promptfooconfig.yaml",
        24,
        "is not a local file; download the tests",
    ),
    (
        "promptfoo/github-action/promptfooconfig.yaml",
        1,
        "missing prompts; wanted at least one under `prompts`",
    ),
    ("promptfoo/http-provider/promptfooconfig.yaml", 23, "tests[0]: got no assertion; wanted at least one"),
    (
        "promptfoo/json-output/promptfooconfig.yaml",
        14,
        "javascript is not supported: it runs code of the suite",
    ),
    (
        "promptfoo/mistral-llama-comparison/promptfooconfig.yaml",
        7,
        "evald runs every case against every target",
    ),
    ("promptfoo/multiple-turn-conversation/promptfooconfig.yaml", 18, "conversationId joins tests"),
    ("promptfoo/openai-chat-history/promptfooconfig.yaml", 2, "prompts[0]: got template code"),
    (
        "promptfoo/openai-tools-call/promptfooconfig.yaml",
        33,
        "is-valid-openai-tools-call is not supported: it uses",
    ),
    (
        "promptfoo/rag-eval/promptfooconfig.yaml",
        18,
        "answer-relevance is not supported: it needs an embedding model",
    ),
    (
        "promptfoo/self-grading/promptfooconfig.yaml",
        10,
        "defaultTest.assert[1].type: javascript is not supported: it runs code",
    ),
    ("promptfoo/simple-cli/promptfooconfig.yaml", 12, "tests[0]: got no assertion; wanted at least one"),
    ("promptfoo/simple-csv/promptfooconfig.yaml", 3, "without filters or code"),
    (
        "promptfoo/simple-test/promptfooconfig.yaml",
        32,
        "javascript is not supported: it runs code of the suite",
    ),
    (
        "graders/push-notifications.json",
        20,
        "the items are on OpenAI's server; download them to push-notifications.jsonl",
    ),
]


def _load(path: Path, **options: Any) -> Suite:
    (suite,) = load_suites([path], **options)
    return suite


@pytest.mark.parametrize(("name", "count", "targets", "warnings"), ACCEPTED, ids=[row[0] for row in ACCEPTED])
def test_a_real_suite_is_read_as_it_is(
    name: str, count: int, targets: list[str], warnings: list[str]
) -> None:
    suite = _load(DATA / name)
    assert (suite.case_count, suite.targets) == (count, targets)
    assert len(suite.warnings) == len(warnings)
    for said, words in zip(suite.warnings, warnings, strict=True):
        assert words in said
        assert said.startswith(f"{DATA / name}:")


@pytest.mark.parametrize(("name", "line", "reason"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_has_no_counterpart_is_refused_with_file_line_and_reason(
    name: str, line: int, reason: str
) -> None:
    with pytest.raises(InvalidDocument) as refused:
        _load(DATA / name)
    problem, *_ = refused.value.problems
    assert (problem.file, problem.line) == (str(DATA / name), line)
    assert reason in problem.message


def test_every_file_is_in_one_of_the_tables() -> None:
    listed = {name for name, *_ in [*ACCEPTED, *REFUSED]}
    found = {
        str(path.relative_to(DATA))
        for pattern in (
            "agentv/*.yaml",
            "agentv/*.jsonl",
            "promptfoo/*/promptfooconfig.yaml",
            "graders/*.json",
        )
        for path in DATA.glob(pattern)
    }
    # Its formula names no grader of it and has a bracket too many, which the server refuses.
    assert found - listed == {"graders/multi.json"}
    assert not listed - found


@pytest.mark.parametrize("name", [row[0] for row in ACCEPTED])
def test_its_evaluators_compile(name: str, tmp_path: Path) -> None:
    suite = _load(DATA / name)
    for case in suite.cases:
        specs = list(case.evaluators) or list(suite.open.evaluators)
        turn = Turn([{"role": "user", "content": "?"}])
        outcome = Call(
            [read_spec(spec).to_dict() for spec in specs], turn, judge=[{}], scripts=_policy(tmp_path)
        )()
        assert outcome.refused is None


def _policy(folder: Path) -> Settings:
    """Allows the grader of the examples, and the script of AgentV's rubric example."""
    uv = folder / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    return Settings(code_isolation=ISOLATION, code_allow=[str(GRADER), str(uv)])


@pytest.mark.parametrize(
    ("name", "replies", "verdicts"),
    [
        ("string-check.json", [], "PASSED FAILED"),
        ("text-similarity.json", [], "PASSED FAILED"),
        ("python.json", [], "PASSED FAILED"),
        ("label-model.json", [{"label": "positive"}, {"label": "negative"}], "PASSED FAILED"),
        ("run-score-model.json", [{"score": 1}], "PASSED"),
        ("receipts.json", [{"score": 1}, {"score": 1}], "PASSED FAILED"),
        ("own-multi.json", [{"score": 0.7}], "FAILED"),
        ("own-multi.json", [{"score": 0.8}], "PASSED"),
        ("own-multi.json", [{"score": 2}], "ERROR"),
    ],
)
def test_a_grader_grades_recorded_samples(
    name: str, replies: list[Any], verdicts: str, tmp_path: Path
) -> None:
    suite = _load(DATA / "graders" / name)
    found = []
    for index, case in enumerate(suite.cases):
        (recorded,) = case.recorded_trials
        messages = [*case.turns[0].input, *recorded.answers[0].messages]
        turn = Turn(
            [{"role": one.role, "content": one.text} for one in messages],
            metadata=struct_to_dict(case.metadata),
        )
        judge = [{"reasoning": "so", **replies[index]}] * 2 if replies else None
        specs = [read_spec(spec).to_dict() for spec in suite.open.evaluators]
        summary = Call(specs, turn, judge=judge, scripts=_policy(tmp_path))().summary
        assert summary is not None
        found.append(Verdict.Name(summary.verdict).removeprefix("VERDICT_"))
    assert found == verdicts.split()


def test_output_items_of_a_hosted_run_are_cases_with_what_was_asked_and_answered_or_its_error() -> None:
    right, wrong, broken = _load(DATA / "graders/hosted-run.json").cases
    assert [case.case_id for case in (right, wrong, broken)] == ["item-1", "item-2", "item-3"]
    assert [(one.role, one.text) for one in right.turns[0].input] == [
        ("developer", "Answer with the topic of the headline, one word."),
        ("user", "Shares close higher after rate decision"),
    ]
    assert [case.recorded_trials[0].answers[0].messages[0].text for case in (right, wrong)] == [
        "Markets",
        "World",
    ]
    assert struct_to_dict(wrong.metadata)["results"] == [
        {"name": "topic-01", "sample": None, "passed": False, "score": 0.0}
    ]
    [trial] = broken.recorded_trials
    assert not trial.answers
    assert trial.error.code == "RECORDED_ERROR"
    assert "Rate limit reached" in trial.error.message


def test_rows_that_the_dashboard_exports_are_cases_like_output_items(tmp_path: Path) -> None:
    shutil.copy(DATA / "graders/hosted-run.json", tmp_path / "topics.json")
    row = {
        "run_id": "evalrun_01",
        "item": {"topic": "Markets"},
        "grades": {"topic": 1},
        "passes": {"topic": True},
    }
    answer = {
        "trajectory": [{"role": "user", "content": "Shares?"}],
        "outputs": [{"role": "assistant", "content": "Markets"}],
    }
    error = {
        "trajectory": [],
        "outputs": [],
        "error": {"type": "invalid_request_error", "message": "no role"},
    }
    rows = [
        {**row, "data_source_idx": index, "sample": sample} for index, sample in ((7, answer), (0, error))
    ]
    (tmp_path / "topics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answered, broken = _load(tmp_path / "topics.json").cases
    assert (answered.case_id, broken.case_id) == ("item-7", "item-0")
    assert answered.turns[0].input[0].text == "Shares?"
    assert answered.recorded_trials[0].answers[0].messages[0].text == "Markets"
    assert struct_to_dict(answered.metadata)["results"] == {"grades": {"topic": 1}, "passes": {"topic": True}}
    assert "no role" in broken.recorded_trials[0].error.message


def test_a_file_is_the_same_whatever_its_name(tmp_path: Path) -> None:
    copy = tmp_path / "other.yml"
    shutil.copy(DATA / "agentv/assert.yaml", copy)
    ours, theirs = _load(copy), _load(DATA / "agentv/assert.yaml")
    assert list(ours.cases) == list(theirs.cases)


def test_the_name_of_a_promptfoo_suite_depends_on_its_file_and_not_on_how_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "chat"
    folder.mkdir()
    for name in ("promptfooconfig.yaml", "regression.yaml"):
        shutil.copy(DATA / "promptfoo/getting-started/promptfooconfig.yaml", folder / name)
    assert [_load(path).name for path in sorted(folder.iterdir())] == ["chat", "regression"]
    monkeypatch.chdir(folder)
    assert _load(Path("promptfooconfig.yaml")).name == "chat"


def test_files_that_promptfoo_tests_name_are_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "promptfooconfig.yaml").write_text(
        "prompts: ['{{text}}']\nproviders: [echo]\ntests: ['file://tests/*.yaml']\n"
    )
    (tmp_path / "tests/one.yaml").write_text(
        "- {vars: {text: file://text.txt}, assert: [{type: equals, value: file://beside.txt}]}\n"
    )
    (tmp_path / "text.txt").write_text("of the configuration")
    (tmp_path / "tests/text.txt").write_text("of the test")
    (tmp_path / "tests/beside.txt").write_text("found here alone")
    [case] = _load(tmp_path / "promptfooconfig.yaml").cases
    assert case.turns[0].input[0].text == "of the configuration"
    assert struct_to_dict(case.evaluators[0].config) == {"expected": "found here alone"}


def test_every_judge_of_an_agentv_case_sees_the_expected_answer(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "target: t\ntests:\n- {id: a, input: x, expected_output: y, rubrics: [r], assert: [text, {type: llm-rubric, value: z}]}\n"
    )
    [case] = _load(suite).cases
    assert [struct_to_dict(spec.config)["includeExpected"] for spec in case.evaluators] == [True] * 3


def test_a_warning_about_what_all_cases_share_is_given_once(tmp_path: Path) -> None:
    fields = "[{path: a, match: date, formats: [YYYY]}]"
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        f"assert: [{{type: field_accuracy, fields: {fields}}}]\ntarget: t\n"
        "tests: [{id: a, input: x, expected_output: {a: '1'}}, {id: b, input: x, expected_output: {a: '1'}}]\n"
    )
    assert len(_load(suite).warnings) == 1


# Suite, line, words of the refusal. AgentV's, promptfoo's, a grader's.
BAD: dict[str, tuple[str, int, str]] = {
    "grader: a list of evals": (
        '{"data": [{"object": "eval", "testing_criteria": []}],\n "object": "list"}',
        2,
        "object: this is a page of a list; wanted one eval",
    ),
    "grader: a run": ('{"object": "eval.run", "data_source": {}}', 1, "wanted its eval, with the run's"),
    "agentv: an unknown key": (
        "tests:\n  - id: a\n    input: x\n    critera: y\n",
        4,
        "tests[0].critera: unknown key; did you mean 'criteria'?",
    ),
    "agentv: an unknown type": (
        "tests:\n  - {id: a, input: x, evaluators: [{name: n, type: wizard}]}\n",
        2,
        "unknown assertion 'wizard'; known assertions: assert-set, bleu, code, code-grader, ",
    ),
    "agentv: nearly a type": (
        "tests:\n  - {id: a, input: x, evaluators: [{name: n, type: tool_trajectry}]}\n",
        2,
        "unknown assertion 'tool_trajectry'; did you mean 'tool-trajectory'?",
    ),
    "agentv: nearly a key of an evaluator": (
        "tests:\n  - {id: a, input: x, assert: [{type: llm_judge, promt: x, criteria: z}]}\n",
        2,
        "assert[0].promt: unknown key; did you mean 'prompt'?",
    ),
    "agentv: a type of old versions": (
        "tests:\n  - {id: a, input: x, assert: [{type: expected_messages}]}\n",
        2,
        "expected-messages is not supported: use `tool_trajectory`",
    ),
    "agentv: no criteria to judge by": ("tests:\n  - {id: a, input: x}\n", 2, "the judge has no criteria"),
    "agentv: two names of one thing": (
        "tests:\n  - {id: a, input: x, criteria: c, expected_outcome: d}\n",
        2,
        "given together with criteria",
    ),
    "agentv: no file": (
        "tests:\n  - id: a\n    criteria: c\n    input: [{role: user, content: [{type: file, value: gone.md}]}]\n",
        4,
        "the file 'gone.md' does not exist in the suite's directory",
    ),
    "agentv: a template as the judge's prompt": (
        "tests:\n  - {id: a, input: x, criteria: c, evaluators: [{name: n, type: llm_judge, prompt: 'Rate {{output}}'}]}\n",
        2,
        "contains variables",
    ),
    "agentv: a variable of the environment": (
        "tests:\n  - {id: a, criteria: c, input: 'Hi ${{ NAME }}'}\n",
        2,
        "tests[0].input: contains an environment variable",
    ),
    "agentv: an unknown variable": (
        "tests:\n  - id: a\n    criteria: c\n    input: 'Hi {{ nmae }}'\n    vars: {name: Ann}\n",
        4,
        "tests[0].input: '{{ nmae }}': unknown variable; known variables: name",
    ),
    "agentv: variables within variables": (
        "tests:\n  - {id: a, criteria: c, input: '{{ a }}', vars: {a: '{{ b }}', b: x}}\n",
        2,
        "'a' contains the variable 'b'",
    ),
    "agentv: a mean of trials": (
        "evaluate_options:\n  repeat:\n    count: 2\n    strategy: mean\ntests:\n  - {id: a, input: x, criteria: c}\n",
        4,
        "evaluate_options.repeat.strategy: 'mean' is not supported: evald counts the trials that pass",
    ),
    "agentv: a limit of costs": (
        "evaluate_options:\n  budget_usd: 1\ntests:\n  - {id: a, input: x, criteria: c}\n",
        2,
        "evaluate_options.budget_usd: not supported: evald limits the cost of judges on the server",
    ),
    "agentv: a code of the default test": (
        "default_test: {options: {transform: a.ts}}\ntests:\n  - {id: a, input: x, criteria: c}\n",
        1,
        "default_test.options.transform: not supported: evald does not run code of the suite",
    ),
    "agentv: runs": (
        "runs: 2\ntests:\n  - {id: a, input: x, criteria: c}\n",
        1,
        "runs: not supported: AgentV replaced it by `repeat`",
    ),
    "agentv: hooks of a target": (
        "targets:\n- name: x\n  hooks: {before_each: {command: y}}\ntests:\n  - {id: a, input: x, criteria: c}\n",
        3,
        "targets[0].hooks: not supported: evald does not run code of the suite",
    ),
    "promptfoo: more combinations than anybody can mean": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - vars: {a: &l [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b: *l, c: *l, d: *l, e: *l}\n"
        "    assert: [{type: is-json}]\n",
        4,
        "100000 combinations of values",
    ),
    "agentv: no id": ("tests:\n  - {input: x, criteria: c}\n", 2, "the case has no id"),
    "agentv: a workspace": (
        "workspace: {}\ntests: []\n",
        1,
        "not supported: evald does not prepare workspaces",
    ),
    "promptfoo: an unknown variable": (
        "prompts: ['{{a}}']\nproviders: [echo]\ntests:\n  - {vars: {b: 1}, assert: [{type: is-json}]}\n",
        1,
        "unknown variable; known variables: b",
    ),
    "promptfoo: an unknown assertion": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - assert:\n      - type: contians\n",
        5,
        "unknown assertion 'contians'; did you mean 'contains'?",
    ),
    "promptfoo: repeated by an option of the command": (
        "prompts: [x]\nproviders: [echo]\ncommandLineOptions: {repeat: 3}\ntests: [{assert: [{type: is-json}]}]\n",
        3,
        "commandLineOptions.repeat: not supported here; write it into evaluateOptions",
    ),
    "promptfoo: a transform": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - assert:\n      - {type: is-json, transform: 'JSON.parse(output)'}\n",
        5,
        "it changes the answer with JavaScript",
    ),
    "promptfoo: a threshold that means nothing": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - assert: [{type: contains, value: a, threshold: 0.5}]\n",
        4,
        "does not apply to contains; remove it",
    ),
    "grader: cosine": (
        '{"type": "text_similarity", "input": "a", "reference": "b",\n "evaluation_metric": "cosine"}',
        2,
        "cosine is not supported: it needs an embedding model",
    ),
    "grader: meteor": (
        '{"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "meteor"}',
        1,
        "WordNet",
    ),
    "grader: an image": (
        '{"type": "score_model", "model": "m", "input": [{"role": "user", "content": {"type": "input_image"}}]}',
        1,
        "evald's judge reads only text",
    ),
    "grader: no items": (
        '{"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}',
        1,
        "wanted a file a.jsonl in the same directory",
    ),
    "grader: an item without what is used": (
        '{"grader": {"type": "string_check", "input": "{{item.gone}}", "reference": "b", "operation": "eq"}, "item": {}}',
        1,
        "the item has no 'gone'",
    ),
    "agentv: trials of one case": (
        "tests:\n  - {id: a, input: x, criteria: c, execution: {trials: {count: 5}}}\n",
        2,
        "tests[0].execution.trials: applies to the whole suite",
    ),
    "agentv: criteria that are neither text nor a list": (
        "tests:\n  - {id: a, input: x, criteria: c, evaluators: [{name: n, type: llm_judge, criteria: {a: b}}]}\n",
        2,
        "evaluators[0].criteria: got dict",
    ),
    "agentv: negated twice": (
        "tests:\n  - {id: a, input: x, assert: [{type: not-contains, value: y, negate: true}]}\n",
        2,
        "given together with `not-`",
    ),
    "agentv: a weight of no evaluator": (
        "tests:\n  - id: a\n    input: x\n    evaluators:\n      - name: n\n        type: composite\n"
        "        aggregator: {type: weighted_average, weights: {gone: 3}}\n        assert: [{name: q, type: is-json}]\n",
        7,
        "weights.gone: no evaluator of the set has this name",
    ),
    "agentv: weights in a list": (
        "tests:\n  - id: a\n    input: x\n    evaluators:\n      - name: n\n        type: composite\n"
        "        aggregator: {type: weighted_average, weights: [q]}\n        assert: [{name: q, type: is-json}]\n",
        7,
        "wanted a mapping",
    ),
    "agentv: half a trial": (
        "execution: {trials: {count: 2.5}}\ntests:\n  - {id: a, input: x, criteria: c}\n",
        1,
        "wanted a whole number",
    ),
    "agentv: the suite's evaluators left out by a text": (
        "assert: [{type: is-json}]\ntests:\n  - {id: a, input: x, criteria: c, execution: {skip_defaults: 'no'}}\n",
        3,
        "wanted true or false",
    ),
    "agentv: an aggregation of turns without turns": (
        "tests:\n  - {id: a, input: x, criteria: c, aggregation: min}\n",
        2,
        "needs `turns`",
    ),
    "agentv: a config that is a list": (
        "tests:\n  - {id: a, input: x, evaluators: [{name: n, type: code, script: s, config: [1]}]}\n",
        2,
        "config: got list",
    ),
    "agentv: criteria of a turn in a list": (
        "tests:\n  - {id: a, turns: [{input: x, criteria: [c]}]}\n",
        2,
        "turns[0].criteria: got list",
    ),
    "agentv: deep": (
        '{"tests": [{"id": "a", "input": "x", "assert": ['
        + '{"type": "composite", "assert": [' * 440
        + "]}" * 440
        + "]}]}",
        1,
        "nested too deep",
    ),
    "promptfoo: a type that is a list": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - assert: [{type: [is-json]}]\n",
        4,
        "assert[0].type: got list",
    ),
    "promptfoo: a pattern of anywhere": (
        "prompts: [x]\nproviders: [echo]\ntests: file:///etc/*.yaml\n",
        3,
        "got an absolute pattern of files; wanted a pattern relative to the suite",
    ),
    "promptfoo: a template with keys beside it": (
        "prompts: [x]\nproviders: [echo]\nassertionTemplates: {t: {type: is-json}}\n"
        "tests:\n  - assert: [{$ref: '#/assertionTemplates/t', weight: 3}]\n",
        5,
        "assert[0].weight: unknown key",
    ),
    "promptfoo: half a repetition": (
        "prompts: [x]\nproviders: [echo]\nevaluateOptions: {repeat: 1.5}\ntests:\n  - assert: [{type: is-json}]\n",
        3,
        "wanted a whole number",
    ),
    "promptfoo: headers in a list": (
        "prompts: [x]\nproviders: [{id: 'http://x', config: {headers: [a]}}]\ntests:\n  - assert: [{type: is-json}]\n",
        2,
        "headers: got list",
    ),
    "agentv: no minimums": (
        "tests:\n  - {id: a, input: x, assert: [{type: tool-trajectory, mode: any_order, minimums: {}}]}\n",
        2,
        "minimums: is empty, so that nothing would be checked",
    ),
    "agentv: a template of assertions": (
        "tests:\n  - {id: a, input: x, assert: [{include: shared}]}\n",
        2,
        "evald reads no templates of assertions",
    ),
    **{
        f"promptfoo: {kind} without anything to look for": (
            f"prompts: [x]\nproviders: [echo]\ntests:\n  - assert: [{{type: {kind}, value: {value}}}]\n",
            4,
            "so that nothing would be checked",
        )
        for kind, value in {
            "contains": "''",
            "icontains": "''",
            "starts-with": "''",
            "regex": "''",
            "contains-all": "[]",
            "contains-any": "'a,'",
            "icontains-any": "['']",
            "tool-call-f1": "[]",
        }.items()
    },
    "promptfoo: code in place of a text": (
        "prompts: [x]\nproviders: [echo]\ntests:\n  - assert: [{type: not-contains, value: file://word.js}]\n",
        4,
        "is no file of text; wanted a name that ends in .txt",
    ),
    "promptfoo: a program that writes the prompt": (
        "prompts: ['exec:./prompt.sh']\nproviders: [echo]\ntests: [{assert: [{type: is-json}]}]\n",
        1,
        "runs code of the suite",
    ),
    "grader: two of one name": (
        '{"grader": {"type": "multi", "calculate_output": "g", "pass_threshold": 1, "graders":\n ['
        '{"name": "g", "type": "string_check", "input": "a", "reference": "b", "operation": "ne"},'
        '{"name": "g", "type": "string_check", "input": "a", "reference": "b", "operation": "eq"}]}, "item": {}}',
        1,
        "two graders have the same name",
    ),
    "grader: a variable that is not of the item": (
        '{"testing_criteria": [{"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}],\n'
        '"data_source": {"type": "completions", "model": "m", "source": {"type": "file_content", "content": [{"item": {}}]},\n'
        '"input_messages": {"type": "template", "template": [{"role": "user", "content": "{{question}}"}]}}}',
        3,
        "'{{question}}': unknown variable; the input can use only variables of the item",
    ),
    "grader: a tool that is no function": (
        '{"testing_criteria": [{"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}],\n'
        '"data_source": {"type": "responses", "model": "m", "sampling_params": {"tools": [{"type": "web_search_preview"}]}}}',
        2,
        "'web_search_preview': evald asks by chat completions",
    ),
    "grader: a format of the responses API": (
        '{"testing_criteria": [{"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}],\n'
        '"data_source": {"type": "responses", "model": "m", "sampling_params": {"text": {"format": {"type": "json_schema"}}}}}',
        2,
        "sampling_params.text: evald asks by chat completions; write the format as `response_format`",
    ),
    "grader: parameters in a list": (
        '{"type": "label_model", "model": "m", "labels": ["a"], "passing_labels": ["a"], "input": [],\n"sampling_params": [1]}',
        2,
        "sampling_params: got list",
    ),
    "grader: a measure in a list": (
        '{"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": ["bleu"]}',
        1,
        "evaluation_metric: got list",
    ),
}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("tests:\n- {id: a, input: x, criteria: y}\n- {id: b, inptu: x}\n- {id: c}\n", [3, 4]),
        (
            "prompts: ['{{q}}']\nproviders: [echo]\ntests:\n- {vars: {q: a}, assert: [{type: javascript}]}\n"
            "- {vars: {q: b}, assert: [{type: is-json}]}\n- {vars: {q: c}, provider: x}\n",
            [4, 6],
        ),
        (
            '{"name": "x",\n"testing_criteria": [{"type": "nope"},\n{"type": "string_check", "name": "s", "inputs": ""}]}',
            [2, 3],
        ),
    ],
    ids=["agentv", "promptfoo", "graders"],
)
def test_what_is_wrong_with_several_is_told_at_once(text: str, lines: list[int], tmp_path: Path) -> None:
    path = tmp_path / ("a.json" if text.startswith("{") else "a.yaml")
    path.write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        _load(path, targets=["t"])
    assert [one.line for one in refused.value.problems] == lines


@pytest.mark.parametrize(("text", "line", "reason"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_refused_with_its_place(text: str, line: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.json" if text.startswith("{") else "a.yaml")
    path.write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        _load(path, targets=["t"])
    (problem,) = refused.value.problems
    assert reason in problem.message
    assert problem.line == line


# A case of AgentV's without its id and input, the specs, and words of the warnings.
LEGACY: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "evaluator": ("evaluator: llm_judge\n", [{"type": "llm-judge", "config": {"criteria": "c"}}], []),
    "grader": (
        "grader: llm_judge\n",
        [{"type": "llm-judge", "config": {"criteria": "c"}}],
        ["`grader` is deprecated"],
    ),
    "both: evaluator goes before grader": (
        "evaluator: llm_judge\n    grader: heuristic\n",
        [{"type": "llm-judge", "config": {"criteria": "c"}}],
        ["`grader` is deprecated"],
    ),
    "unknown": (
        "evaluator: wizard\n",
        [{"type": "llm-judge", "config": {"criteria": "c"}}],
        ["unknown evaluator 'wizard'; an llm-judge is used in its place"],
    ),
    "neither": ("", [{"type": "llm-judge", "config": {"criteria": "c"}}], []),
    "a list goes before both": (
        "evaluator: llm_judge\n    evaluators: [{name: j, type: is-json}]\n",
        [{"type": "is-json", "name": "j"}],
        ["evaluator: not used, because the list", "no evaluator judges by the criteria (cases and turns: 1)"],
    ),
    "texts count one by one": (
        "assert: [polite, {type: is-json}, short]\n",
        [
            {
                "type": "llm-judge",
                "name": "criteria",
                "weight": 2,
                "config": {"items": [{"id": "item-1", "text": "polite"}, {"id": "item-2", "text": "short"}]},
            },
            {"type": "is-json"},
        ],
        ["no evaluator judges by the criteria"],
    ),
}


@pytest.mark.parametrize(("fields", "specs", "warnings"), LEGACY.values(), ids=LEGACY)
def test_the_one_evaluator_of_old_files(
    fields: str, specs: list[dict[str, Any]], warnings: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"tests:\n  - id: a\n    input: x\n    criteria: c\n    {fields}")
    suite = _load(path, targets=["t"])
    (case,) = suite.cases
    assert [read_spec(spec).to_dict() for spec in case.evaluators] == specs
    assert suite.open.options.aggregation == 2
    assert suite.open.options.threshold == 0.8
    assert len(suite.warnings) == len(warnings)
    for said, words in zip(suite.warnings, warnings, strict=True):
        assert words in said


def test_every_prompt_asks_every_test_and_every_combination_of_listed_values(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: ['{{a}}{{b.c[0]}}', '-{{a}}']\nproviders: [echo]\n"
        "defaultTest: {vars: {b: {c: [7]}}, threshold: 0.5, assert: [{type: is-json, weight: 0}]}\n"
        "tests:\n  - {vars: {a: [x, '{{raw}}']}, assert: [{type: not-contains, value: '{{a}}', metric: m, weight: 2}]}\n"
    )
    suite = _load(path)
    cases = list(suite.cases)
    assert [case.case_id for case in cases] == ["test-1.1", "test-1.2", "test-1.3", "test-1.4"]
    assert [case.turns[0].input[0].text for case in cases] == ["x7", "{{raw}}7", "-x", "-{{raw}}"]
    assert [case.recorded_trials[0].answers[0].messages[0].text for case in cases] == [
        case.turns[0].input[0].text for case in cases
    ]
    assert (cases[0].options.aggregation, cases[0].options.threshold) == (2, 0.5)
    assert [read_spec(spec).to_dict() for spec in cases[0].evaluators] == [
        {"type": "is-json", "shadow": True},
        {"type": "contains", "config": {"text": "x"}, "name": "m", "weight": 2, "negate": True},
    ]


_M: Final = {"model": "m"}
# The provider in the options of a test, and what the judge's config has of it; a text: the refusal.
GRADERS: dict[str, dict[str, Any] | str] = {
    "openai:m": _M,
    "{id: openai:chat:m}": _M,
    "{text: openai:m, embedding: openai:embedding:e}": _M,
    "{text: {id: openai:m, config: {temperature: 0.5, max_tokens: 30}}}": _M
    | {"temperature": 0.5, "maxOutputTokens": 30},
    "{id: openai:m, config: {top_p: 1}}": "a.yaml:4: defaultTest.options.provider.config.top_p: unknown key",
    "{text: anthropic:m}": "a.yaml:4: defaultTest.options.provider.text: got 'anthropic:m', wanted a model",
}


@pytest.mark.parametrize(("provider", "wanted"), GRADERS.items(), ids=GRADERS)
def test_the_provider_of_judges_is_their_model_or_refused_with_its_place(
    provider: str, wanted: dict[str, Any] | str, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: [x]\nproviders: [echo]\ndefaultTest:\n"
        f"  options: {{provider: {provider}}}\n"
        "tests: [{assert: [{type: is-json}]}, {assert: [{type: llm-rubric, value: polite}]}]\n"
    )
    if isinstance(wanted, str):
        with pytest.raises(InvalidDocument) as refused:
            _load(path)
        assert wanted in str(refused.value)
        return
    _, case = _load(path).cases
    assert read_spec(case.evaluators[0]).config == {"criteria": "polite", **wanted}


NEW_AGENTV = """\
name: release
providers: [gh-models]
prompts: ['{{ input }}']
tests:
- id: a
  vars: {input: x}
  assert: [{type: is-json, required: true, description: raw JSON}]
"""


def test_new_suites_of_agentv_are_told_from_promptfoos_by_the_ids_of_their_tests(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(NEW_AGENTV)
    suite = _load(path)
    assert (suite.name, suite.targets) == ("release", ["gh-models"])
    (case,) = suite.cases
    assert [read_spec(spec).to_dict() for spec in case.evaluators] == [{"type": "is-json", "required": True}]
    path.write_text(NEW_AGENTV + "environment: {type: host}\n")
    with pytest.raises(
        InvalidDocument, match=r"a\.yaml:8: environment: not supported: evald does not prepare"
    ):
        _load(path)


def test_a_suite_of_agentv_repeats_cases_and_fills_in_variables(tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"id": "c", "input": "z", "assert": [{"type": "is-json"}]}\n')
    path = tmp_path / "a.yaml"
    path.write_text("""\
suite: matrix
providers: [{id: "openai:gpt", label: mini, config: {model: x}}]
prompts:
- "{{ history }}"
- {id: terse, prompt: "Shortly: {{ vars.topic }} for {{ audience }}"}
evaluate_options: {max_concurrency: 2, repeat: {count: 3, strategy: pass_any, early_exit: true}}
default_test:
  vars: {audience: engineers}
  assert: [{type: contains, value: "{{ expected_output }}"}]
assert: [{type: not-contains, value: "{{ topic.name }}"}]
tests:
- id: a
  vars: {topic: {name: July}, history: [{role: user, content: What now?}], expected_output: 42}
  run: {threshold: 1, repeat: {count: 4, strategy: pass_all}}
- id: b
  vars: {topic: {name: May}, history: When?, expected_output: soon}
  options: {repeat: 2}
- file://more.jsonl
""")
    with pytest.raises(
        InvalidDocument, match=r"a\.yaml:9: default_test\.assert\[0\]\.value: '{{ expected_output }}'"
    ):
        _load(path)
    path.write_text(path.read_text().replace("- file://more.jsonl\n", ""))
    suite = _load(path)
    assert (suite.name, suite.targets) == ("matrix", ["mini"])
    assert (suite.open.trials, suite.open.min_passed, suite.open.max_concurrency) == (3, 1, 2)
    assert [text.partition(": ")[2][:19] for text in suite.warnings] == [
        "providers[0]: only ",
        "evaluate_options.re",
    ]
    cases = {case.case_id: case for case in suite.cases}
    assert {
        name: (case.trials, case.min_passed, case.turns[0].input[-1].text) for name, case in cases.items()
    } == {
        "a.1": (4, 4, "What now?"),
        "a.2": (4, 4, 'Shortly: {"name": "July"} for engineers'),
        "b.1": (2, 1, "When?"),
        "b.2": (2, 1, 'Shortly: {"name": "May"} for engineers'),
    }
    specs = [read_spec(spec) for spec in cases["a.2"].evaluators]
    assert [(spec.type, spec.config, spec.negate) for spec in specs] == [
        ("contains", {"text": "42"}, False),
        ("contains", {"text": "July"}, True),
    ]
    assert (cases["a.1"].turns[0].expected.text, cases["a.1"].options.threshold) == ("42", 1)


CSV_TESTS: dict[str, tuple[str, int, str]] = {
    "a threshold": ("q,__expected,__threshold\nx,x,1.2.3\n", 2, "got '1.2.3', wanted a number"),
    "a threshold that every answer reaches": (
        "q,__expected,__threshold\nx,x,0\n",
        2,
        "threshold: got 0, which every answer reaches; wanted a threshold above 0",
    ),
    "a check whose column has one underscore": (
        "q,__expected,_expected2\nx,x,y\n",
        2,
        "the column '_expected2' has no counterpart",
    ),
    "a latency": ("q,__expected\nx,latency: soon\n", 2, "got 'soon', wanted a number"),
    "no latency": ("q,__expected\nx,latency:\n", 2, "got '', wanted a number"),
    "a similarity": ("q,__expected\nx,bleu(1.2.3): x\n", 2, "got '1.2.3', wanted a number"),
    "two checks in columns of one name": (
        "q,__expected,__expected\nx,y,x\n",
        1,
        "got a duplicate column '__expected'",
    ),
}


@pytest.mark.parametrize(("table", "line", "reason"), CSV_TESTS.values(), ids=CSV_TESTS)
def test_a_wrong_table_of_tests_is_refused_with_its_place(
    table: str, line: int, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("prompts: ['{{q}}']\nproviders: [echo]\ntests: file://t.csv\n")
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(InvalidDocument) as refused:
        _load(tmp_path / "a.yaml")
    (problem,) = refused.value.problems
    assert (problem.file, problem.line, problem.message) == (str(tmp_path / "t.csv"), line, reason)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_first_line_tells_the_delimiter_of_tests_and_empty_rows_are_left_out(
    tmp_path: Path, delimiter: str
) -> None:
    rows = [("q", "__expected"), ('"a, b; c"', "contains: b"), ("", " "), ("d", "d")]
    (tmp_path / "t.csv").write_text("\ufeff" + "".join(delimiter.join(row) + "\r\n" for row in rows))
    (tmp_path / "a.yaml").write_text("prompts: ['{{q}}']\nproviders: [echo]\ntests: file://t.csv\n")
    [suite] = load_suites([tmp_path / "a.yaml"])
    found = [(case.turns[0].input[0].text, case.evaluators[0].type) for case in suite.cases]
    assert found == [("a, b; c", "contains"), ("d", "equals")]


def test_a_column_of_metrics_may_have_spaces_around_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("prompts: ['{{q}}']\nproviders: [echo]\ntests: file://t.csv\n")
    (tmp_path / "t.csv").write_text("q,__expected, __metric\na,a,tone\n")
    (case,) = _load(tmp_path / "a.yaml").cases
    assert [read_spec(spec).name for spec in case.evaluators] == ["tone"]


@pytest.mark.parametrize(("called", "verdict"), [("drop_table", "FAILED"), ("look_up", "PASSED")])
def test_each_of_several_forbidden_tools_is_forbidden(called: str, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: [Clean up.]\nproviders: [echo]\n"
        "tests: [{assert: [{type: 'not-trajectory:tool-used', value: [delete_user, drop_table]}]}]\n"
    )
    [case] = _load(path).cases
    call = {"id": "1", "type": "function", "function": {"name": called, "arguments": "{}"}}
    turn = Turn(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Done.", "tool_calls": [call]}]
    )
    summary = Call([read_spec(spec).to_dict() for spec in case.evaluators], turn)().summary
    assert summary is not None
    assert Verdict.Name(summary.verdict) == f"VERDICT_{verdict}"


def test_a_prompt_file_with_a_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "prompts: [file://p.yaml]\nproviders: [echo]\ntests: [{assert: [{type: is-json}]}]\n"
    )
    (tmp_path / "p.yaml").write_text("role: user\n")
    with pytest.raises(
        InvalidDocument, match=r"p\.yaml:1: missing prompt; wanted text or a list of messages"
    ):
        _load(tmp_path / "a.yaml")


def test_a_listed_value_may_name_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: ['{{q}}']\nproviders: [echo]\n"
        "tests: [{vars: {q: ['file://q.txt', b]}, assert: [{type: is-json}]}]\n"
    )
    (tmp_path / "q.txt").write_text("from the file\n")
    assert [case.turns[0].input[0].text for case in _load(path).cases] == ["from the file", "b"]


def _run_with_tools(tools: str) -> str:
    return (
        '{"testing_criteria": [{"type": "string_check", "input": "a", "reference": "b", "operation": "eq"}],\n'
        '"data_source": {"type": "responses", "model": "m", "source": {"type": "file_content", "content": [{"item": {}}]},\n'
        '"input_messages": {"type": "template", "template": [{"role": "user", "content": "Hi"}]},\n'
        f'"sampling_params": {{"seed": 1, "tools": [{tools}]}}}}}}'
    )


def test_the_functions_of_a_run_are_those_of_its_connector(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        _run_with_tools('{"type": "function", "name": "f"}, {"type": "function", "function": {"name": "g"}}')
    )
    config = struct_to_dict(_load(path).connectors["m"].config)
    assert config == {
        "model": "m",
        "parameters": {"seed": 1},
        "tools": [{"type": "function", "function": {"name": name}} for name in "fg"],
    }


def test_the_value_of_an_assertion_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: ['a bad word']\nproviders: [echo]\ntests:\n"
        "- assert: [{type: not-contains, value: file://word.txt}, {type: not-contains-any, value: file://words.json}]\n"
    )
    (tmp_path / "word.txt").write_text("bad\n")
    (tmp_path / "words.json").write_text('["worse", "bad"]')
    (case,) = _load(path).cases
    assert [read_spec(spec).to_dict()["config"] for spec in case.evaluators] == [
        {"text": "bad"},
        {"substrings": ["worse", "bad"]},
    ]


def test_the_reference_of_a_source_is_no_json_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("prompts: [x]\nproviders: [echo]\ntests: [{assert: [{type: contains-json}]}]\n")
    (case,) = _load(path).cases
    specs = [read_spec(spec).to_dict() for spec in case.evaluators]
    for answer, verdict in (
        ("So says [1].", Verdict.VERDICT_FAILED),
        ('See [1]: {"a": 2}', Verdict.VERDICT_PASSED),
    ):
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        summary = Call(specs, Turn(said))().summary
        assert summary is not None
        assert summary.verdict == verdict


def test_a_provider_with_variables_where_none_are_filled_in_has_no_connector(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "prompts: [x]\nproviders: [{id: 'http://x', config: {headers: {A: '{{q}}'}}}]\n"
        "tests: [{assert: [{type: is-json}]}]\n"
    )
    suite = _load(path)
    assert not suite.connectors
    assert "has a variable" in suite.warnings[0]


def test_what_a_suite_says_first_is_said_before_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("input: Be kind.\ntests:\n  - {id: a, turns: [{input: x, criteria: c}]}\n")
    (case,) = _load(path, targets=["t"]).cases
    assert [one.text for one in case.messages] == ["Be kind."]


# Main file, the others. In each a text has U+2028, which ends a line for Python and is plain text for JSON.
SEPARATED: dict[str, tuple[str, str, dict[str, str]]] = {
    "agentv": (
        "a.jsonl",
        '{"id": "a", "input": "x\u2028y", "criteria": "c"}\n',
        {"a.yaml": "dataset: d\nexecution: {target: t}\n"},
    ),
    "promptfoo": (
        "a.yaml",
        "prompts: ['{{q}}']\nproviders: [p]\ntests: file://t.jsonl\n",
        {"t.jsonl": '{"vars": {"q": "x\u2028y"}, "assert": [{"type": "is-json"}]}\n'},
    ),
    "grader": (
        "a.json",
        '{"type": "string_check", "input": "{{sample.output_text}}", "reference": "b", "operation": "eq"}',
        {"a.jsonl": '{"messages": [{"role": "user", "content": "x\u2028y"}], "sample": "b"}\n'},
    ),
}


@pytest.mark.parametrize(("main", "text", "beside"), SEPARATED.values(), ids=SEPARATED)
def test_a_line_of_json_lines_ends_with_a_newline_alone(
    main: str, text: str, beside: dict[str, str], tmp_path: Path
) -> None:
    for name, content in {main: text, **beside}.items():
        (tmp_path / name).write_text(content)
    (case,) = _load(tmp_path / main).cases
    assert case.turns[0].input[0].text == "x\u2028y"
