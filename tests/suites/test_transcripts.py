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


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", _lines({"id": "a", "output": "A"}), 'suite.yaml:5: cases[1] ("b"): no transcript'),
        ("t.jsonl", '{"id": "a", "output": "A"}\n{"id"', "t.jsonl:2:6: not valid JSON"),
        ("t.jsonl", "[1]\n", "t.jsonl:1: got [1] (list), wanted"),
        (
            "t.jsonl",
            _lines({"output": "A"}),
            "t.jsonl:1: got neither an id nor an input, only output; wanted",
        ),
        ("t.jsonl", _lines({"id": "a", "outptu": "A"}), "t.jsonl:1: got no output, only id, outptu"),
        (
            "t.jsonl",
            _lines({"id": "c", "output": "A"}),
            "t.jsonl:1: got one output, but the case has 2 turns",
        ),
        (
            "t.jsonl",
            _lines({"id": "c", "answers": ["A"]}),
            "t.jsonl:1: got 1 answers, but the case has 2 turns",
        ),
        (
            "t.jsonl",
            _lines({"id": "a", "messages": MESSAGES[:1]}),
            "t.jsonl:1: got a turn without an answer",
        ),
        ("t.jsonl", _lines({"id": "a", "messages": [3]}), "t.jsonl:1: messages: got [3]"),
        (
            "t.jsonl",
            _lines({"id": "a", "output": "A", "messages": MESSAGES[2:]}),
            "t.jsonl:1: got an answer in output and in messages; wanted it in one of them",
        ),
        (
            "t.jsonl",
            _lines({"id": "a", "answers": ["A"], "response": "A"}),
            "t.jsonl:1: got an answer in output and in answers; wanted",
        ),
        (
            "t.jsonl",
            _lines({"id": "a", "output": [{"role": "user", "content": "x"}]}),
            "t.jsonl:1: output: no message",
        ),
        ("t.csv", "id,answr\na,b\n", "t.csv:1: got the columns id, answr; wanted a header with output"),
        ("t.csv", "id,output\na,b,c\n", "t.csv:2: got 3 cells, wanted 2 as in the header"),
        ("t.csv", 'id,output\na,"b\n', "t.csv:2: not valid CSV"),
        ("t.csv", "id,output,latency_ms\na,b,soon\n", "t.csv:2: latency_ms"),
        ("t.csv", "id,output,output\na,b,c\n", "t.csv:1: got a duplicate column 'output'"),
        ("t.jsonl", None, "t.jsonl: No such file"),
    ],
)
def test_what_fits_nowhere_is_refused_with_its_place(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / name])
    assert message in str(refused.value)


def test_messages_before_an_output_are_no_answer(tmp_path: Path) -> None:
    rows = [{"id": one, "output": one, "messages": MESSAGES[:3]} for one in ("a", "b")]
    assert _answers(
        _load(tmp_path, ("t.jsonl", _lines(*rows, {"id": "c", "answers": ["x", "y"], "messages": []})))
    ) == {"a": [["a"]], "b": [["b"]], "c": [["x", "y"]]}


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
        InvalidDocument, match=r"pipe\.jsonl: got a pipe, which can be read only once; wanted a file"
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
            _lines({"id": "b", "messages": messages[2:], "message_meta": [None, {"usage": {"input": 9}}]}),
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
    bye = {"role": "user", "content": "bye"}
    rows = [{"id": "talk", "messages": [*MESSAGES, bye]}, {"id": "talk", "messages": MESSAGES[:2]}]
    (tmp_path / "t.jsonl").write_text(_lines(*rows))
    (suite,) = load_suites([tmp_path / "suite.yaml"], transcripts=[tmp_path / "t.jsonl"])
    (case,) = suite.cases
    found = [[one.text for one in trial.answers[0].messages] for trial in case.recorded_trials]
    assert found == [["one", "first", "two", "second"], ["one", "first"]]
    assert not case.turns[0].input
