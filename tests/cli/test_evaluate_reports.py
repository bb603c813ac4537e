"""`evald evaluate --junit --html`: reports of conversations."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

SAMPLE = str(Path(__file__).parents[2] / "server/evald_server/cli/demo_data/conversations.jsonl")


def verdicts(junit: Path) -> dict[str, str]:
    (suite,) = ET.parse(junit).getroot()
    return {
        case.get("name", ""): next((child.tag for child in case if child.tag != "properties"), "passed")
        for case in suite
        if case.tag == "testcase"
    }


WORDS = {"PASSED": "passed", "FAILED": "failure", "ERROR": "error", "SKIPPED": "skipped"}
STYLES = {"pass": "passed", "fail": "failure", "error": "error", "skip": "skipped"}


@pytest.mark.parametrize("turns", [[], ["--turns"]], ids=["last turns", "every turn"])
def test_reports_say_of_each_conversation_what_json_says(
    records: Any, tmp_path: Path, turns: list[str]
) -> None:
    junit, page = tmp_path / "report.xml", tmp_path / "report.html"
    checks = ["-e", "length-within:max=40,unit=words", "-e", "tool-call-count", *turns]
    found, _, _ = records(SAMPLE, *checks, "--junit", str(junit), "--html", str(page))
    said = {one["id"]: WORDS[one["verdict"]] for one in found}
    assert len(said) > 5
    assert verdicts(junit) == said
    cases = r'<details class="case (\w+)".*?<span class="id" dir="auto">(.*?)</span>'
    shown = re.findall(cases, page.read_text(encoding="utf-8"), re.DOTALL)
    assert {case_id: STYLES[style] for style, case_id in shown} == said


def test_conversations_with_equal_ids_are_told_apart(evald: Any, tmp_path: Path) -> None:
    junit, sent = tmp_path / "report.xml", tmp_path / "talks.jsonl"
    talks = [
        {"id": name, "messages": [{"role": "assistant", "content": text}]}
        for name, text in (("a", "yes"), ("b", "no"), ("a", "no"), ("a", "yes"))
    ]
    sent.write_text("\n".join(map(json.dumps, talks)))
    assert evald("evaluate", str(sent), "-e", "contains:text=yes", "--junit", str(junit)).returncode == 1
    assert verdicts(junit) == {
        "a": "passed",
        "b": "failure",
        "a (conversation 3)": "failure",
        "a (conversation 4)": "passed",
    }


def test_what_breaks_is_an_error_in_the_reports_and_says_why(
    evald: Any, lines: Any, talk: Any, tmp_path: Path
) -> None:
    junit, plugin = tmp_path / "report.xml", tmp_path / "broken.py"
    plugin.write_text(
        "import evald\n"
        "def boom(ctx):\n    raise RuntimeError\n"
        'boom = evald.define_evaluator(type="acme.boom", kind=evald.ASSERTION, evaluate=boom)\n'
    )
    done = evald(
        "evaluate", lines(talk("Hi")), "-e", "acme.boom", "--plugin", str(plugin), "--junit", str(junit)
    )
    assert done.returncode == 3
    assert set(verdicts(junit).values()) == {"error"}
    (suite,) = ET.parse(junit).getroot()
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    assert "EVALUATOR_EXCEPTION" in "".join(suite.itertext())


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(evald: Any, tmp_path: Path) -> None:
    for path in (tmp_path / "missing/report.xml", tmp_path):
        done = evald("evaluate", SAMPLE, "-e", "is-json", "--junit", str(path))
        assert done.returncode == 2
        assert not done.stdout
        assert str(path) in done.stderr.replace("\n", "")


def test_a_report_replaces_the_old_one_only_when_it_is_whole(tmp_path: Path) -> None:
    from evald.v1 import suite_service_pb2
    from evald_server.cli.report_files import write_report_file
    from evald_server.suites.reports.report import SuiteReport, WrongCases

    path = tmp_path / "report.xml"
    path.write_text("old")
    wrong = SuiteReport(suite_service_pb2.SuiteRun(suite="s", case_count=1, passed_count=1), [])
    with pytest.raises(WrongCases):
        write_report_file(str(path), "junit", [wrong])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_to_and_not_replaced(evald: Any, tmp_path: Path) -> None:
    full, linked, target = tmp_path / "full.xml", tmp_path / "linked.xml", tmp_path / "target.xml"
    full.symlink_to("/dev/full")
    target.write_text("old")
    linked.symlink_to(target)
    done = evald("evaluate", SAMPLE, "-e", "tool-call-count", "--junit", str(full))
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert full.is_symlink()
    assert evald("evaluate", SAMPLE, "-e", "tool-call-count", "--junit", str(linked)).returncode == 0
    assert linked.is_symlink()
    assert "<testsuite" in target.read_text()


@pytest.mark.parametrize("turns", [[], ["--turns"]], ids=["last turns", "every turn"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_conversation_that_was_recorded_with_an_error_is_in_error(
    evald: Any, tmp_path: Path, turns: list[str], count: int
) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    rows = [{"id": "broke", "messages": said, "error": {"code": 504}}, {"id": "fine", "messages": said}]
    recorded, junit = tmp_path / "recorded.jsonl", tmp_path / "report.xml"
    recorded.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    found = evald("evaluate", str(recorded), "-e", "contains:text=hello", "--junit", str(junit), *turns)
    assert found.returncode == 3
    assert 'RECORDED_ERROR: {"code": 504}' in found.stdout
    assert verdicts(junit) == dict([("broke", "error"), ("fine", "passed")][:count])
