"""pass^k of recorded trials is the published one: real agents, real rewards."""

import json
from collections import Counter
from pathlib import Path

import pytest

from evald.v1 import suite_service_pb2
from evald_server.suites.statistics import wilson

from .results import case, suite

# From tau-bench's README, TC (gpt-4o), airline: the recordings in the data file.
PUBLISHED = [0.420, 0.273, 0.220, 0.200]

REWARDS: dict[str, str] = json.loads(
    (Path(__file__).parent / "data/taubench_airline_gpt4o.json").read_text()
)["rewards_by_task"]


def _run(min_passed: int = 0) -> suite_service_pb2.SuiteRun:
    letters = {task: rewards.replace("1", "P").replace("0", "F") for task, rewards in REWARDS.items()}
    return suite(case(task, trials, min_passed=min_passed) for task, trials in letters.items())


def test_pass_hat_k_is_the_published_one() -> None:
    estimates = _run().trial_estimates
    assert [estimate.all_pass.value for estimate in estimates] == pytest.approx(PUBLISHED, abs=5e-4)
    assert [estimate.case_count for estimate in estimates] == [50] * 4


def test_the_figures_of_a_run_agree_with_each_other() -> None:
    run = _run()
    last = run.trial_estimates[-1]
    # Every trial must pass: the pass rate is pass^4, and its interval Wilson's of 10 in 50 tasks.
    assert run.pass_rate.value == pytest.approx(last.all_pass.value) == 0.2
    assert (run.pass_rate.low, run.pass_rate.high) == pytest.approx(wilson(10, 50))
    assert (last.all_pass.low, last.all_pass.high) == pytest.approx(wilson(10, 50))
    assert _run(min_passed=1).pass_rate.value == pytest.approx(last.any_passes.value) == 0.72
    assert run.unstable_count == sum(0 < rewards.count("1") < 4 for rewards in REWARDS.values()) == 26
    assert Counter(map(len, REWARDS.values())) == {4: 50}


def test_four_trials_say_more_than_one_and_less_than_four_times_as_many_tasks() -> None:
    first = _run().trial_estimates[0].all_pass
    width = first.high - first.low
    one, many = wilson(21, 50), wilson(84, 200)
    assert many.high - many.low < width < one.high - one.low
