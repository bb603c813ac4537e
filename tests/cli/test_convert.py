"""`evald convert`: the file that it writes means what the file that it read means."""

from pathlib import Path

import pytest

from evald_server.cli import main
from evald_server.suites.suite_file import load_suites

from ..suites.test_foreign import ACCEPTED, DATA, REFUSED


@pytest.mark.parametrize("name", [row[0] for row in ACCEPTED])
def test_what_is_written_means_the_same(name: str, tmp_path: Path) -> None:
    written = tmp_path / "suite.yaml"
    assert main(["convert", str(DATA / name), "-o", str(written)]) == 0
    (ours,), (theirs,) = load_suites([written]), load_suites([DATA / name])
    assert ours.open == theirs.open
    assert list(ours.cases) == list(theirs.cases)
    assert (ours.targets, ours.connectors) == (theirs.targets, theirs.connectors)


def test_warnings_and_refusals_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(DATA / "graders/python.json")]) == 0
    told = capsys.readouterr()
    assert "warning: " in told.err
    assert told.out.startswith("name: Example python grader\n")
    name, line, reason = REFUSED[0]
    assert main(["convert", str(DATA / name)]) == 2
    assert f"{DATA / name}:{line}" in (said := capsys.readouterr().err)
    assert reason in said
    own = tmp_path / "own.yaml"
    own.write_text("cases: []\n")
    assert main(["convert", str(own)]) == 2
    assert "unknown format, wanted a suite of AgentV or promptfoo" in capsys.readouterr().err


def test_a_suite_of_agentv_gives_a_result_file_of_agentv(tmp_path: Path) -> None:
    output = tmp_path / "results.agentv.jsonl"
    data_dir = str(tmp_path / "data")
    grader = str(DATA / "graders/string-check.json")
    assert main(["test", grader, "--output", str(output), "--data-dir", data_dir]) == 1
    first, second = output.read_text().splitlines()
    assert '"score": 1.0' in first
    assert '"score": 0.0' in second
