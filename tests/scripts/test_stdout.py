"""What scripts print becomes a result, or an error that names what is wrong with it."""

import json
import re
from typing import Any

import pytest

from evald.result import Check, TokenUsage, Verdict
from evald_server.scripts.stdout import InvalidOutput, read_output

PASSED, FAILED, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED


def read(data: Any, **options: Any) -> Any:
    return read_output(json.dumps(data).encode(), **options)


@pytest.mark.parametrize(
    ("said", "verdict", "score", "reason"),
    [
        pytest.param({"pass": True, "reason": "ok"}, PASSED, None, "ok", id="pass"),
        pytest.param(
            {"success": False, "reason": "no"}, FAILED, None, "no", id="success, as EvalStudio writes"
        ),
        pytest.param({"passed": True}, PASSED, None, "Verdict of the script: passed", id="no reason"),
        pytest.param({"verdict": "skip", "reason": "n/a"}, SKIPPED, None, "n/a", id="skip"),
        pytest.param(
            {"verdict": "FAILED"}, FAILED, None, "Verdict of the script: failed", id="verdict in capitals"
        ),
        pytest.param({"score": 0.8}, PASSED, 0.8, "Score 0.8, wanted at least 0.8", id="score on the line"),
        pytest.param({"score": 0.79}, FAILED, 0.79, "Score 0.79, wanted at least 0.8", id="score below"),
        pytest.param({"score": 0.7 + 0.1}, PASSED, 0.7 + 0.1, None, id="score on the line but for rounding"),
        pytest.param({"score": 0}, FAILED, 0, "Score 0, wanted at least 0.8", id="score 0"),
        pytest.param({"score": 0.9, "pass": True}, PASSED, 0.9, None, id="a verdict and a score, passed"),
        pytest.param({"score": 0.7, "pass": False}, FAILED, 0.7, None, id="a verdict and a score, failed"),
        pytest.param({"score": 0.7, "verdict": "skip"}, SKIPPED, 0.7, None, id="a skip and a score"),
        pytest.param(
            {"score": 0.5, "hits": ["a"], "misses": ["b"], "reasoning": "half"},
            FAILED,
            0.5,
            "half",
            id="AgentV",
        ),
        pytest.param(
            {"pass": False, "hits": ["a", "b", "c"], "misses": ["d"]},
            FAILED,
            0.75,
            "3 of 4 checks met; score 0.75, wanted at least 0.8",
            id="AgentV's findings and a verdict",
        ),
        pytest.param(
            {"pass": True, "hits": ["a"], "misses": [" "]}, PASSED, 1, None, id="an empty miss is none"
        ),
        pytest.param(
            {"pass": True, "assertions": [{"text": "a", "passed": True}]},
            PASSED,
            1,
            None,
            id="AgentV's assertions",
        ),
        pytest.param({"pass": True, "score": None, "checks": None}, PASSED, None, None, id="null is absence"),
        pytest.param({"pass": True, "value": 12.5}, PASSED, None, "Value 12.5", id="a value"),
        pytest.param({"pass": True, "unknown": {"a": 1}}, PASSED, None, None, id="other keys are left alone"),
    ],
)
def test_both_forms_are_understood(
    said: Any, verdict: Verdict, score: float | None, reason: str | None
) -> None:
    result = read(said)
    assert (result.verdict, result.score) == (verdict, score)
    assert reason is None or result.reason == reason
    assert result.error is None


def test_the_passing_score_is_the_config_s() -> None:
    assert read({"score": 0.5}, pass_score=0.5).verdict is PASSED
    assert read({"score": 0.49}, pass_score=0.5).verdict is FAILED


def test_checks_metadata_and_spending_are_kept() -> None:
    result = read(
        {
            "pass": False,
            "pending": True,
            "checks": [
                {"text": "a", "pass": True, "evidence": "seen"},
                {"text": "b", "met": False, "reason": "gone"},
            ],
            "metadata": {"n": [1, {"k": None}]},
            "token_usage": {"input": 3, "output_tokens": 4},
            "cost_usd": 0.25,
        }
    )
    assert result.checks == [Check("a", True, "seen"), Check("b", False, "gone")]
    assert result.metadata == {"n": [1, {"k": None}]}
    assert result.token_usage == TokenUsage(3, 4)
    assert (result.cost_usd, result.pending, result.score) == (0.25, True, 0.5)


@pytest.mark.parametrize(
    ("printed", "verdict", "score"),
    [
        (b'{"pass": false, "hits": ["a"]}', Verdict.FAILED, None),
        (b'{"verdict": "fail", "checks": [{"text": "a", "pass": true}]}', Verdict.FAILED, None),
        (b'{"pass": false, "hits": ["a"], "misses": ["b"]}', Verdict.FAILED, 0.5),
        (b'{"pass": true, "hits": ["a"], "misses": ["b"]}', Verdict.PASSED, 0.5),
        (b'{"pass": false, "score": 0.7, "hits": ["a"]}', Verdict.FAILED, 0.7),
        (b'{"pass": true, "score": 0.8, "misses": ["a"]}', Verdict.PASSED, 0.8),
        (b'{"pass": false, "hits": ["a", "b", "c", "d"], "misses": ["e"]}', Verdict.FAILED, None),
    ],
)
def test_findings_make_no_score_that_contradicts_a_failure(
    printed: bytes, verdict: Verdict, score: float | None
) -> None:
    result = read_output(printed, 0.8)
    assert (result.verdict, result.score) == (verdict, score)


def test_only_a_failure_is_pending() -> None:
    assert not read({"pass": True, "pending": True}).pending
    assert not read({"pass": False}).pending


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"all good", "not JSON: Expecting value at line 1 column 1"),
        (b'{"pass": true} done', "not JSON: Extra data at line 1 column 16"),
        (b'log line\n{"pass": true}', "not JSON"),
        (b'{"pass": true', "not JSON"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b'{"score": NaN}', "NaN is not JSON"),
        (b'{"score": 1e999}', "outside the range of a double"),
        (b'{"value": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"pass": false, "pass": true}', "a duplicate key 'pass'"),
        (b'{"pass": true, "reason": "\\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "nested deeper than the 500 levels"),
        (b"true", "a JSON boolean; wanted a JSON object"),
        (b"0.9", "a JSON number"),
        (b'[{"pass": true}]', "a JSON list"),
        (b"{}", "it has no verdict: wanted `score`, 0 to 1, or `pass`"),
        (b'{"reason": "good"}', "it has no verdict"),
        (b'{"pass": "yes"}', "pass: a string, wanted true or false"),
        (b'{"pass": 1}', "pass: a number, wanted true or false"),
        (b'{"success": true, "pass": false}', "pass and success contradict each other"),
        (b'{"verdict": "pass", "success": false}', "success and verdict contradict each other"),
        (b'{"pass": true, "score": 0}', "passed and score 0 contradict each other: the passing score is 0.8"),
        (b'{"success": true, "score": 0.79}', "passed and score 0.79 contradict each other"),
        (b'{"pass": false, "score": 1}', "failed and score 1 contradict each other"),
        (b'{"verdict": "fail", "score": 0.8, "misses": ["a"]}', "failed and score 0.8 contradict each other"),
        (b'{"verdict": "great"}', "verdict: wanted pass, fail or skip"),
        (b'{"verdict": 1}', "verdict: wanted pass, fail or skip"),
        (b'{"score": true}', "score: a boolean, wanted a number"),
        (b'{"score": "0.9"}', "score: a string, wanted a number"),
        (b'{"score": 1.01}', "score: 1.01 is not between 0 and 1"),
        (b'{"pass": true, "score": -1}', "score: -1 is not between 0 and 1"),
        (b'{"score": 1, "hits": "a"}', "hits: a string, wanted a list"),
        (b'{"score": 1, "misses": [1]}', "misses[0]: a number, wanted a string"),
        (b'{"checks": [1]}', "checks[0]: a number, wanted an object"),
        (b'{"checks": [{"pass": true}]}', "checks[0].text: null, wanted a string"),
        (b'{"checks": [{"text": "a"}]}', "checks[0].pass: wanted true or false"),
        (b'{"checks": [{"text": "a", "pass": 1}]}', "checks[0].pass: wanted true or false"),
        (b'{"checks": [{"text": "a", "pass": true, "met": false}]}', "checks[0].pass: wanted true or false"),
        (b'{"pass": true, "reason": ["a"]}', "reason: a list, wanted a string"),
        (b'{"pass": true, "metadata": []}', "metadata: a list, wanted an object"),
        (b'{"pass": true, "cost_usd": -1}', "cost_usd: -1 is below 0"),
        (b'{"pass": true, "token_usage": {"input": 1.5}}', "token_usage.input: wanted a whole number"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_result_is_named_and_never_a_verdict(printed: bytes, words: str) -> None:
    with pytest.raises(InvalidOutput) as refused:
        read_output(printed)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (b'{"hits": ["a", "b"]}', "`hits` without a score: wanted `score`"),
        (b'{"hits": ["a"], "misses": ["b"], "reasoning": "half"}', "`hits` and `misses` without"),
        (b'{"hits": [], "misses": []}', "without a score"),
        (b'{"hits": ["a"], "score": null}', "without a score"),
        (b'{"hits": ["a"], "pass": null, "verdict": null}', "without a score"),
        (b'{"misses": ["a"]}', "`misses` without"),
        (b'{"checks": [{"text": "a", "pass": true}]}', "`checks` without"),
        (b'{"assertions": [{"text": "a", "passed": true}]}', "`assertions` without"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_findings_without_a_score_or_a_verdict_break_the_contract(printed: bytes, words: str) -> None:
    with pytest.raises(InvalidOutput, match=re.escape(words)) as refused:
        read_output(printed)
    assert refused.value.code == "CONTRACT_VIOLATION"


def test_the_error_repeats_nothing_of_the_output() -> None:
    with pytest.raises(InvalidOutput) as refused:
        read_output(b'{"verdict": "the-customer-s-address"} the-customer-s-name')
    assert "customer" not in str(refused.value)
