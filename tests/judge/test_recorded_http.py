"""Answers that real providers have given are read for what they are, or refused with the right error."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evald_server.judge.prompt_request import CallSpending

from ..loop import run
from .asking import SCHEMA, asking, fault, question
from .wire import answer, wire

RECORDED: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "recorded_http/recorded.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]


def test_all_recorded_answers_are_replayed() -> None:
    assert Counter(one["expected"].get("code", "text") for one in RECORDED) == {
        "JUDGE_UNAVAILABLE": 73,
        "text": 50,
        "JUDGE_UNPARSEABLE": 22,
        "JUDGE_REFUSED": 6,
        "JUDGE_RATE_LIMITED": 3,
    }


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["id"].replace("[", "(") for one in RECORDED])
def test_a_recorded_answer_is_read_or_refused(recorded: dict[str, Any]) -> None:
    expected = recorded["expected"]
    asks_for_json = "json_" in recorded["kind"]
    given = answer(recorded["status"], recorded["body"], content_type=recorded["content_type"])

    async def main() -> None:
        async with (
            wire(given) as server,
            asking(server.base_url, stream="stream" in recorded["kind"], attempts=2) as judge,
        ):
            spending = CallSpending()
            asked = question(SCHEMA if asks_for_json else None)
            if "code" in expected:
                problem = await fault(judge.model().ask(asked, spending))
                assert problem.code == expected["code"], problem
                assert "ok" not in judge.counted.outcomes
                return
            found = await judge.model().ask(asked, spending)
            assert found.text == expected["text"]
            assert found.data == (json.loads(found.text) if asks_for_json else None)
            assert spending.attempts == 1
            tokens = expected["input_tokens"], expected["output_tokens"]
            assert tokens == (spending.usage[:2] if spending.usage else (None, None))

    run(main())
