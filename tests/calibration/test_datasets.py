"""Files of labelled cases are read, whoever's format they are in; what is none is refused with its place."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evald import Turn
from evald_server.calibration.datasets import BadCases, read_cases

DATA = Path(__file__).with_name("data")
EXAMPLES = Path(__file__).parents[2] / "examples/calibration"


@pytest.mark.parametrize(
    ("path", "labels", "left_out"),
    [
        pytest.param(DATA / "llmbar.jsonl", "abba", 0, id="LLMBar with recorded judges"),
        pytest.param(DATA / "dataset.json", "abba", 0, id="LLMBar as published"),
        pytest.param(DATA / "pandalm.jsonl", "bbaa", 1, id="PandaLM in lines"),
        pytest.param(DATA / "testset-v1.json", "bb", 1, id="PandaLM as published"),
        pytest.param(DATA / "tau2.jsonl", ["pass", "pass", "fail"], 0, id="tau2"),
        pytest.param(EXAMPLES / "cases.jsonl", ["pass", "fail"] * 3, 0, id="evald"),
        pytest.param(EXAMPLES / "llmbar.jsonl", "a" * 42 + "b" * 58, 0, id="LLMBar in evald's format"),
    ],
)
def test_every_format_is_told_by_its_first_record(path: Path, labels: Any, left_out: int) -> None:
    found = read_cases(path)
    assert Counter(case.label for case in found.cases) == Counter(labels)
    assert found.left_out == left_out
    assert len({case.id for case in found.cases}) == len(found.cases)
    for case in found.cases:
        for swapped in (False, True):
            context = Turn.from_dict(case.turn(swapped=swapped)).context
            assert context.answer or context.turn_tool_calls
            assert context.is_final


def test_both_ways_to_write_llmbar_are_the_same_cases() -> None:
    lines, published = read_cases(DATA / "llmbar.jsonl").cases, read_cases(DATA / "dataset.json").cases
    assert [(one.messages, one.pair, one.label) for one in lines] == [
        (one.messages, one.pair, one.label) for one in published
    ]
    assert lines[0].metadata["recorded"]["GPT-4/Vanilla"] in ({"ab": "b", "ba": "b"}, {"ab": "a", "ba": "a"})


def test_a_pair_is_shown_in_both_orders() -> None:
    case = read_cases(DATA / "dataset.json").cases[0]
    assert case.pair
    straight, swapped = case.turn(), case.turn(swapped=True)
    assert straight["messages"][-1]["content"] == f"Answer 1:\n{case.pair[0]}\n\nAnswer 2:\n{case.pair[1]}"
    assert swapped["messages"][-1]["content"] == f"Answer 1:\n{case.pair[1]}\n\nAnswer 2:\n{case.pair[0]}"
    assert (straight["metadata"]["order"], swapped["metadata"]["order"]) == ("ab", "ba")
    assert case.expected_verdict() is not case.expected_verdict(swapped=True)


def test_ties_and_missing_majorities_are_left_out() -> None:
    votes = [json.loads(line)["human"] for line in (DATA / "pandalm.jsonl").read_text().splitlines()]
    assert [0, 0, 0] in votes
    assert all(case.pair for case in read_cases(DATA / "pandalm.jsonl").cases)


def test_a_transcript_of_tau2_becomes_messages_again() -> None:
    cases = {case.id: case for case in read_cases(DATA / "tau2.jsonl").cases}
    roles = [message["role"] for case in cases.values() for message in case.messages]
    assert {"user", "assistant", "tool"} == set(roles)
    for case in cases.values():
        assert case.messages[-1]["role"] == "assistant"
        calls = [call for message in case.messages for call in message.get("tool_calls", ())]
        results = [message["tool_call_id"] for message in case.messages if message["role"] == "tool"]
        assert [call["id"] for call in calls] == results
        for call in calls:
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    several = [len(message.get("tool_calls", ())) for case in cases.values() for message in case.messages]
    assert max(several) > 1
    with_policy = [case for case in cases.values() if "followed this policy" in case.criteria]
    assert len(with_policy) == 1
    assert "Airline Agent Policy" in with_policy[0].criteria


GOOD = {"id": "1", "question": "Hi", "answer": "Hello", "label": "pass"}


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        pytest.param({**GOOD, "label": "good"}, ":1: label: ", id="label"),
        pytest.param({**GOOD, "label": "a"}, '"a" for one answer', id="a pair's label"),
        pytest.param(
            {"id": "1", "question": "?", "answers": ["a", "b"], "label": "pass"},
            "for two answers",
            id="no pair's label",
        ),
        pytest.param(
            {**GOOD, "critera": "be kind"}, "critera: unknown key, did you mean criteria?", id="mistyped"
        ),
        pytest.param({key: GOOD[key] for key in ("question", "answer", "label")}, "id: missing", id="no id"),
        pytest.param(
            {key: GOOD[key] for key in ("id", "answer", "label")},
            "question, messages: got none",
            id="no question",
        ),
        pytest.param(
            {**GOOD, "messages": [{"role": "user", "content": "?"}]}, "got both", id="two questions"
        ),
        pytest.param({**GOOD, "answers": ["x", "y"]}, "got both", id="two kinds of answers"),
        pytest.param(
            {"id": "1", "label": "pass", "messages": [{"role": "user", "content": "?"}]},
            "no answer",
            id="no answer",
        ),
        pytest.param({**GOOD, "id": 7}, "id: ", id="number as id"),
        pytest.param(
            {"id": "1", "question": "?", "answers": ["only one"], "label": "a"}, "answers: ", id="one answer"
        ),
        pytest.param([1], "got int, wanted an object", id="a list of numbers"),
        pytest.param(
            {"output_1": "x", "output_2": "y", "input": "?", "label": 3}, "got 3, wanted 1 or 2", id="llmbar"
        ),
        pytest.param(
            {"instruction": "?", "output_1": "x", "output_2": "y", "human": [1, 5, 1]},
            "wanted 0, 1 or 2",
            id="pandalm",
        ),
        pytest.param(
            {"instruction": "?", "output_1": "x", "output_2": "y", "human": [0, 1, 2]},
            "none of 1 records has a usable label",
            id="no majority",
        ),
        pytest.param(
            {"instruction": "?", "output_1": "x", "output_2": "y", "human": [0, 0, 0]},
            "none of 1 records has a usable label",
            id="only ties",
        ),
        pytest.param(
            {"conversation_id": "1", "user_prompt": "no transcript", "programmatic_reward": 1},
            "no transcript",
            id="tau2",
        ),
        pytest.param(
            {
                "conversation_id": "1",
                "user_prompt": "x\nConversation transcript:\n1. Assistant TOOL CALL -> f(x)\n",
                "programmatic_reward": 1,
            },
            "entry 1: got 'f(x)'",
            id="tau2 call",
        ),
        pytest.param(
            {"conversation_id": "1", "user_prompt": "?", "programmatic_reward": "yes"},
            "programmatic_reward",
            id="tau2 label",
        ),
        pytest.param(
            {
                "conversation_id": "1",
                "user_prompt": "x\nConversation transcript:\n1. Assistant TOOL CALL -> f {[]: 1}\n",
                "programmatic_reward": 1,
            },
            "entry 1: got 'f {[]: 1}'",
            id="tau2 call with a list as key",
        ),
        pytest.param(
            {"output_1": "x", "output_2": "y", "input": "?", "label": [1]},
            "got [1], wanted 1 or 2",
            id="llmbar list",
        ),
    ],
)
def test_what_is_no_labelled_case_is_refused(tmp_path: Path, record: Any, complaint: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadCases) as refused:
        read_cases(path)
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\n\n", "empty", id="blank"),
        pytest.param(b'{"id": 1\n', "not valid JSON at column", id="no JSON"),
        pytest.param(b"[{},", "not valid JSON at ", id="no list"),
        pytest.param(b"\xff\xfe", "not UTF-8", id="no text"),
        pytest.param(b"[" * 100_000, "nested too deeply", id="bomb"),
        pytest.param(b'{"id": ' + b"1" * 5000 + b"}", "a number of more than 4,300 digits", id="digits"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadCases, match=complaint):
        read_cases(path)
    with pytest.raises(BadCases, match="No such file"):
        read_cases(tmp_path / "none.jsonl")


def test_a_tau2_conversation_without_a_reward_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    first = (DATA / "tau2.jsonl").read_text().splitlines()[0]
    path.write_text(f'{first}\n{{"conversation_id": "other", "user_prompt": "?"}}\n')
    with pytest.raises(BadCases, match="programmatic_reward: got None"):
        read_cases(path)


@pytest.mark.parametrize("said", ["x", {"order_12": "x"}, {"order_12": {"parsed_winner": [1]}}])
def test_a_recorded_judge_that_names_no_winner_is_no_hindrance(tmp_path: Path, said: Any) -> None:
    path = tmp_path / "cases.jsonl"
    record = {"output_1": "x", "output_2": "y", "input": "?", "label": 1, "recorded_judges": {"j": said}}
    path.write_text(json.dumps(record))
    [case] = read_cases(path).cases
    assert case.metadata["recorded"] == {"j": {"ab": "", "ba": ""}}


def test_the_format_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(GOOD))
    assert len(read_cases(path, "evald").cases) == 1
    with pytest.raises(BadCases):
        read_cases(path, "llmbar")


def test_line_separators_within_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(
        json.dumps({**GOOD, "answer": "one\u2028two\x85three"}, ensure_ascii=False), encoding="utf-8"
    )
    assert read_cases(path).cases[0].messages[-1]["content"] == "one\u2028two\x85three"
