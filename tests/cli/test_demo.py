"""The demo is real: it runs, its numbers agree with each other, and it leaves nothing behind."""

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.thorough import first_of

from ..forks import Fork
from ..processes import EVALD, clean_environment

DATA = Path(__file__).parents[2] / "server/evald_server/cli/demo_data"


@pytest.fixture(scope="module")
def shown(evald: Any) -> str:
    done = evald("demo")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    text: str = done.stdout
    return text


def _sample(shown: str, name: str, **labels: str) -> float:
    """The value of a telemetry line."""
    for found in re.finditer(rf"^ +{name}\{{(.*)\}} (\S+)$", shown, re.MULTILINE):
        if set(found[1].split(",")) >= {f'{key}="{value}"' for key, value in labels.items()}:
            return float(found[2])
    raise AssertionError(f"no {name} with {labels}")


def test_the_pass_rates_are_those_of_the_telemetry(shown: str) -> None:
    """Session and batch ran the same checks: telemetry has the turns of both."""
    row = re.search(r"│ no-payment-ids │ +[\d.]+% \S+ +│ +(\d+) │ +(\d+) │ +(\d+) │", shown)
    assert row
    passed, failed, errors = map(int, row.groups())
    turns = sum(
        len(re.findall("user|assistant", roles)) // 2 for roles in _turns_of(DATA / "conversations.jsonl")
    )
    assert passed + failed == turns
    assert errors == 0
    in_session = _sample(shown, "evald_evaluations_total", rpc="EvaluateSession", verdict="passed") + _sample(
        shown, "evald_evaluations_total", rpc="EvaluateSession", verdict="failed"
    )
    of_regex = {
        verdict: _sample(shown, "evald_evaluator_results_total", evaluator="regex", verdict=verdict)
        for verdict in ("passed", "failed")
    }
    assert sum(of_regex.values()) == turns + in_session
    assert of_regex["failed"] >= failed


def _turns_of(path: Path) -> list[str]:
    """Per conversation, who spoke: "user assistant user assistant"; tools and repeats left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        roles = [message["role"] for message in json.loads(line)["messages"]]
        spoken = [role for role in roles if role in ("user", "assistant")]
        kept = [role for role, before in zip(spoken, [None, *spoken], strict=False) if role != before]
        found.append(" ".join(kept[: len(kept) // 2 * 2]))
    return found


def test_verdicts_are_those_of_the_recorded_conversations(shown: str) -> None:
    """tau-bench's reward is in the data; both kinds are shown, and evald agrees on most."""
    rewards = {
        record["id"].removeprefix("taubench-gpt4o-"): record["outcome"]["reward"]
        for record in map(json.loads, (DATA / "conversations.jsonl").read_text(encoding="utf-8").splitlines())
    }
    for name, reward in rewards.items():
        word = "task solved" if reward == 1.0 else "task not solved"
        assert re.search(rf"│ {name} +│ +\d+ │ (PASSED|FAILED) +│ {word} ", shown), name
    agreed = re.search(r"agree on (\d+) of (\d+) conversations", shown)
    assert agreed
    assert int(agreed[2]) == len(rewards)
    assert int(agreed[1]) >= len(rewards) - 1


def test_it_shows_both_tables_and_stays_within_its_time(shown: str) -> None:
    for wanted in (
        "Assertions\n",
        "Metrics\n",
        "turn by turn",
        "one batch",
        "/metrics",
        "The server stopped.",
    ):
        assert wanted in shown
    took = re.search(r"The demo took ([\d.]+) s", shown)
    assert took
    assert float(took[1]) < 20


def test_it_says_where_its_console_is(shown: str) -> None:
    assert re.search(r"Its console was at http://127\.0\.0\.1:\d+", shown)


@pytest.mark.parametrize("ending", first_of([signal.SIGINT, signal.SIGTERM], 1))
def test_the_console_stays_open_with_the_run_in_it_until_it_is_ended(ending: signal.Signals) -> None:
    with Fork(EVALD, "demo", "--console", environment=clean_environment(), stderr=None) as demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if found := re.search(r"in the console: (http://[\d.:]+)", line):
                    break
            assert found
            with urllib.request.urlopen(f"{found[1]}/console/runs") as page:
                assert "Appointment" in page.read().decode()
            demo.send_signal(ending)
            assert "The server stopped." in demo.stdout.read()
            assert demo.wait(20) == 0
        finally:
            demo.kill()


def test_the_sample_is_small_and_says_where_it_comes_from() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir() if path.is_file()) < 300_000
    assert "MIT License" in (DATA / "LICENSE").read_text()
    assert "59a200c" in (DATA / "README.md").read_text()
