"""The suites of real recordings that evald ships give what their recordings say."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .. import forks
from ..processes import EVALD, clean_environment

SUITES = Path(__file__).parents[2] / "examples/suites"


def run_suite(folder: Path, *arguments: str, code: int) -> dict[str, Any]:
    """Return what `evald test` writes as JSON."""
    output = folder / "results.json"
    command = (EVALD, "test", *arguments, "--output", str(output))
    run = forks.run(*command, directory=folder, environment=clean_environment())
    assert run.returncode == code, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_taubench_has_the_published_pass_hat_k_and_its_calls_agree_with_its_rewards(tmp_path: Path) -> None:
    plugin = str(SUITES / "recorded_reward.py")
    results = run_suite(tmp_path, str(SUITES / "taubench.jsonl"), "--plugin", plugin, code=0)
    # Published for gpt-4o with tool calling, airline: README.md of sierra-research/tau-bench at 59a200c.
    estimates = results["suiteRun"]["trialEstimates"]
    assert [round(one["allPass"]["value"], 3) for one in estimates] == [0.42, 0.273, 0.22, 0.2]
    assert all(one["allPass"]["low"] < one["allPass"]["value"] < one["allPass"]["high"] for one in estimates)
    agreement: Counter[tuple[str, ...]] = Counter()
    for case in results["cases"]:
        for trial in case["trials"]:
            verdicts = {r["name"]: r["verdict"] for r in trial["turns"][-1]["evaluation"]["results"]}
            agreement[verdicts["recorded-reward"], verdicts["gold-calls"]] += 1
    passed, failed = "VERDICT_PASSED", "VERDICT_FAILED"
    assert agreement == {
        (passed, passed): 74,
        (failed, failed): 113,
        (passed, failed): 10,
        (failed, passed): 3,
    }


@pytest.mark.parametrize("change", ["none", "an argument", "a call less", "a call more"])
def test_bfcl_passes_with_the_gold_calls_and_with_no_others(tmp_path: Path, change: str) -> None:
    lines = [json.loads(line) for line in (SUITES / "bfcl.jsonl").read_text().splitlines()]
    for case in lines[1:]:
        calls = case["output"][0]["tool_calls"]
        function = calls[0]["function"]
        if change == "an argument":
            function["arguments"] = json.dumps({**json.loads(function["arguments"]), "changed": True})
        elif change == "a call less":
            calls.pop()
        elif change == "a call more":
            calls.append({**calls[0], "id": "more"})
    suite = tmp_path / "bfcl.jsonl"
    suite.write_text("\n".join(map(json.dumps, lines)))
    verdicts = Counter(
        case["verdict"] for case in run_suite(tmp_path, str(suite), code=change != "none")["cases"]
    )
    assert verdicts == {"VERDICT_PASSED" if change == "none" else "VERDICT_FAILED": 120}
