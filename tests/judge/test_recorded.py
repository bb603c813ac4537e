"""Replies of a real judge to other prompts: fenced JSON, whose vocabulary drifts, is never a guessed verdict."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from evald.result import Verdict
from evald_server.judge.answer_parsing import parse_object

from .scripted import ScriptedModels, judge

REPLIES: Final[list[dict[str, str]]] = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("recorded")
    .joinpath("tau2_airline_replies.jsonl")
    .read_text("utf-8")
    .splitlines()
]

FORMS: Final[list[dict[str, Any]]] = [
    {"successCriteria": "s", "failureCriteria": "f"},
    {"criteria": "c"},
    {"rubric": "r"},
    {"rubric": "r", "promptTemplate": "{rubric} {output}"},
    {"items": [{"id": "verdict", "text": "t"}]},
]


def test_the_recording_drifts() -> None:
    assert len(REPLIES) == 200
    assert all(one["reply"].startswith("```json") for one in REPLIES)
    verdicts = {parse_object(one["reply"])["verdict"] for one in REPLIES}
    assert verdicts == {"pass", "fail", "satisfied", "satisfactory", "compliant", "correct"}


@pytest.mark.parametrize("config", FORMS, ids="+".join)
def test_a_reply_to_another_prompt_is_no_verdict_in_any_form(config: dict[str, Any]) -> None:
    for one in REPLIES[::4]:
        models = ScriptedModels(one["reply"])
        result = judge(models, config)
        assert result.error is not None, one["id"]
        assert (result.verdict, result.error.code, result.score) == (Verdict.ERROR, "JUDGE_UNPARSEABLE", None)
        assert len(models.default.questions) == 2


def test_a_judge_that_answers_in_the_form_when_asked_again_is_understood_fence_and_all() -> None:
    for one in REPLIES:
        said = parse_object(one["reply"])
        if said["verdict"] not in {"pass", "fail"}:
            continue
        passes = said["verdict"] == "pass"
        answer = {
            "successMet": passes,
            "failureMet": not passes,
            "confidence": 0.8,
            "reasoning": said["justification"],
        }
        models = ScriptedModels(one["reply"], f"```json\n{json.dumps(answer, indent=2)}\n```")
        result = judge(models, FORMS[0])
        assert result.verdict is (Verdict.PASSED if passes else Verdict.FAILED)
        assert result.reason == said["justification"]
