"""An answer's JSON object is found in one fence or nowhere."""

import pytest

from evald.result import Verdict
from evald_server.judge.answer_parsing import parse_object

from .scripted import ScriptedModels, judge

GOOD = '{"score": 0.9, "reasoning": "fine"}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\n",
        f"Here is the evaluation:\n\n```json\n{GOOD}\n```",
        f"Sure!\n```json\n{GOOD}\n```\nTell me if you need more.",
        f"  ```json  \n{GOOD}\n  ```  ",
    ],
)
def test_an_object_alone_or_in_one_fence_is_read(text: str) -> None:
    assert parse_object(text) == {"score": 0.9, "reasoning": "fine"}
    assert judge(ScriptedModels(text), {"criteria": "c"}).verdict is Verdict.PASSED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fine",
        "0.9",
        f"[{GOOD}]",
        f"Sure! {GOOD}",
        f"{GOOD} or so",
        f'{{"a": 1}} and {GOOD}',
        f"{GOOD}\n{GOOD}",
        f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```",
        f"The agent said ``` and then\n```json\n{GOOD}\n```",
        f"```json\n{GOOD}",
        f"```json {GOOD} ```",
        f"```python\n{GOOD}\n```",
        f"```json\nhere: {GOOD}\n```",
        '```json\n{"score": 0.1, "score": 0.9}\n```',
        '```json\n{"score": NaN}\n```',
        '{"score": 0.9, "reasoning": "fine", "more": [' + "{}," * 100_000 + "{}]}",
        "```json\n" + '{"a":' * 100_000 + "\n```",
    ],
    ids=lambda text: text[:30],
)
def test_where_it_is_open_what_was_meant_nothing_is_read(text: str) -> None:
    with pytest.raises(ValueError) as problem:
        parse_object(text)
    assert "0.9" not in str(problem.value)
    result = judge(ScriptedModels(text), {"criteria": "c"})
    assert result.error is not None
    assert result.error.code == "JUDGE_UNPARSEABLE"
