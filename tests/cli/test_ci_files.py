"""The files for CI services: their steps run in a shell, as a CI service runs them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evald_server.suites.documents import read_document

from .. import forks
from ..processes import EVALD, clean_environment

IN_FORK = Path(__file__).parents[1] / "docs/evald_in_fork.py"
CI = Path(__file__).parents[2] / "examples/ci"
CASE = "evaluators: [{type: contains, config: {text: 'yes'}}]\ncases: [{id: a, input: x, trials: 1, outputs: [ANSWER]}]\n"
OUTCOMES = [("'yes'", 0, "passed"), ("'no'", 1, "failed"), ("{messages: []}", 2, "")]


def _sh(script: str, folder: Path, **variables: str) -> int:
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    evald = programs / "evald"
    evald.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {IN_FORK} "$@"\n')
    evald.chmod(0o755)
    environment = clean_environment(
        {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "EVALD_TEST_EVALD": EVALD,
            "EVALD_TEST_FORKS": str(forks.FORKS[0].address),
            **variables,
        }
    )
    assert forks.run("-c", "", environment=environment).returncode == 0  # the fork server listens
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(command, check=False, cwd=folder, env=environment, timeout=120).returncode


def _steps() -> dict[str, Any]:
    action = read_document(CI / "github/action.yml").data
    return {step["name"]: step for step in action["runs"]["steps"] if "run" in step}


@pytest.mark.parametrize(("answer", "code", "result"), OUTCOMES)
def test_the_action_ends_as_its_suites_and_says_how(
    tmp_path: Path, answer: str, code: int, result: str
) -> None:
    (tmp_path / "a.yaml").write_text(CASE.replace("ANSWER", answer))
    files = {"GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    run = _steps()["Run the suites"]["run"]
    assert _sh(run, tmp_path, SUITES="*.yaml", OPTIONS="--threshold 1", **files) == code
    assert Path(files["GITHUB_OUTPUT"]).exists() is bool(result)
    if result:
        assert Path(files["GITHUB_OUTPUT"]).read_text() == f"result={result}\n"
        assert "## evald" in Path(files["GITHUB_STEP_SUMMARY"]).read_text()
        (tmp_path / "evald-base").symlink_to(tmp_path / "evald-results")
        compare = _steps()["Compare with the base branch"]["run"]
        assert _sh(compare, tmp_path, MAX_DROP="0.05", **files) == 0


@pytest.mark.thorough
def test_the_jobs_of_gitlab_end_as_their_suites(tmp_path: Path) -> None:
    job = read_document(CI / "gitlab.yml").data["evald"]
    script = "\n".join(line for line in job["script"] if not line.startswith("pip "))
    for answer, code, _ in OUTCOMES:
        (tmp_path / "a.yaml").write_text(CASE.replace("ANSWER", answer))
        assert _sh(script, tmp_path, **{**job["variables"], "SUITES": "*.yaml"}) == code
    assert (tmp_path / job["artifacts"]["reports"]["junit"]).is_file()
