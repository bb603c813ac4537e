"""The pytest plugin, as a project that has evald installed meets it."""

import os
from pathlib import Path
from typing import Any

import pytest

from evald import Evaluation, Verdict
from evald_server import testing
from evald_server.pytest_plugin import TurnChecker

from .. import forks

PLUGIN = '''
import evald

@evald.assertion("acme.polite")
def polite(ctx):
    """The answer says please."""
    return "please" in (ctx.answer or "")

@evald.assertion("acme.broken")
def broken(ctx):
    """Breaks."""
    raise RuntimeError("no")
'''

TESTS = """
import pytest

def test_passes(evald):
    evaluation = evald.assert_passes("please", ["acme.polite", "response-length"])
    assert evaluation.metrics == {"response-length": 6}

def test_lists_every_failure(evald):
    evald.assert_passes("no", ["acme.polite", "is-json", {"type": "starts-with", "config": {"text": "n"}}])

def test_says_what_broke(evald):
    evald.assert_passes("no", ["acme.broken"])

def test_evaluates(evald):
    assert evald.evaluate("no", ["acme.polite"]).failed
"""


# Of other plugins that are installed here; to import them takes most of the time.
OTHERS = ("cacheprovider", "schemathesis", "hypothesispytest", "xdist", "anyio")


def run_pytest(folder: Path, *options: str) -> str:
    without = [f"-pno:{name}" for name in OTHERS]
    # In a fork, what is installed has been imported before pytest could rewrite it.
    warnings = ("-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    command = ["-m", "pytest", *warnings, "-q", *without, *options, str(folder)]
    run = forks.run(*command, directory=folder, environment=dict(os.environ))
    return run.stdout + run.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.joinpath("checks.py").write_text(PLUGIN)
    tmp_path.joinpath("test_it.py").write_text(TESTS)
    return tmp_path


def test_failures_name_every_result_and_a_broken_evaluator_is_no_verdict(project: Path) -> None:
    said = run_pytest(project, "--evald-plugin", "checks.py")
    assert "2 failed, 2 passed" in said
    assert "FAILED acme.polite: Not met: The answer says please." in said
    assert "FAILED is-json, score 0.00: Response is not valid JSON" in said
    assert not [line for line in said.splitlines() if line.startswith("E ") and "starts-with" in line]
    assert "ERROR (inconclusive: an evaluator ended in error, so there is no verdict on the agent)" in said
    assert "ERROR acme.broken [EVALUATOR_EXCEPTION]" in said


class JudgedTurns:
    """A client, and a case, whose turns get these verdicts: P, F, E or S."""

    def __init__(self, letters: str) -> None:
        known = {verdict.name[0]: verdict for verdict in Verdict}
        self.evaluations = [Evaluation(known[letter], f"turn {letter}") for letter in letters]

    def evaluate(self, _client_or_turn: Any, _what: Any, **_options: Any) -> Any:
        return self.evaluations


@pytest.mark.parametrize("letters", ["P", "F", "E", "S", "", "PP", "PS", "PF", "FP", "PE", "EP", "SS", "FE"])
def test_only_what_passed_and_has_no_other_verdict_passes(letters: str) -> None:
    recorded: Any = JudgedTurns(letters)
    if letters in ("P", "PP", "PS"):
        assert TurnChecker(recorded).assert_case(recorded) == recorded.evaluations
        return
    with pytest.raises(AssertionError) as raised:
        TurnChecker(recorded).assert_case(recorded)
    red = [one.verdict.name for one in recorded.evaluations if one.verdict is not Verdict.PASSED]
    assert [line.split()[0].strip(":") for line in str(raised.value).splitlines()] == (red or ["ERROR"])


def test_plugins_come_from_the_ini_file_and_the_module_may_be_named_as_well(project: Path) -> None:
    project.joinpath("pytest.ini").write_text("[pytest]\nevald_plugins = checks.py\n")
    project.joinpath("conftest.py").write_text('pytest_plugins = ["evald_server.pytest_plugin"]\n')
    assert "1 passed" in run_pytest(project, "-k", "test_passes")


def test_a_running_server_is_used_and_cannot_load_plugins(tmp_path: Path) -> None:
    tmp_path.joinpath("test_it.py").write_text(
        "def test_it(evald, evald_client):\n"
        "    assert evald.client is evald_client\n"
        "    evald.assert_passes('{}', ['is-json'])\n"
        "    print(evald_client.server)\n"
    )
    with testing.server() as server:
        said = run_pytest(tmp_path, "-s", "--evald-server", server.address)
        assert "1 passed" in said
        assert server.address in said
        said = run_pytest(tmp_path, "--evald-server", server.address, "--evald-plugin", "checks.py")
        assert "load the plugin in that server: evald serve --plugin" in said
        assert "1 error" in said


SUITE = """
name: bookings
evaluators: [{type: length-within, config: {max: 4, unit: words}}]
cases:
  - {id: books, input: Book it, tags: [smoke], evaluators: [{type: regex, config: {pattern: BK}}]}
  - id: asks back
    messages: [{role: system, content: You book.}]
    turns:
      - {input: Book it, evaluators: [{type: ends-with, config: {text: "?"}}]}
      - {input: Two, expected: Done}
  - id: as evald test
    metadata: {item: {reference: BK-1}}
    turns:
      - {input: Book it}
      - input: Two
        evaluators:
          - {type: string-check, config: {operation: eq, input: "{{sample.output_text}}", reference: "{{item.reference}}"}}
          - {type: completed-within, config: {limitMs: 30}, when: final}
  - {id: later, input: Hi, skip: not yet}
"""

CASES = """
import pytest

@pytest.mark.evald_suite("bookings.yaml")
def test_agent(evald, evald_case):
    assert evald_case.messages[-1] == {"role": "user", "content": "Book it"}
    answers = ["Booked, BK-1"] if len(evald_case.inputs) == 1 else ["For how many?", "Done and done and done."]
    if evald_case.id == "as evald test":
        answers = [{"text": "BK-1", "latency_ms": 10}, {"text": "BK-1", "latency_ms": 20}]
    evald.assert_case(evald_case, *answers)

@pytest.mark.evald_suite("bookings.yaml", tags=["smoke"])
def test_smoke(evald, evald_case):
    evald.assert_case(evald_case, "BK", "too many")
"""


def test_a_test_runs_once_for_each_case_of_a_suite(tmp_path: Path) -> None:
    tmp_path.joinpath("bookings.yaml").write_text(SUITE)
    tmp_path.joinpath("test_it.py").write_text(CASES)
    said = run_pytest(tmp_path, "--strict-markers")
    assert "2 failed, 2 passed, 1 skipped" in said
    assert "FAILED length-within, score 0.00: Response length: 5 words" in said
    assert "ValueError: case books: got 2 answers, wanted 1, one for each turn" in said


def test_warnings_of_a_converted_suite_are_warnings_of_the_tests(tmp_path: Path) -> None:
    tmp_path.joinpath("bookings.yaml").write_text(
        "tests: [{id: a, input: x, criteria: Brief., assert: [{type: contains, value: BK}]}]\n"
    )
    tmp_path.joinpath("test_it.py").write_text(CASES)
    assert "no evaluator judges by the criteria" in run_pytest(tmp_path)


def test_what_is_wrong_with_a_suite_is_said_before_any_test_runs(tmp_path: Path) -> None:
    tmp_path.joinpath("bookings.yaml").write_text("name: a\ncases:\n  - {id: b, inputt: c}\n")
    for name, marker in {"wrong": "evald_suite('bookings.yaml')", "none": "parametrize('a', [])"}.items():
        tmp_path.joinpath(f"test_{name}.py").write_text(
            f"import pytest\n@pytest.mark.{marker}\ndef test_it(evald_case, a=1): pass\n"
        )
    said = run_pytest(tmp_path)
    assert "2 errors" in said
    assert "bookings.yaml:3: cases[0].inputt" in said
    assert "names no suite" in said
    assert "Traceback" not in said
