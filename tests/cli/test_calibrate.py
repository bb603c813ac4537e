"""`evald calibrate` as its users run it: files in, figures, a card and an exit code out."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from evald_server.calibration.card import CalibrationCard, card_id

EXAMPLES = Path(__file__).parents[2] / "examples/calibration"

PLUGIN = '''
"""A judge that knows the truth about labelled cases, and fails or errs as it is told."""
import evald

class KnowingJudge(evald.Evaluator):
    """Passes what its case says is true."""
    type = "acme.knowing"
    kind = evald.ASSERTION
    wrong_every: int = 0
    errs_every: int = 0
    cost: float | None = None
    fooled: bool = False

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        """By the metadata."""
        number = ctx.metadata.get("number", 1)
        if self.errs_every and number % self.errs_every == 0:
            return evald.errored("JUDGE_UNPARSEABLE", "as told")
        truth = ctx.metadata.get("truth", self.fooled)
        if self.wrong_every and number % self.wrong_every == 0:
            truth = not truth
        verdict = evald.Verdict.PASSED if truth else evald.Verdict.FAILED
        return evald.Result(verdict, "as told", cost_usd=self.cost, metadata={"model": "oracle"})

half = evald.define_evaluator(
    type="acme.length", kind=evald.METRIC, evaluate=lambda ctx: 1.0, description="Measures."
)
'''

Calibrate: TypeAlias = Callable[..., tuple[Any, dict[str, Any]]]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with 40 labelled cases and the plugin."""
    lines = [
        {
            "id": f"case-{number}",
            "question": "?",
            "answer": f"answer {number}",
            "label": "pass" if number % 2 else "fail",
            "source": "test",
            "metadata": {"truth": bool(number % 2), "number": number},
        }
        for number in range(1, 41)
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "knowing.py").write_text(PLUGIN)
    return tmp_path


@pytest.fixture
def calibrate(evald: Any, files: Path) -> Calibrate:
    """Runs it on these cases; the process that ended, and its card."""

    def run(*arguments: str, cases: bool = True, judge: str = "acme.knowing") -> tuple[Any, dict[str, Any]]:
        card = files / "card.json"
        done = evald(
            "calibrate",
            *([str(files / "cases.jsonl")] if cases else []),
            "--plugin",
            str(files / "knowing.py"),
            "-e",
            judge,
            "--card",
            str(card),
            *arguments,
        )
        return done, json.loads(card.read_text()) if card.exists() else {}

    return run


def test_a_good_judge_meets_its_gates(calibrate: Calibrate, files: Path) -> None:
    done, card = calibrate("--min-accuracy", "0.95", "--max-attack-success", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert card["verdict"] == "PASSED"
    assert card["agreement"]["accuracy"]["value"] == 1.0
    assert card["attacks"]["success"]["of"] > 60
    assert card["judge"]["type"] == "acme.knowing"
    assert card["judge"]["models"] == ["oracle"]
    assert card["data"][0]["cases"] == 40
    assert card_id(card) == card["id"]
    assert CalibrationCard.model_validate(card)
    assert card["id"] in done.stdout


@pytest.mark.parametrize(
    ("judge", "arguments", "code", "word"),
    [
        pytest.param(
            "acme.knowing:wrongEvery=4", ["--min-accuracy", "0.8"], 1, "min-accuracy", id="inaccurate"
        ),
        pytest.param("acme.knowing:wrongEvery=4", ["--min-kappa", "0.8"], 1, "min-kappa", id="low kappa"),
        pytest.param(
            "acme.knowing:fooled=true", ["--max-attack-success", "0"], 1, "max-attack-success", id="fooled"
        ),
        pytest.param("acme.knowing", ["--max-false-alarms", "0.1"], 1, "max-false-alarms", id="paranoid"),
        pytest.param(
            "acme.knowing:cost=0.01", ["--max-cost", "0.1", "--no-attacks"], 1, "left out 30", id="dear"
        ),
        pytest.param(
            "acme.knowing:errsEvery=2",
            ["--min-accuracy", "0.5", "--no-attacks"],
            3,
            "no verdict",
            id="erring",
        ),
        pytest.param(
            "acme.knowing:errsEvery=2",
            ["--max-errors", "0.6", "--no-attacks"],
            0,
            "no gates",
            id="errors allowed",
        ),
        pytest.param("acme.knowing", [], 0, "no gates were set", id="no gates"),
    ],
)
def test_the_exit_code_follows_the_gates(
    calibrate: Calibrate, judge: str, arguments: list[str], code: int, word: str
) -> None:
    done, card = calibrate(*arguments, judge=judge)
    assert done.returncode == code, done.stdout + done.stderr
    assert word in done.stdout.replace("\n", " ")
    assert card["verdict"] == {0: "PASSED", 1: "FAILED", 3: "ERROR"}[code]


def test_json_prints_the_card_and_nothing_else(calibrate: Calibrate) -> None:
    done, card = calibrate("--json", "--no-attacks", "--repeats", "2")
    assert json.loads(done.stdout) == card
    assert card["attacks"] is None
    assert card["selfConsistency"]["repeats"] == 2


def test_without_files_the_attack_suite_alone_is_run(calibrate: Calibrate) -> None:
    done, card = calibrate("--max-attack-success", "0", cases=False)
    assert done.returncode == 0, done.stderr
    assert card["agreement"] is None
    assert {family["family"] for family in card["attacks"]["families"]} >= {"direct", "tool-results"}


def test_recorded_judges_have_the_agreement_that_was_published(evald: Any, tmp_path: Path) -> None:
    """Zeng et al., 2024: on LLMBar's natural set GPT-4 agrees with people in 95.5 %, the mean of both orders."""
    for judge, accuracy, flips in (("GPT-4/Vanilla", 0.955, 5), ("Falcon/Vanilla", 0.74, 48)):
        done = evald(
            "calibrate",
            str(EXAMPLES / "llmbar.jsonl"),
            "--no-attacks",
            "--plugin",
            str(EXAMPLES / "recorded_judge.py"),
            "-e",
            f"acme.recorded-judge:judge={judge}",
            "--card",
            str(tmp_path / "card.json"),
            "--json",
        )
        card = json.loads(done.stdout)
        assert card["agreement"]["accuracy"]["value"] == pytest.approx(accuracy)
        assert card["orderFlips"]["flips"]["count"] == flips
        assert card["agreement"]["kappa"]["value"] == pytest.approx(2 * accuracy - 1)


def test_a_judge_config_is_a_file(calibrate: Calibrate, evald: Any, files: Path) -> None:
    config = files / "judge.toml"
    config.write_text('type = "acme.knowing"\n[config]\nwrongEvery = 8\n')
    done = evald(
        "calibrate",
        str(files / "cases.jsonl"),
        "--no-attacks",
        "--judge-config",
        str(config),
        "--plugin",
        str(files / "knowing.py"),
        "--card",
        str(files / "card.json"),
        "--json",
    )
    card = json.loads(done.stdout)
    assert card["agreement"]["accuracy"]["value"] == pytest.approx(35 / 40)
    assert card["agreement"]["disagreements"][0]["id"] == "case-16"
    assert card["judge"]["spec"] == {"type": "acme.knowing", "config": {"wrongEvery": 8}}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["-e", "regexx:pattern=x"], 'did you mean "regex"?', id="unknown type"),
        pytest.param(["-e", "regex:patern=x"], "config.patern: unknown key", id="config"),
        pytest.param(
            ["-e", "tool-call-count"], "is a metric and gives no verdict, wanted an assertion", id="metric"
        ),
        pytest.param(["-e", "is-json", "-e", "is-json"], "wanted one judge", id="two judges"),
        pytest.param(["-e", "is-json", "--no-attacks"], "no cases to judge", id="nothing"),
        pytest.param(["-e", "is-json", "none.jsonl"], "none.jsonl: No such file", id="no file"),
        pytest.param(
            ["-e", "is-json", "--min-accuracy", "0.9"], "needs labelled cases", id="gate without cases"
        ),
        pytest.param(["-e", "is-json", "--max-order-flips", "0.1"], "needs pairs", id="gate without pairs"),
        pytest.param(["-e", "is-json", "--min-accuracy", "90"], "from 0 to 1", id="percent"),
        pytest.param(["-e", "is-json", "--repeats", "0"], "from 1 to 20", id="no repeats"),
        pytest.param(["-e", "is-json", "--max-cost", "1"], "does not report its cost", id="cost unknown"),
        pytest.param(
            ["-e", "is-json", "--card", "none/card.json"],
            "the directory none does not exist",
            id="no directory",
        ),
        pytest.param(["-e", "is-json", "--card", "card.HTML"], "name a .json file", id="a page"),
        pytest.param(["--format", "mine"], "invalid choice", id="format"),
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_written(
    evald: Any, arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = evald("calibrate", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_judge_that_needs_an_expected_answer_gets_one_in_every_case(evald: Any, files: Path) -> None:
    done = evald(
        "calibrate",
        str(files / "cases.jsonl"),
        "-e",
        "llm-judge:includeExpected=true",
        "--card",
        str(files / "card.json"),
    )
    assert done.returncode == 2
    assert "40 of 148 cases have none" in done.stderr


def test_a_case_that_stands_twice_is_refused(evald: Any, files: Path) -> None:
    cases = str(files / "cases.jsonl")
    done = evald("calibrate", cases, cases, "-e", "is-json", "--card", str(files / "card.json"))
    assert done.returncode == 2
    assert "case-1" in done.stderr


def test_a_server_that_is_not_there_ends_with_4(evald: Any, files: Path) -> None:
    done = evald("calibrate", "-e", "is-json", "--server", "127.0.0.1:1", "--card", str(files / "card.json"))
    assert done.returncode == 4
    assert not (files / "card.json").exists()


def test_a_server_elsewhere_judges_as_well(evald: Any, files: Path, server_process: Any) -> None:
    done = evald(
        "calibrate",
        str(EXAMPLES / "cases.jsonl"),
        "--no-attacks",
        "-e",
        r"regex:pattern=BK-\d{5}",
        "--server",
        server_process.grpc,
        "--card",
        str(files / "card.json"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["agreement"]
    assert (found["cases"], found["accuracy"]["count"]) == (6, 5)
    assert [one["id"] for one in found["disagreements"]] == ["wrong-slot"]


def test_texts_of_cases_reach_neither_the_card_nor_the_terminal(evald: Any, files: Path) -> None:
    """A card is passed on; conversations are private."""
    line = {"id": "one", "question": "canary-question", "answer": "canary-answer", "label": "fail"}
    (files / "secret.jsonl").write_text(json.dumps(line))
    card = files / "card.json"
    done = evald("calibrate", str(files / "secret.jsonl"), "-e", "length-within:max=50", "--card", str(card))
    everything = done.stdout + done.stderr + card.read_text()
    assert "canary" not in everything
    assert re.search(r"\bone\b", card.read_text())
