"""Recorded answers are joined with their cases by id, else by input; what fits nowhere is named with its line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evald_server.suites.documents import InvalidDocument
from evald_server.suites.suite_file import Suite, load_suites

SUITE = """\
evaluators: [response-length]
target: staging
cases:
- {id: a, input: What is a?}
- {id: b, input: [{role: user, content: What is b?}], output: replaced}
- {id: c, turns: [{input: one}, {input: two}]}
"""
MESSAGES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "second"},
]


def _load(tmp_path: Path, *files: tuple[str, str]) -> Suite:
    (tmp_path / "suite.yaml").write_text(SUITE)
    for name, text in files:
        (tmp_path / name).write_text(text)
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / name for name, _ in files])
    return suite


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _answers(suite: Suite) -> dict[str, list[list[str]]]:
    return {
        case.case_id: [
            [answer.messages[-1].text for answer in trial.answers] for trial in case.recorded_trials
        ]
        for case in suite.cases
    }


def test_rows_are_joined_by_id_else_by_input(tmp_path: Path) -> None:
    rows = _lines(
        {"id": "c", "messages": MESSAGES},
        {"input": "What is b?", "output": "B"},
        {"id": "a", "output": "A", "latency_ms": 12, "usage": {"prompt_tokens": 3}, "unknown": 1},
    )
    suite = _load(tmp_path, ("t.jsonl", rows))
    assert _answers(suite) == {"a": [["A"]], "b": [["B"]], "c": [["first", "second"]]}
    (case, *_) = suite.cases
    (answer,) = case.recorded_trials[0].answers
    assert answer.latency.ToMilliseconds() == 12
    assert answer.token_usage.input_tokens == 3
    assert not suite.warnings


@pytest.mark.parametrize(
    ("file", "rows"),
    [
        (
            "t.jsonl",
            _lines(
                {"id": "a", "output": "", "error": "timed out"}, {"id": "a", "output": "A", "error": None}
            ),
        ),
        ("t.jsonl", _lines({"id": "a", "output": "half", "error": "timed out"}, {"id": "a", "output": "A"})),
        ("t.csv", "id,output,error\na,,timed out\na,A,\n"),
    ],
)
def test_a_row_with_an_error_is_a_trial_in_error(tmp_path: Path, file: str, rows: str) -> None:
    rest = ("rest.jsonl", _lines({"id": "b", "output": "B"}, {"id": "c", "messages": MESSAGES}))
    (case, *_) = _load(tmp_path, (file, rows), rest).cases
    broken, answered = case.recorded_trials
    assert (broken.error.code, broken.error.message) == ("RECORDED_ERROR", "timed out")
    assert not broken.answers
    assert not answered.HasField("error")
    assert answered.answers[0].messages[0].text == "A"


def test_several_rows_of_a_case_are_its_trials_in_order(tmp_path: Path) -> None:
    rows = [{"id": one, "output": f"{one}{n}"} for n in range(3) for one in ("b", "a")]
    more = {"id": "c", "answers": ["x", {"text": "y"}]}
    found = _answers(_load(tmp_path, ("t.jsonl", _lines(*rows)), ("u.jsonl", _lines(more, more))))
    assert found == {"a": [["a0"], ["a1"], ["a2"]], "b": [["b0"], ["b1"], ["b2"]], "c": [["x", "y"]] * 2}


def test_conversations_without_ids_are_joined_by_what_the_user_asked_last(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": asked.upper()}]}
        for asked in ("What is a?", "What is b?")
    ]
    found = _answers(_load(tmp_path, ("t.jsonl", _lines(*rows, {"messages": MESSAGES}))))
    assert found == {"a": [["WHAT IS A?"]], "b": [["WHAT IS B?"]], "c": [["first", "second"]]}


def test_csv_has_a_header_and_cells_with_line_ends(tmp_path: Path) -> None:
    text = (
        'id,output,latencyMs,messages\r\na,"two\nlines",5.5,\r\nb,,,\r\nc,,,"'
        + json.dumps(MESSAGES).replace('"', '""')
        + '"\r\n'
    )
    assert _answers(_load(tmp_path, ("t.csv", text)))["c"] == [["first", "second"]]
    text = text.replace("c,,,", "x,,,")
    suite = _load(tmp_path, ("t.csv", text), ("c.jsonl", _lines({"id": "c", "messages": MESSAGES})))
    assert _answers(suite) == {"a": [["two\nlines"]], "b": [[""]], "c": [["first", "second"]]}
    (case, *_) = suite.cases
    assert case.recorded_trials[0].answers[0].latency.ToMicroseconds() == 5500
    assert suite.warnings == [f"{tmp_path}/t.csv:5: no case matches this transcript"]


def _errors(suite: Suite) -> dict[str, tuple[str, str]]:
    """Return code and message of the cases in error, without the directory."""
    return {
        case.case_id.rpartition("/")[2]: (trial.error.code, trial.error.message.rpartition("/")[2])
        for case in suite.cases
        for trial in case.recorded_trials
        if trial.HasField("error")
    }


# Readable rows of the cases.
REST = {
    "a": {"id": "a", "output": "A"},
    "b": {"id": "b", "output": "B"},
    "c": {"id": "c", "messages": MESSAGES},
}


@pytest.mark.parametrize(
    ("case", "name", "text", "place", "problem"),
    [
        ("a", "t.jsonl", '{"id": "a"', "t.jsonl:1:11", "not valid JSON"),
        ("a", "t.jsonl", '{"id": "a", "output": NaN}', "t.jsonl:1", "not valid JSON: NaN"),
        ("a", "t.jsonl", '{"id": "a", "output": 1, "output": 2}', "t.jsonl:1", "duplicate key"),
        ("a", "t.jsonl", '{"id": "a", "output": 1e999}', "t.jsonl:1", "a number beyond a double"),
        ("a", "t.jsonl", b'{"output": "\xff", "id": "a"}', "t.jsonl:1:13", "not UTF-8"),
        ("a", "t.jsonl", '\ufeff\r\n{"id": "a", "output": null}\r\n', "t.jsonl:2", "got no output"),
        ("a", "t.jsonl", _lines({"id": "a", "outptu": "A"}), "t.jsonl:1", "got no output, only id, outptu"),
        ("a", "t.jsonl", _lines({"id": "a", "output": {"txt": "A"}}), "t.jsonl:1", "output.role: missing"),
        (
            "a",
            "t.jsonl",
            _lines({"id": "a", "output": {"text": "A", "x": 1}}),
            "t.jsonl:1",
            "output.x: unknown",
        ),
        ("a", "t.jsonl", _lines({"id": "a", "output": []}), "t.jsonl:1", "output: no messages"),
        ("a", "t.jsonl", _lines({"id": "a", "output": "\ud800"}), "t.jsonl:1", "half of a surrogate pair"),
        ("a", "t.jsonl", _lines({"id": "a", "messages": [3]}), "t.jsonl:1", "messages: got [3]"),
        (
            "a",
            "t.jsonl",
            _lines({"id": "a", "messages": [{"rol": "x"}]}),
            "t.jsonl:1",
            "messages[0].role: missing",
        ),
        ("a", "t.jsonl", _lines({"id": "a", "messages": "hi"}), "t.jsonl:1", "messages: got 'hi'"),
        ("a", "t.jsonl", _lines({"id": "a", "input": {"q": 1}, "output": "A"}), "t.jsonl:1", "role: missing"),
        (
            "a",
            "t.jsonl",
            _lines({"id": "a", "output": "A", "latency_ms": -1}),
            "t.jsonl:1",
            "latency_ms: got -1",
        ),
        ("c", "t.jsonl", _lines({"id": "c", "answers": "A"}), "t.jsonl:1", "answers: got 'A'"),
        (
            "a",
            "t.jsonl",
            _lines({"id": "a", "output": "A", "messages": MESSAGES[2:]}),
            "t.jsonl:1",
            "got an answer in output and in messages; wanted it in one of them",
        ),
        (
            "a",
            "t.jsonl",
            _lines({"id": "a", "answers": ["A"], "response": "A"}),
            "t.jsonl:1",
            "got an answer in output and in answers; wanted it in one of them",
        ),
        ("a", "t.json", '[\n{"id": "a", "output": NaN}\n]', "t.json:2", "not valid JSON: NaN"),
        ("a", "t.csv", "id,output\na,b,c\n", "t.csv:2", "got 3 cells, wanted 2 as in the header"),
        ("a", "t.csv", "id,output,error\n,,\na,b\n", "t.csv:3", "got 2 cells, wanted 3 as in the header"),
        ("a", "t.csv", 'id,output\na,"b"c\n', "t.csv:2", "not valid CSV"),
        ("a", "t.csv", b"id,output\na,\xff\n", "t.csv:2:3", "not UTF-8"),
        ("a", "t.csv", "id,output,latency_ms\na,b,soon\n", "t.csv:2: latency_ms", "not valid JSON"),
    ],
)
def test_a_row_that_cannot_be_read_is_its_case_in_error(
    tmp_path: Path, case: str, name: str, text: str | bytes, place: str, problem: str
) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    (tmp_path / "suite.yaml").write_text(SUITE)
    others = tmp_path / "rest.jsonl"
    others.write_text(_lines(*(row for one, row in REST.items() if one != case)))
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / name, others])
    ((found, (code, message)),) = _errors(suite).items()
    assert (found, code) == (case, "UNREADABLE_ROW")
    assert message.startswith(f"{place}:")
    assert problem in message
    assert suite.case_count == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.jsonl", "[1]\n"),
        ("t.jsonl", _lines({"output": "A"})),
        ("t.jsonl", '{"ix":\n'),
        ("t.jsonl", '{"id": "zz",\n'),
        ("t.csv", 'id,output\nq,"b\n'),
        ("t.csv", "id,output\n,b\n"),
    ],
)
def test_a_row_whose_case_is_not_known_never_leaves_a_green_suite(
    tmp_path: Path, name: str, text: str
) -> None:
    lacking = _load(tmp_path, (name, text), ("rest.jsonl", _lines(REST["b"], REST["c"])))
    assert {one: code for one, (code, _) in _errors(lacking).items()} == {"a": "NO_TRANSCRIPT"}
    assert "the row is left out" in lacking.warnings[0]
    whole = _load(tmp_path, (name, text), ("rest.jsonl", _lines(*REST.values())))
    line = 2 if name == "t.csv" else 1
    assert {one: code for one, (code, _) in _errors(whole).items()} == {f"{name}:{line}": "UNREADABLE_ROW"}
    assert (whole.case_count, whole.open.case_count) == (4, 4)
    assert whole.open.cases_digest != _load(tmp_path, ("t.jsonl", _lines(*REST.values()))).open.cases_digest


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _agent(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


STOP = _user("Thanks. ###STOP###")
SYSTEM = {"role": "system", "content": "Be brief."}
CALLS = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "1"},
]
SEEDED = """\
evaluators: [response-length]
endMarks: [BYE!!]
cases:
- id: one
  input: "Wie  heißt Zo\u00eb?"
- id: two
  turns: [{input: p}, {input: [{role: user, content: q}, {role: user, content: r}]}]
- id: seeded
  messages: [{role: system, content: s}, {role: user, content: p}, {role: assistant, content: hello}]
  input: q
- id: history
  input: [{role: user, content: p}, {role: assistant, content: hello}, {role: user, content: q}]
"""


@pytest.mark.parametrize(
    ("case", "row"),
    [
        ("one", {"messages": [SYSTEM, _user(" Wie heißt\nZoe\u0308? "), *CALLS, _agent("x")]}),
        ("one", {"messages": [_user("Wie heißt Zoë?"), _agent("x"), STOP, SYSTEM]}),
        ("one", {"messages": [_user("Wie heißt Zoë?"), _agent("x"), _user("BYE!!")]}),
        (
            "one",
            {"messages": [{"type": "human", "content": "Wie heißt Zoë?"}, {"type": "ai", "content": "x"}]},
        ),
        ("one", {"output": [_user("Wie heißt Zoë?"), _agent("x")]}),
        ("one", {"input": " Wie heißt Zoë?", "output": "x"}),
        ("one", {"input": [_user("Wie heißt Zoë?")], "output": "x"}),
        ("one", {"messages": [SYSTEM, _user("Wie heißt Zoë?")], "output": "x"}),
        ("one", {"output": "x"}),
        ("two", {"messages": [_user("p"), _agent("0"), _user("q"), _user("r"), _agent("x")]}),
        ("two", {"answers": ["0", "x"], "input": "r"}),
        ("two", {"answers": ["0", "x"], "messages": [_user("p"), _user("q"), _user("r")]}),
        ("seeded", {"messages": [_user("p"), _agent("hello"), _user("q"), _agent("x")]}),
        ("seeded", {"messages": [_user("q"), _agent("x")]}),
        ("history", {"messages": [_user("p"), _agent("hello"), _user("q"), _agent("x")]}),
    ],
)
def test_a_recording_of_the_case_is_read(tmp_path: Path, case: str, row: dict[str, Any]) -> None:
    assert _seeded(tmp_path, case, row) == "x"


@pytest.mark.parametrize(
    ("case", "row", "problem"),
    [
        (
            "one",
            {"messages": [_user("other"), _agent("x")]},
            'in turn 1 it asks "other", the case "Wie heißt Zoë?"',
        ),
        ("one", {"messages": [_user("Wie heißt Zoë?")]}, "its last message is one of the user"),
        ("one", {"messages": [_user("y"), _agent("x"), _user("Wie heißt Zoë?")]}, "its last message is"),
        ("one", {"messages": [_user("Wie heißt Zoë?"), _agent("x"), _user("y?")]}, "its last message is"),
        (
            "one",
            {"messages": [_user("y"), _agent("z"), _user("Wie heißt Zoë?"), _agent("x")]},
            "it has 2 turns",
        ),
        (
            "one",
            {"messages": [_user("Wie heißt Zoë?"), _agent("x"), _user("y"), _agent("z")]},
            "it has 2 turns",
        ),
        (
            "one",
            {"messages": [_agent("y"), _user("Wie heißt Zoë?"), _agent("x")]},
            "it begins with a message of",
        ),
        (
            "one",
            {"messages": [_user("Wie heißt Zoë?"), _user("y"), _agent("x")]},
            'it asks "Wie heißt Zoë?" and "y"',
        ),
        ("one", {"messages": [_agent("x")]}, "it begins with a message of the agent"),
        ("one", {"output": [_user("other"), _agent("x")]}, 'it asks "other"'),
        ("one", {"input": "other", "output": "x"}, 'it asks "other"'),
        ("one", {"input": [_user("other")], "output": "x"}, 'it asks "other"'),
        ("one", {"input": "other", "messages": [_user("Wie heißt Zoë?"), _agent("x")]}, 'it asks "other"'),
        ("one", {"messages": [_user("other")], "output": "x"}, 'it asks "other"'),
        ("one", {"answers": ["x", "y"]}, "it has 2 answers, the case 1 turns"),
        ("two", {"output": "x"}, "it has one output, the case 2 turns"),
        ("two", {"answers": ["x"]}, "it has 1 answers, the case 2 turns"),
        (
            "two",
            {"messages": [_user("q"), _user("r"), _agent("0"), _user("p"), _agent("x")]},
            "in turn 1 it asks",
        ),
        (
            "two",
            {"messages": [_user("p"), _user("q"), _user("r"), _agent("x")]},
            "it has 1 turns, the case 2",
        ),
        ("two", {"answers": ["0", "x"], "messages": [_user("p"), _user("r")]}, 'it asks "p" and "r"'),
        (
            "seeded",
            {"messages": [_user("p"), _agent("BAD"), _user("q"), _agent("x")]},
            'the agent says "BAD"',
        ),
        ("seeded", {"messages": [_user("q"), _agent("hello"), _user("p"), _agent("x")]}, "in turn 1 it asks"),
    ],
)
def test_a_transcript_of_another_conversation_is_its_case_in_error(
    tmp_path: Path, case: str, row: dict[str, Any], problem: str
) -> None:
    code, message = _seeded(tmp_path, case, row)
    assert code == "TRANSCRIPT_MISMATCH"
    assert message.startswith("t.jsonl:5: ")
    assert problem in message


def _seeded(tmp_path: Path, case: str, row: dict[str, Any]) -> Any:
    """Return the answer of a case, or its error. The other cases have none."""
    (tmp_path / "suite.yaml").write_text(SEEDED)
    rest = [{"id": "one", "output": ""}, {"id": "two", "answers": ["", ""]}]
    rest += [{"id": "seeded", "output": ""}, {"id": "history", "output": ""}]
    lines = [one if one["id"] != case else {"id": "unused", "output": ""} for one in rest]
    (tmp_path / "t.jsonl").write_text(_lines(*lines, {"id": case, **row}))
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    errors = _errors(suite)
    assert errors.keys() <= {case}
    (answer,) = next(one for one in suite.cases if one.case_id == case).recorded_trials
    return errors.get(case) or answer.answers[-1].messages[-1].text


def test_a_wrong_trial_leaves_its_case_without_a_verdict_and_others_alone(tmp_path: Path) -> None:
    rows = [{"id": "a", "output": "A"}, {"id": "a", "input": "other", "output": "B"}, *REST.values()]
    suite = _load(tmp_path, ("t.jsonl", _lines(*rows)))
    case, *_ = suite.cases
    assert len(case.recorded_trials) == 3
    assert all(trial.error.code == "TRANSCRIPT_MISMATCH" for trial in case.recorded_trials)
    assert _errors(suite).keys() == {"a"}


def test_rows_without_ids_belong_to_the_case_whose_questions_they_have(tmp_path: Path) -> None:
    turns = "- {id: %s, turns: [{input: %s}, {input: 'Yes.'}]}\n"
    (tmp_path / "suite.yaml").write_text(
        "evaluators: [response-length]\ncases:\n" + turns % ("a", "p") + turns % ("b", "q")
    )
    rows = [
        {"messages": [_user(asked), _agent("0"), _user("Yes. "), _agent(asked.upper())]} for asked in "qp"
    ]
    (tmp_path / "t.jsonl").write_text(_lines(*rows))
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    assert _answers(suite) == {"a": [["0", "P"]], "b": [["0", "Q"]]}
    assert not suite.warnings


@pytest.mark.parametrize(
    "row",
    [
        {"status": "error", "message": "it broke"},
        {"status": "Failed", "reason": "it broke"},
        {"success": False, "error_message": "it broke"},
        {"ok": False, "detail": "it broke"},
        {"error": "it broke", "success": True},
        {"exception": "it broke"},
        {"status": "timeout", "message": "it broke"},
        {"status": "Timed Out", "error_message": "it broke"},
    ],
)
def test_a_row_that_reports_an_error_is_one(tmp_path: Path, row: dict[str, Any]) -> None:
    rows = [{"id": "a", "output": "A", **row}, REST["b"], REST["c"]]
    assert _errors(_load(tmp_path, ("t.jsonl", _lines(*rows)))) == {"a": ("RECORDED_ERROR", "it broke")}
    table = "id,output," + ",".join(row) + "\na,A," + ",".join(map(str, row.values())) + "\n"
    found = _load(tmp_path, ("t.csv", table), ("t.jsonl", _lines(REST["b"], REST["c"])))
    assert _errors(found) == {"a": ("RECORDED_ERROR", "it broke")}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", json.dumps(list(REST.values()), indent=1)),
        ("t.jsonl", json.dumps(list(REST.values()))),
    ],
)
def test_an_array_is_read_as_lines_are(tmp_path: Path, name: str, text: str) -> None:
    assert _answers(_load(tmp_path, (name, text))) == {
        "a": [["A"]],
        "b": [["B"]],
        "c": [["first", "second"]],
    }


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("first", ["", "\ufeff", "sep={}\r\n", "\n"])
def test_the_header_tells_the_delimiter_of_a_table(tmp_path: Path, delimiter: str, first: str) -> None:
    answers = '"[""first"", ""second""]"'
    rows = [
        ("id", "answers", "output", ""),
        ("a", "", '"A, B; C\t"', ""),
        ("", " ", "", ""),
        ("b", "", "B", ""),
    ]
    rows.append(("c", answers, "", ""))
    text = first.format(delimiter) + "".join(delimiter.join(row) + "\r\n" for row in rows)
    assert _answers(_load(tmp_path, ("t.csv", text))) == {
        "a": [["A, B; C\t"]],
        "b": [["B"]],
        "c": [["first", "second"]],
    }


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "id,answr\na,b\n", "t.csv:1: got the columns id, answr; wanted a header with output"),
        ("t.csv", "id,output,output\na,b,c\n", "t.csv:1: got a duplicate column 'output'"),
        ("t.csv", "", "t.csv:1: got the columns none"),
        ("t.jsonl", None, "t.jsonl: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / name])
    assert message in str(refused.value)


@pytest.mark.parametrize("case", ["t.jsonl", "t.csv", "suite.jsonl"])
@pytest.mark.parametrize("endless", ["/dev/zero", "/dev/urandom", "pipe", "large"])
def test_a_file_without_an_end_is_refused_at_once(tmp_path: Path, case: str, endless: str) -> None:
    path = tmp_path / case
    if endless == "pipe":
        os.mkfifo(path)
    elif endless == "large":
        with path.open("w") as stream:
            stream.write("id,output\n" if case == "t.csv" else "")
            stream.truncate(1 << 40)  # a single line
    else:
        path.symlink_to(endless)
    (tmp_path / "suite.yaml").write_text(SUITE)
    suite, transcripts = (path, []) if case == "suite.jsonl" else (tmp_path / "suite.yaml", [path])
    reason = rf"{case}(:[12])?: (got a pipe or a device|longer than 256 MiB)"
    with pytest.raises(InvalidDocument, match=reason):
        load_suites([suite], transcripts=transcripts)


def test_fewer_transcripts_than_trials_are_refused_with_both_numbers(tmp_path: Path) -> None:
    rows = [{"id": "a", "output": "A"}, {"id": "a", "output": "A"}, REST["b"], REST["c"]]
    (tmp_path / "suite.yaml").write_text("trials: 2\n" + SUITE)
    (tmp_path / "t.jsonl").write_text(_lines(*rows))
    with pytest.raises(InvalidDocument) as refused:
        load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    places = [str(one).rpartition("/")[2] for one in refused.value.problems]
    assert places == [
        f'suite.yaml:{line}: cases[{index}] ("{one}"): trials: 2, but the case has 1 recorded answer; '
        "wanted 2 recorded answers, or `trials: 1`"
        for line, index, one in ((6, 1, "b"), (7, 2, "c"))
    ]
    # The missing row may be one that cannot be read: then only this case is in error.
    (tmp_path / "t.jsonl").write_text(_lines(*rows, REST["c"]) + "{")
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    assert {one: code for one, (code, _) in _errors(suite).items()} == {"b": "NO_TRANSCRIPT"}


def test_messages_before_an_output_are_no_answer(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "output": "a", "messages": [_user("What is a?")]},
        {"id": "b", "output": "b", "messages": [SYSTEM, _user("What is b?"), SYSTEM]},
        {"id": "c", "answers": ["x", "y"], "messages": []},
    ]
    assert _answers(_load(tmp_path, ("t.jsonl", _lines(*rows)))) == {
        "a": [["a"]],
        "b": [["b"]],
        "c": [["x", "y"]],
    }


def test_what_goes_with_an_answer_is_read_in_both_spellings(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "output": "A", "latencyMs": 5, "costUsd": 2},
        {"id": "b", "output": "B", "latency_ms": 5, "cost_usd": 2},
        {"id": "c", "answers": ["x", "y"]},
    ]
    for case in list(_load(tmp_path, ("t.jsonl", _lines(*rows))).cases)[:2]:
        answer = case.recorded_trials[0].answers[0]
        assert (answer.latency.ToMilliseconds(), answer.cost.amount) == (5, 2)


@pytest.mark.parametrize("piped", ["suite", "transcripts"])
def test_a_pipe_is_refused_because_files_are_read_twice(tmp_path: Path, piped: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    reading, writing = os.pipe()
    os.write(writing, b'{"id": "a", "output": "A"}\n')
    os.close(writing)
    pipe = tmp_path / "pipe.jsonl"
    pipe.symlink_to(f"/dev/fd/{reading}")
    suite, transcripts = (pipe, []) if piped == "suite" else (tmp_path / "suite.yaml", [pipe])
    with pytest.raises(
        InvalidDocument, match=r"pipe\.jsonl: got a pipe or a device, which .*; wanted a file"
    ):
        load_suites([suite], transcripts=transcripts)
    os.close(reading)


def test_what_the_messages_of_a_turn_report_is_read_unless_the_row_says_it(tmp_path: Path) -> None:
    spent = {"latency_ms": 5, "usage": {"input_tokens": 1, "output_tokens": 2}, "cost_usd": 0.5}
    messages = [one | (spent if one["role"] == "assistant" else {}) for one in MESSAGES]
    suite = _load(
        tmp_path,
        ("c.jsonl", _lines({"id": "c", "messages": messages, "latency": "0.007s"})),
        ("a.jsonl", _lines({"id": "a", "output": "A", "tokenUsage": {"input": 3, "output": 4}})),
        (
            "b.jsonl",
            _lines(
                {
                    "id": "b",
                    "messages": [_user("What is b?"), messages[3]],
                    "message_meta": [None, {"usage": {"input": 9}}],
                }
            ),
        ),
    )
    found = {
        case.case_id: [
            (one.latency.ToMilliseconds(), one.token_usage.input_tokens, one.cost.amount)
            for one in case.recorded_trials[0].answers
        ]
        for case in suite.cases
    }
    assert found == {"a": [(0, 3, 0)], "b": [(5, 9, 0.5)], "c": [(5, 1, 0.5), (7, 1, 0.5)]}


def test_of_many_transcripts_without_a_case_the_first_are_named(tmp_path: Path) -> None:
    rows = [{"id": "a", "output": "A"}, {"id": "b", "output": "B"}, {"id": "c", "answers": ["x", "y"]}]
    rows += [{"id": f"z{n}", "output": "Z"} for n in range(10)]
    suite = _load(tmp_path, ("t.jsonl", _lines(*rows)))
    assert suite.warnings[-1] == "no case matches 7 more transcripts"
    assert len(suite.warnings) == 4


def test_a_case_without_input_is_a_whole_conversation_in_each_trial(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text("evaluators: [response-length]\ncases: [{id: talk}]\n")
    unanswered = [*MESSAGES, _user("Hello?")]
    rows = [unanswered, MESSAGES[:2], [*MESSAGES, STOP], [SYSTEM, _user("Hello?")]]
    (tmp_path / "t.jsonl").write_text(_lines(*({"id": "talk", "messages": said} for said in rows)))
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    (case,) = suite.cases
    found = [[one.text for one in trial.answers[0].messages] for trial in case.recorded_trials]
    talk = ["one", "first", "two", "second"]
    assert found == [[*talk, "Hello?"], talk[:2], talk, ["Be brief.", "Hello?"]]
    assert not case.turns[0].input
    assert "2 conversations end with messages of the user that have no answer" in suite.warnings[0]
