"""Suite files: what they mean on the wire, and what is refused before anything runs, with file and line."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from evald_server.suites.documents import InvalidDocument
from evald_server.suites.file_models import suite_schema
from evald_server.suites.id_set import IdSet
from evald_server.suites.suite_file import Suite, load_suites

ROOT = Path(__file__).parents[2]
HEAD = "evaluators: [response-length]\ncases:\n"


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _load(tmp_path: Path, text: str, name: str = "a.yaml", **options: Any) -> Suite:
    (suite,) = load_suites([_write(tmp_path / name, text)], **options)
    return suite


WHOLE = """\
name: checkout
description: What a shop's agent must do.
target: staging
connectors:
  staging: {type: openai-chat, baseUrl: "http://127.0.0.1:1/v1"}
evaluators:
  - type: contains
    config: {substrings: [order]}
options: {aggregation: weighted_mean, threshold: 0.5}
trials: 4
minPassed: 3
threshold: 0.9
maxConcurrency: 2
labels: {team: payments}
metadata: {commit: abc}
cases:
  - id: refund
    tags: smoke
    weight: 2
    input: Where is my money?
    expected: On its way.
    criteria: {success: It is polite., failure: It is rude.}
  - id: 7
    messages: [{role: system, content: Be brief.}]
    input: [{role: user, content: Hi}]
    outputs: [Your order, {text: The order, latency_ms: 250, cost_usd: 0.01}, [{role: assistant, content: x}]]
    trials: 3
    inherit: false
    evaluators: [response-length]
  - id: talk
    turns:
      - {input: a, evaluators: [response-length]}
      - {input: b, expectedOutput: {data: {a: 1}}, criteria: Good.}
  - {id: later, input: x, skip: not yet}
"""


def test_a_suite_becomes_what_is_sent(tmp_path: Path) -> None:
    suite = _load(tmp_path, WHOLE)
    opening = suite.open
    assert (suite.name, suite.targets, suite.skipped) == ("checkout", ["staging"], [("later", "not yet")])
    assert suite.connectors["staging"].base_url == "http://127.0.0.1:1/v1"
    assert (opening.suite, opening.trials, opening.min_passed, opening.threshold) == ("checkout", 4, 3, 0.9)
    assert (opening.max_concurrency, opening.case_count, dict(opening.labels)) == (2, 3, {"team": "payments"})
    assert opening.options.threshold == 0.5
    assert [spec.type for spec in opening.evaluators] == ["contains"]
    refund, seven, talk = suite.cases
    assert (refund.case_id, refund.weight, list(refund.tags)) == ("refund", 2, ["smoke"])
    assert refund.turns[0].expected.text == "On its way."
    assert [(spec.type, spec.name) for spec in refund.evaluators] == [
        ("contains", ""),
        ("llm-judge", "criteria"),
    ]
    assert seven.case_id == "7"
    assert [one.role for one in seven.messages] == ["system"]
    assert [trial.answers[0].messages[0].text for trial in seven.recorded_trials] == [
        "Your order",
        "The order",
        "x",
    ]
    assert seven.recorded_trials[1].answers[0].latency.ToMilliseconds() == 250
    assert [spec.type for spec in seven.evaluators] == ["response-length"], "the suite's are left out"
    assert [spec.type for spec in talk.turns[0].evaluators] == ["response-length"]
    assert [spec.name or spec.type for spec in talk.turns[1].evaluators] == ["contains", "criteria"]
    assert suite.place("talk") == f"{tmp_path / 'a.yaml'}:30"


def test_a_case_without_evaluators_of_its_own_shares_those_of_the_suite(tmp_path: Path) -> None:
    (case,) = _load(tmp_path, HEAD + "- {id: a, input: x, output: y}").cases
    assert not case.evaluators
    assert not case.turns[0].evaluators


def test_the_last_turn_of_a_conversation_is_the_case(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "latency_ms": 5},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "d", "latency_ms": 7},
    ]
    lines = [
        {"suite": {"evaluators": ["response-length"], "target": "x"}},
        {"id": "recorded", "messages": messages},
        {"id": "asked", "messages": messages[:3]},
    ]
    suite = _load(tmp_path, "\n".join(map(json.dumps, lines)), "a.jsonl")
    recorded, asked = suite.cases
    assert [one.text for one in recorded.messages] == ["a", "b"]
    assert [one.text for one in recorded.turns[0].input] == ["c"]
    (trial,) = recorded.recorded_trials
    assert [one.role for one in trial.answers[0].messages] == ["assistant", "tool", "assistant"]
    assert trial.answers[0].latency.ToMilliseconds() == 7
    assert [one.text for one in asked.turns[0].input] == ["c"]
    assert not asked.recorded_trials
    assert suite.place("asked").endswith("a.jsonl:3")


def test_a_target_that_is_asked_for_replaces_recorded_answers(tmp_path: Path) -> None:
    text = HEAD + "- {id: a, input: x, output: y}"
    (recorded,) = _load(tmp_path, text).cases
    (asked,) = _load(tmp_path, text, targets=["staging"]).cases
    assert len(recorded.recorded_trials) == 1
    assert not asked.recorded_trials


def test_cases_for_which_the_targets_of_the_suite_are_not_asked_are_counted_in_a_warning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "targets: [staging]\nevaluators: [is-json]\n"
        "cases: [{id: a, input: x, output: '{}'}, {id: b, input: x}, {id: c, input: x, output: '[]'}]\n"
    )
    [suite] = load_suites([path])
    assert [warning.partition(": cases")[2] for warning in suite.warnings] == [
        " with a recorded answer, for which the targets are not asked: 2; --target NAME asks it for all cases"
    ]
    [suite] = load_suites([path], targets=["staging"])
    assert not suite.warnings


def test_filters_take_cases_by_tag_and_id(tmp_path: Path) -> None:
    text = HEAD + "".join(
        f"- {{id: {one}, input: x, output: y, tags: [{tags}]}}\n"
        for one, tags in (("a", "s"), ("b", "s, t"), ("c", "u"))
    )
    for options, found in (
        ({"tags": ["s"]}, "ab"),
        ({"tags": ["t", "u"]}, "bc"),
        ({"tags": ["s"], "exclude_tags": ["t"]}, "a"),
        ({"ids": ["c", "a"]}, "ac"),
    ):
        suite = _load(tmp_path, text, **options)  # type: ignore[arg-type]
        assert "".join(case.case_id for case in suite.cases) == found
        assert suite.case_count == len(found)


REFUSED = [
    (
        HEAD + "- {id: a, input: x, output: y}\n- {id: a, input: x, output: y}",
        'a.yaml:4: duplicate id "a", first used in line 3',
    ),
    (HEAD + "- {id: a, imput: x, output: y}", "a.yaml:3: cases[0].imput: unknown key; did you mean 'input'?"),
    ("evaluatrs: []\n" + HEAD + "- {id: a}", "a.yaml:1: evaluatrs: unknown key; did you mean 'evaluators'?"),
    (
        HEAD + "- id: a\n  turns:\n  - input: x\n    outptu: y",
        "a.yaml:6: cases[0].turns[0].outptu: unknown key; did you mean 'output'?",
    ),
    (HEAD + "- {id: a, input: x,\n   evaluators: [{type: regex,\n   wieght: 2}]}", "a.yaml:5: "),
    (
        "a: &x [*x]\n" + HEAD,
        "a.yaml:1:8: not valid YAML: got the alias *x inside its own anchor, which is a cycle",
    ),
    ("cases:\n- {id: a, input: x, output: y}", 'a.yaml:2: cases[0] ("a"): no evaluators; wanted'),
    ("trials: 0\n" + HEAD + "- {id: a, input: x, output: y}", "a.yaml:1: trials: got 0 (int), wanted"),
    (HEAD + "- {id: a, input: x, output: y, trials: 0}", "a.yaml:3: cases[0].trials: got 0 (int), wanted"),
    (
        HEAD + "- {id: a, input: x, output: y, min_passed: 2}",
        'a.yaml:3: cases[0] ("a"): min_passed: 2 of 1 recorded',
    ),
    (
        HEAD + "- {id: a, input: x, outputs: [y, z], trials: 3}",
        'a.yaml:3: cases[0] ("a"): trials: 3, but the case has 2 recorded answers; wanted 3 recorded answers, or',
    ),
    (
        "trials: 2\n" + HEAD + "- {id: a, input: x, output: y}",
        'a.yaml:4: cases[0] ("a"): trials: 2, but the case has 1 recorded answer; wanted',
    ),
    (
        HEAD + "- id: a\n  turns:\n  - {input: x, output: y, evaluators: [{type: latency, when: final}]}\n"
        "  - {input: x, output: y}",
        'a.yaml:5: cases[0] ("a"): turns[0].evaluators[0].when: final, on a turn that is not the last one of the case',
    ),
    (
        "trials: 2\nminPassed: 3\n" + HEAD + "- {id: a, input: x, output: y}",
        "a.yaml:2: min_passed: 3 of 2 trials",
    ),
    (
        HEAD + "- {id: a, input: x}",
        'a.yaml:3: cases[0] ("a"): no recorded answer and no target',
    ),
    (HEAD + "- {input: x, output: y}", "a.yaml:3: cases[0].id: missing"),
    (
        HEAD + "- {id: '', input: x, output: y}",
        "a.yaml:3: cases[0].id: got '' (str), wanted text of printable",
    ),
    (HEAD + "- {id: " + "x" * 257 + ", input: x, output: y}", "wanted at most 256 bytes"),
    ("target: x\n" + HEAD + "- {id: a}", 'a.yaml:4: cases[0] ("a"): no input and no recorded answer'),
    (HEAD + "- {id: a, input: x, output: {txt: y}}", "a.yaml:3: "),
    (HEAD + "- {id: a, input: x, output: [{role: user, content: y}]}", "no message of the agent"),
    (
        HEAD + "- {id: a, input: [{role: usr, content: x}], output: y}",
        """a.yaml:3: cases[0] ("a"): input[0].role: got 'usr' (str); wanted one of user,""",
    ),
    (
        HEAD + "- {id: a, turns: [{input: [{role: user, contnt: x}], output: y}]}",
        'a.yaml:3: cases[0] ("a"): turns[0].input[0].content: missing; wanted text',
    ),
    (HEAD + "- {id: a, input: x, output: y, outputs: [z]}", "outputs: given together with `output`"),
    (HEAD + "- {id: a, input: x, output: {error: e, text: y}}", "output.text: given together with `error`"),
    (HEAD + "- {id: a, input: x, outputs: [y, {error: ''}]}", "outputs[1].error: got '' (str)"),
    (HEAD + "- {id: a, turns: [{input: x, output: {error: e}}]}", "turns[0].output"),
    (HEAD + "- {id: a, turns: [{input: x, output: y}, {input: x}]}", "turns[1].output: missing"),
    (HEAD + "- {id: a, input: x, output: y, expected: {txt: 1}}", "expected.txt: unknown key; wanted 'text'"),
    (
        HEAD + "- {id: a, input: x, output: y, criteria: {sucess: 1}}",
        "criteria.sucess: unknown key; wanted 'success'",
    ),
    (
        HEAD + "- {id: a, input: x, output: y, inherit: false}",
        "inherit: false, but the case has no evaluators",
    ),
    (
        HEAD + "- {id: a, input: x, output: y, weight: -1}",
        "a.yaml:3: cases[0].weight: got -1 (int), wanted 0, or a number from 1e-9 to 1e9",
    ),
    (HEAD + "- {id: a, minPassed: 1, min_passed: 1}", "min_passed is given twice"),
    ("minPassed: 1\nmin_passed: 1\n" + HEAD + "- {id: a}", "a.yaml:1: min_passed is given twice"),
    (HEAD, "a.yaml:2: cases: got null, wanted a list of cases"),
    ("name: x", "a.yaml: no cases"),
    ("- x", "a.yaml:1: got ['x'] (list), wanted a suite, which is a mapping with `cases`"),
    ("options: {agregation: x}\n" + HEAD + "- {id: a}", "a.yaml:1: options.agregation: unknown key"),
    (
        "connectors: {x: {tpe: y}}\n" + HEAD + "- {id: a}",
        "a.yaml:1: connectors.x.tpe: unknown key; wanted 'type'",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_a_wrong_suite_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        _load(tmp_path, text)
    assert message in str(refused.value)
    assert all(str(one).startswith(str(tmp_path / "a.yaml")) for one in refused.value.problems)


@pytest.mark.parametrize("headers", ['["Authorization: Bearer k3y"]', "{Authorization: [k3y]}"])
def test_a_wrong_header_is_refused_without_its_value(tmp_path: Path, headers: str) -> None:
    connector = f"connectors: {{c: {{type: http, baseUrl: http://x, headers: {headers}}}}}\n"
    with pytest.raises(InvalidDocument, match=r"a\.yaml:1: connectors\.c\.headers") as refused:
        _load(tmp_path, connector + HEAD + "- {id: a, input: x, output: y}")
    assert "k3y" not in str(refused.value)


HALF = "\\ud800"  # of a surrogate pair


@pytest.mark.parametrize(
    ("suite", "case", "message"),
    [
        (f'"targets": ["{HALF}"]', "", "targets[0]: half of a surrogate pair"),
        (f'"labels": {{"team": "{HALF}"}}', "", "labels.team: half of a surrogate pair"),
        (f'"labels": {{"{HALF}": "x"}}', "", "labels: half of a surrogate pair"),
        ('"trials": 1', f'"tags": ["x", "{HALF}"]', "tags[1]: half of a surrogate pair"),
        ('"trials": 1', '"weight": 1e999', "cases[0].weight: got inf (float), wanted 0, or"),
    ],
)
def test_what_cannot_be_sent_is_refused(tmp_path: Path, suite: str, case: str, message: str) -> None:
    path = tmp_path / "a.json"
    about = f'"id": "a", "input": "x", "output": "y", "evaluators": ["is-json"]{case and ", "}{case}'
    path.write_text(f'{{{suite}, "cases": [{{{about}}}]}}')
    with pytest.raises(InvalidDocument) as refused:
        load_suites([path])
    assert message in str(refused.value)


def test_a_case_larger_than_a_message_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    case = {"id": "b", "input": "x", "output": "y" * (16 << 20), "evaluators": ["is-json"]}
    path.write_text(json.dumps({**case, "id": "a", "output": "y"}) + "\n" + json.dumps(case))
    with pytest.raises(InvalidDocument, match=r'a\.jsonl:2:  \("b"\): 167\d+ bytes; wanted at most 16711680'):
        load_suites([path])


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    first = _write(tmp_path / "a.yaml", "trails: 1\n" + HEAD + "- {id: a, inptu: x}\n- {id: b, tag: 3}")
    second = _write(tmp_path / "b.jsonl", '{"suite": {}}\n{"id": "a", "tag": 3}')
    with pytest.raises(InvalidDocument) as refused:
        load_suites([first, second])
    places = [str(one).removeprefix(f"{tmp_path}/").partition(" ")[0] for one in refused.value.problems]
    assert places == ["a.yaml:1:", "a.yaml:4:", "a.yaml:5:", "b.jsonl:2:"]


def test_a_line_that_cannot_be_read_is_one_case_in_error(tmp_path: Path) -> None:
    lines = [
        '{"suite": {"evaluators": ["response-length"], "trials": 2}}',
        '{"id": "a", "input": "x", "outputs": ["y", "z"]}',
        '{"id": "torn", "input":',
        '{"id": "b", "input": "x", "output": null}',
        '{"id": "c", "input": "x", "outputs": [NaN]}',
        '{"id": "d", "messages": "x", "tags": ["t"]}',
        '{"id": "e", "input": "x", "output": {"messages": [3]}, "evaluators": ["latency"]}',
        "[1]",
    ]
    data = "\n".join(lines).encode() + b'\n{"id": "\xff"}'
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    (suite,) = load_suites([path])
    good, *broken = suite.cases
    assert [len(trial.answers) for trial in good.recorded_trials] == [1, 1]
    found = {}
    for case in broken:
        # Each trial is in error, so that no minimum of passed trials can be met.
        assert len(case.recorded_trials) == 2
        (error,) = {(trial.error.code, trial.error.message) for trial in case.recorded_trials}
        assert error[0] == "UNREADABLE_ROW"
        found[case.case_id.removeprefix(f"{tmp_path}/")] = error[1].removeprefix(f"{tmp_path}/")
    assert {one: text[: len("a.jsonl:5")] for one, text in found.items()} == {
        "a.jsonl:3": "a.jsonl:3",
        "b": "a.jsonl:4",
        "a.jsonl:5": "a.jsonl:5",
        "d": "a.jsonl:6",
        "e": "a.jsonl:7",
        "a.jsonl:8": "a.jsonl:8",
        "a.jsonl:9": "a.jsonl:9",
    }
    assert suite.case_count == 8


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("42", "42"),
        ("0.5", "0.5"),
        ("true", "true"),
        ("{}", "{}"),
        ('{"city": "Ålesund", "cost": 5}', '{"city": "Ålesund", "cost": 5}'),
        ('{"message": "hi"}', '{"message": "hi"}'),
        ("[1, null]", "[1, null]"),
        ('["Oslo", "Bergen"]', '["Oslo", "Bergen"]'),
        ('[{"city": "Oslo"}]', '[{"city": "Oslo"}]'),
        ('{"text": 42, "latency_ms": 5}', "42"),
        ('{"role": "assistant", "content": "hi"}', "hi"),
    ],
)
def test_an_answer_of_data_is_its_json_text(tmp_path: Path, output: str, text: str) -> None:
    (case,) = _load(tmp_path, f"{HEAD}- {{id: a, input: x, output: {output}}}").cases
    assert case.recorded_trials[0].answers[0].messages[0].text == text


def test_the_messages_of_a_case_end_with_an_answer_a_question_or_an_end_mark(tmp_path: Path) -> None:
    said = "{role: user, content: p}, {role: assistant, content: q}, {role: user, content: %s}"
    text = HEAD + "- {id: a, messages: [" + said + "]}"
    suite = _load(tmp_path, text % "r")
    (case,) = suite.cases
    assert not case.recorded_trials[0].answers[0].messages
    assert [one.text for one in case.turns[0].input] == ["r"]
    assert "1 conversation ends with a message of the user that has no answer" in suite.warnings[0]
    for mark, before in (("'###STOP###'", ""), ("'BYE!!'", "endMarks: [BYE!!]\n")):
        suite = _load(tmp_path, before + text % mark)
        (case,) = suite.cases
        assert [one.text for one in case.turns[0].input] == ["p"]
        assert case.recorded_trials[0].answers[0].messages[0].text == "q"
        assert not suite.warnings


def test_two_suites_with_one_name_are_refused(tmp_path: Path) -> None:
    text = "name: x\n" + HEAD + "- {id: a, input: x, output: y}"
    paths = [_write(tmp_path / "a.yaml", text), _write(tmp_path / "b.yaml", text)]
    with pytest.raises(
        InvalidDocument, match=r'b\.yaml:1: duplicate suite name "x", already used by .*a\.yaml'
    ):
        load_suites(paths)


def test_an_unknown_id_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match='no case has the id "refnd"; did you mean "refund"'):
        _load(tmp_path, HEAD + "- {id: refund, input: x, output: y}", ids=["refnd"])
    with pytest.raises(InvalidDocument, match="no case matches the filters"):
        _load(tmp_path, HEAD + "- {id: refund, input: x, output: y}", tags=["x"])


def test_another_encoding_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b'name: x\nx: "\xff"')
    with pytest.raises(InvalidDocument, match=r"a\.yaml:2:5: not UTF-8: invalid start byte"):
        load_suites([tmp_path / "a.yaml"])
    with pytest.raises(InvalidDocument, match=r"missing\.yaml: No such file"):
        load_suites([tmp_path / "missing.yaml"])


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    """After a change: evald test --schema > docs/suite.schema.json."""
    assert json.loads((ROOT / "docs/suite.schema.json").read_text()) == suite_schema()


def test_the_schema_accepts_what_the_code_accepts_and_knows_the_keys() -> None:
    from evald_server.suites.documents import parse_yaml

    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(parse_yaml(WHOLE, "a.yaml").data)
    for text in (
        HEAD + "- {id: a, imput: x}",
        HEAD + "- {input: x}",
        "trials: 0\n" + HEAD + "- {id: a}",
        "cases: []",
    ):
        assert not check.is_valid(parse_yaml(text, "a.yaml").data)


@pytest.mark.thorough
def test_ids_of_a_large_suite_take_eight_bytes_each() -> None:
    ids = IdSet()
    assert ids.add("a")
    tracemalloc.start()
    for number in range(140_000):  # the latest 64 Ki are merged twice
        assert ids.add(str(number))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 4_000_000
    for known in ("a", "0", "131072", "139999"):
        assert not ids.add(known)


def test_a_large_suite_is_kept_on_the_disk_and_found_wrong_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evald_server.suites.message_file._KEPT_BYTES", 1000)
    lines = [json.dumps({"id": f"c{n}", "input": "x", "output": "y"}) for n in range(100)]
    head = json.dumps({"suite": {"evaluators": ["response-length"]}})
    suite = _load(tmp_path, "\n".join([head, *lines]), "a.jsonl")
    assert suite.case_count == 100
    for _ in range(2):
        assert [case.case_id for case in suite.cases] == [f"c{n}" for n in range(100)]
    assert suite.place("c5") == str(tmp_path / "a.jsonl")
    with pytest.raises(InvalidDocument, match=r'a\.jsonl:102: duplicate id "c7"'):
        _load(tmp_path, "\n".join([head, *lines, lines[7]]), "a.jsonl")
