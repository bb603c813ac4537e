"""Every report says what the suite run says: the same counts, and errors as errors."""

import html
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import TextIO

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from evald.result import Verdict
from evald.v1 import message_pb2, result_pb2, suite_service_pb2
from evald_server.pages.environment import MissingPackage, environment
from evald_server.pages.formats import mark
from evald_server.suites.reports.case_view import case_view
from evald_server.suites.reports.github import write_github
from evald_server.suites.reports.json_files import write_json, write_jsonl
from evald_server.suites.reports.junit import write_junit
from evald_server.suites.reports.markdown import MOST_BYTES, write_markdown
from evald_server.suites.reports.page import write_page
from evald_server.suites.reports.report import SuiteReport, WrongCases
from evald_server.suites.verdicts import decide_case

from . import samples
from .hostile import HOSTILE, hostile_report

SERVER = Path(__file__).parents[3] / "server/evald_server"
Writer = Callable[[Sequence[SuiteReport], TextIO], None]
WRITERS: dict[str, Writer] = {
    "json": write_json,
    "jsonl": write_jsonl,
    "junit": write_junit,
    "markdown": write_markdown,
    "github": write_github,
    "page": write_page,
}


def written(write: Writer, *reports: SuiteReport) -> str:
    stream = io.StringIO()
    write(reports, stream)
    return stream.getvalue()


# Cases as letters, a letter for each trial; A is an agent that broke. Ten: GitHub shows no more annotations.
MIXES = st.lists(st.text("PFESA", min_size=1, max_size=3), max_size=10)
# Verdicts that this version does not know, too.
WORDS = {1: "passed", 2: "failed", 3: "error", 4: "skipped"}


def mixed_report(letters: list[str]) -> SuiteReport:
    return samples.report([samples.case(f"case-{number}", case) for number, case in enumerate(letters)])


def counts(report: SuiteReport) -> Counter[str]:
    run = report.run
    return +Counter(
        passed=run.passed_count, failed=run.failed_count, error=run.error_count, skipped=run.skipped_count
    )


def verdicts(report: SuiteReport) -> dict[str, str]:
    return {case.case_id: WORDS[case.verdict] for case in report.cases}


@given(MIXES)
@settings(max_examples=60)
def test_every_report_has_the_verdicts_and_counts_of_the_suite_run(letters: list[str]) -> None:
    report = mixed_report(letters)
    wanted = verdicts(report)
    assert counts(report) == Counter(wanted.values())
    assert in_junit(written(write_junit, report), report) == wanted
    assert in_page(written(write_page, report)) == wanted
    red = {case_id: verdict for case_id, verdict in wanted.items() if verdict in ("failed", "error")}
    assert in_markdown(written(write_markdown, report), report) == red
    commands = re.findall(
        r"^::(error|warning) title=[^:]*%3A (case-\d+) ", written(write_github, report), re.MULTILINE
    )
    assert {case_id: {"error": "failed", "warning": "error"}[command] for command, case_id in commands} == red
    lines = [json.loads(line) for line in written(write_jsonl, report).splitlines()]
    whole = json.loads(written(write_json, report))
    assert whole == {"suiteRun": lines[-1]["suiteRun"], "cases": lines[:-1]}
    assert [ParseDict(case, suite_service_pb2.CaseResult()) for case in whole["cases"]] == list(report.cases)
    assert ParseDict(whole["suiteRun"], suite_service_pb2.SuiteRun()) == report.run


def in_junit(text: str, report: SuiteReport) -> dict[str, str]:
    (suite,) = ET.fromstring(text)
    check_junit(suite)
    found = {}
    for case in suite.iter("testcase"):
        tags = {"failure": "failed", "error": "error", "skipped": "skipped"}
        words = [tags[child.tag] for child in case if child.tag in tags]
        assert len(words) <= 1
        found[case.get("name")] = words[0] if words else "passed"
    red = any(verdict in ("failed", "error") for verdict in found.values())
    assert red or report.run.verdict == result_pb2.VERDICT_PASSED, "a run that did not pass looks green"
    extra = found.pop("(verdict of the suite)", None)
    assert (extra == "error") == (
        report.run.verdict == result_pb2.VERDICT_ERROR and not report.run.error_count
    )
    return found  # type: ignore[return-value]


# What Jenkins' and Surefire's schemas of JUnit XML ask for, as data: attributes that must and may be there,
# and children. Source: github.com/jenkinsci/xunit-plugin, junit-10.xsd; `file` and `line` are pytest's and GitLab's.
JUNIT = {
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"skipped", "timestamp", "time"},
        {"properties", "testcase"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": (
        {"name", "classname"},
        {"time", "file", "line"},
        {"properties", "failure", "error", "skipped"},
    ),
    "failure": ({"message", "type"}, set(), set()),
    "error": ({"message", "type"}, set(), set()),
    "skipped": ({"message"}, set(), set()),
}


def check_junit(suite: ET.Element) -> None:
    for element in suite.iter():
        must, may, children = JUNIT[element.tag]
        assert must <= set(element.keys()) <= must | may, element.tag
        assert {child.tag for child in element} <= children
    cases = list(suite.iter("testcase"))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(attribute, "")) == sum(case.find(tag) is not None for case in cases)
    assert int(suite.get("tests", "")) == len(cases)


def in_page(text: str) -> dict[str, str]:
    words = {"pass": "passed", "fail": "failed", "error": "error", "skip": "skipped"}
    found = re.findall(
        r'<details class="case (\w+)".*?<span class="id" dir="auto">(.*?)</span>', text, re.DOTALL
    )
    return {case_id: words[style] for style, case_id in found}


def in_markdown(text: str, report: SuiteReport) -> dict[str, str]:
    summary = next(line for line in text.splitlines() if line.startswith("| <code>checkout</code>"))
    cells = [cell.strip() for cell in summary.strip("|").split("|")]
    run = report.run
    assert cells[4:8] == [
        str(n) for n in (run.case_count, run.failed_count, run.error_count, run.skipped_count)
    ]
    rows = re.findall(
        r"^\| <code>(case&#45;\d+|case-\d+)</code> \| . (Failed|Inconclusive) \|", text, re.MULTILINE
    )
    return {
        name.replace("&#45;", "-"): {"Failed": "failed", "Inconclusive": "error"}[word] for name, word in rows
    }


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("verdict", [0, 17])
def test_a_verdict_that_nobody_knows_is_an_error(write: Writer, verdict: int) -> None:
    cases = [samples.case("strange", "P"), samples.case("fine", "P")]
    run = samples.suite_run([samples.case("strange", "E"), cases[1]])
    cases[0].verdict = verdict  # type: ignore[assignment]
    text = written(write, SuiteReport(run, cases))
    if write is write_junit:
        assert in_junit(text, SuiteReport(run, cases)) == {"strange": "error", "fine": "passed"}
    elif write is write_page:
        assert in_page(text) == {"strange": "error", "fine": "passed"}
    elif write is write_markdown:
        assert "strange</code> | ! Inconclusive" in text
    elif write is write_github:
        assert text.startswith("::warning ")


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize(
    ("counted", "reported"),
    [("PP", "P"), ("PP", "PPP"), ("PP", "PE"), ("PPF", "PP"), ("PPE", "PP"), ("PPS", "PP")],
    ids=[
        "one lost",
        "one more",
        "one red",
        "one failed case lost",
        "one error lost",
        "one skipped case lost",
    ],
)
def test_cases_that_are_not_those_of_the_run_make_no_report(
    write: Writer, counted: str, reported: str
) -> None:
    run = samples.suite_run([samples.case(str(number), letter) for number, letter in enumerate(counted)])
    cases = [samples.case(str(number), letter) for number, letter in enumerate(reported)]
    with pytest.raises(WrongCases, match="read the cases of suite run"):
        written(write, SuiteReport(run, cases))


@pytest.mark.thorough
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_cases_are_read_once_and_not_kept(write: Writer) -> None:
    """5,000 cases from a generator that cannot be read twice; most of them are gone when the report ends."""
    passed, failed = samples.case("p", "P"), samples.case("f", "F")
    kinds = [passed] * 4_999 + [failed]
    run = samples.suite_run(kinds)
    text = written(write, SuiteReport(run, iter(kinds)))
    if write is write_page:
        assert list(in_page(text)) == ["f", "p"], "the one that failed comes first, though it came last"
        assert "2,000 of 5,000 cases are shown" in text
        assert len(text) < 20_000_000


def test_junit_is_xml_and_keeps_what_xml_can_hold() -> None:
    report = hostile_report()
    (suite,) = ET.fromstring(written(write_junit, report))
    check_junit(suite)
    names = [case.get("name", "") for case in suite.iter("testcase")]
    assert "00 <script>alert(1)</script>" in names
    assert len(names) == 2 * len(HOSTILE)


def test_junit_says_where_a_case_is_and_what_its_scores_are() -> None:
    report = samples.rich_report()
    (suite,) = ET.fromstring(written(write_junit, report))
    case = next(case for case in suite.iter("testcase") if case.get("name") == "refund-01")
    assert (case.get("classname"), case.get("file"), case.get("line")) == (
        "checkout/staging",
        "suites/checkout.yaml",
        "12",
    )
    assert case.get("time") == "3.260", "4 trials of 812 and 3 ms"
    values = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert (values["score"], values["trials"]) == ("0.7125", "3 of 4 passed")
    assert values["score: regex (trial 4)"] == "0"
    assert values["value: tool-call-count (trial 1)"] == "1"
    assert "value: token-usage (trial 1)" not in values, "what was not measured is not 0"
    assert suite.get("skipped") == "2", "with the one that the suite's file leaves out"


@pytest.mark.parametrize(
    ("case", "tag", "text"),
    [
        pytest.param(
            samples.case("c", "PF"),
            "failure",
            f"2 needed; trial 2: {samples.REASONS['F']}\ntrial 2: answer: Moved to Friday at 10:00.\ntrial 2: regex: FAILED: {samples.REASONS['F']}",
            id="one trial failed",
        ),
        pytest.param(
            samples.case("c", "E"),
            "error",
            f"{samples.REASONS['E']}\nanswer: Moved to Friday at 10:00.\nregex: ERROR: TIMEOUT: {samples.REASONS['E']}",
            id="an evaluator broke",
        ),
        pytest.param(
            samples.case("c", "PA", reason="gone"),
            "error",
            "2 needed, 1 in error; trial 2: CONNECTOR_TIMEOUT: gone\ntrial 2: ERROR CONNECTOR_TIMEOUT: gone",
            id="the agent broke in one trial",
        ),
        pytest.param(
            samples.case("c", "A", reason="gone"),
            "error",
            "CONNECTOR_TIMEOUT: gone\nERROR CONNECTOR_TIMEOUT: gone",
            id="the agent broke",
        ),
        pytest.param(
            samples.dialogue("c", "PF"),
            "failure",
            f"Turn 2: {samples.REASONS['F']}\nturn 2: answer: Moved to Friday at 10:00.\nturn 2: regex: FAILED: {samples.REASONS['F']}",
            id="one turn failed",
        ),
        pytest.param(
            samples.case("c", "F", reason="x" * 9000),
            "failure",
            "x\nanswer: Moved to Friday at 10:00.\nregex: FAILED: " + "x" * (997 - len("FAILED: ")) + "...",
            id="cut",
        ),
    ],
)
def test_junit_says_why_a_case_did_not_pass(case: suite_service_pb2.CaseResult, tag: str, text: str) -> None:
    (suite,) = ET.fromstring(written(write_junit, samples.report([case])))
    (found,) = suite.iterfind("testcase/*[@message]")
    assert found.tag == tag
    assert f"{found.get('message')}\n{found.text}".endswith(text)
    names = {one.get("name") for one in suite.iterfind("testcase/properties/property")}
    assert ("score" in names, "trials" in names) == (case.HasField("score"), len(case.trials) > 1)


def _answered(*messages: message_pb2.ChatMessage, turns: int = 1) -> suite_service_pb2.CaseResult:
    """Return a case of one trial whose last turn, with these messages after its question, failed."""
    case = samples.dialogue("c", "P" * (turns - 1) + "F")
    trial = case.trials[0]
    turn = trial.turns[-1]
    del trial.messages[turn.first_message :]
    trial.messages.add(role="user", text="When?")
    trial.messages.extend(messages)
    turn.message_count = 1 + len(messages)
    return case


def _says(text: str | None = None, role: str = "assistant", **call: str) -> message_pb2.ChatMessage:
    message = message_pb2.ChatMessage(role=role)
    if text is not None:
        message.text = text
    if call:
        message.tool_calls.add(function=message_pb2.FunctionCall(**call))
    return message


ANSWERS: dict[str, tuple[suite_service_pb2.CaseResult, list[str]]] = {
    "a text": (_answered(_says("It is Monday.")), ["answer: It is Monday."]),
    "the last text": (
        _answered(_says("Wait."), _says(name="f", arguments="{}"), _says("x", "tool"), _says("Done.")),
        ["answer: Done."],
    ),
    "a text before calls": (_answered(_says("Wait."), _says(name="f", arguments="{}")), ["answer: Wait."]),
    "of the failing turn": (_answered(_says("No."), turns=3), ["turn 3: answer: No."]),
    "none, after another turn's": (
        _answered(turns=2),
        ["turn 2: answer: none: there is no message of the agent"],
    ),
    "not before a user's": (
        _answered(_says("Old."), _says("And?", "user")),
        ["answer: none: there is no message of the agent"],
    ),
    "before the simulator's end": (
        _answered(_says("Bye."), _says("###STOP###", "user")),
        ["answer: Bye."],
    ),
    "empty": (_answered(_says(" ")), ["answer: an empty text"]),
    "calls": (
        _answered(_says(name="find", arguments='{"a": 1}'), _says(name="go", arguments="{}")),
        ['answer: no text, only 2 tool calls: find({"a": 1}), go({})'],
    ),
    "long": (_answered(_says("é" * 512)), ["answer: " + "é" * 200 + "… (312 more characters)"]),
    "lines": (
        _answered(_says("a\r\n\n  \n::error::b\nregex: PASSED: fine\x1b[2J\u202e")),
        ["answer:", "  | a", "  | ::error::b", "  | regex: PASSED: fine\\x1b[2J\\u202e"],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_report_shows_the_answer_of_a_failing_turn_and_each_failing_evaluator(name: str) -> None:
    case, lines = ANSWERS[name]
    results = case.trials[0].turns[-1].evaluation.results
    for extra, verdict in (("tone", samples.FAILED), ("facts", samples.ERROR), ("fine", samples.PASSED)):
        results.add(name=extra, type=extra, verdict=verdict, kind=1, reason=f"{extra} was\nseen")
    place = lines[0].rpartition("answer:")[0]
    lines = [
        *lines,
        f"{place}regex: FAILED: {samples.REASONS['F']}",
        f"{place}tone: FAILED: tone was seen",
        f"{place}facts: ERROR: facts was seen",
    ]
    report = samples.report([case])
    (failure,) = ET.fromstring(written(write_junit, report)).iter("failure")
    assert (failure.text or "").split("\n") == lines
    (annotation,) = written(write_github, report).splitlines()
    assert annotation.partition(" failed::")[2].replace("%25", "%").split("%0A") == lines
    (cell,) = re.findall(r"^\| <code>c</code> .*", written(write_markdown, report), re.MULTILINE)
    shown = re.findall(r"<code>(.*?)</code>", cell)[1:]
    assert [html.unescape(one) for one in shown] == [line.strip() for line in lines]


def test_junit_has_the_totals_of_the_suite_run() -> None:
    (suite,) = ET.fromstring(written(write_junit, samples.rich_report()))
    assert (suite.get("timestamp"), suite.get("time")) == ("2026-11-22T04:48:28", "62.000")
    values = {one.get("name"): one.get("value") for one in suite.iterfind("properties/property")}
    assert list(values) == [
        *("verdict", "reason", "threshold", "pass_rate", "pass_rate_interval", "mean_score", "suite_run_id")
    ]
    assert (values["verdict"], values["threshold"], values["pass_rate"]) == ("FAILED", "0.8", "0.461538")
    nothing = samples.report([], run_id="")
    for name in ("create_time", "complete_time", "reason"):
        nothing.run.ClearField(name)
    (suite,) = ET.fromstring(written(write_junit, nothing))
    assert not {"timestamp", "time"} & set(suite.keys())
    assert [one.get("name") for one in suite.iterfind("properties/property")] == [
        *("verdict", "reason", "threshold")
    ]
    errors = [one.get("message") for one in suite.iterfind("testcase/error")]
    assert errors == ["no verdict"]
    (suite,) = ET.fromstring(written(write_junit, samples.report([])))
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message") == "No case that counts passed or failed"


def test_markdown_stays_below_githubs_limit_and_says_what_it_cuts() -> None:
    cases = [samples.case(f"case-{number}", "F", reason="*" * 2000) for number in range(1000)]
    text = written(write_markdown, *[samples.report(cases)] * 3)
    assert len(text.encode()) <= MOST_BYTES
    assert text.count("<details>") == text.count("</details>") > 0
    assert re.search(r"[\d,]+ cases more\.", text)
    assert "at GitHub's size limit" in text


@pytest.mark.parametrize(("letter", "word"), [("F", "Failed"), ("E", "Inconclusive")])
def test_markdown_of_many_suites_begins_with_those_that_did_not_pass(letter: str, word: str) -> None:
    """Names and reasons need more room than there is: rows are left out and counted, but never the whole table."""
    passed = [samples.report([samples.case("c", "P")], suite=f"{'é' * 90} {n}") for n in range(300)]
    red = [samples.report([samples.case("c", letter, reason="*" * 300)], suite=f"bad {n}") for n in range(60)]
    text = written(write_markdown, *passed, *red)
    assert len(text.encode()) <= MOST_BYTES
    rows = re.findall(r"^\| <code>[^|]*\| <code>staging</code> \| . \*\*(\w+)\*\* \|", text, re.MULTILINE)
    assert rows[:60] == [word] * 60
    assert set(rows[60:]) == {"Passed"}
    assert f"\n{360 - len(rows)} suite runs more.\n" in text
    assert "at GitHub's size limit" in text


def test_markdown_of_very_many_failed_suites_stays_below_githubs_limit() -> None:
    text = written(write_markdown, *[samples.report([samples.case("c", "F", reason="no")])] * 600)
    assert len(text.encode()) <= MOST_BYTES
    assert "\n400 suite runs more.\n" in text


def test_markdown_keeps_the_verdict_of_a_comparison_whose_cases_do_not_fit() -> None:
    report = samples.rich_report()
    assert report.comparison is not None
    report.comparison.ClearField("changes")
    for number in range(60):
        report.comparison.changes.add(
            case_id=f"{number}" + "😀" * 120,
            base_verdict=samples.PASSED,
            new_verdict=samples.FAILED,
            reason="😀" * 300,
        )
    report.comparison.provenance_changes.extend(f"judge {number}" for number in range(24))
    text = written(write_markdown, report)
    assert "! WARN against the base" in text
    assert "| Case | Base |" not in text
    assert text.count("Evaluated differently") == 20
    for change in report.comparison.changes:
        change.case_id = change.reason = "short"
    fits = written(write_markdown, report)
    assert (fits.count("| <code>short</code> | Passed | Failed |"), "10 changed cases more." in fits) == (
        50,
        True,
    )
    assert "60 changed cases more." in text
    assert "- 5 more differences" in text
    assert len(text.encode()) <= MOST_BYTES


MARKDOWN = """\
## evald

| Suite | Target | Verdict | Pass rate, 95 % | Cases | Failed | Inconclusive | Skipped | Score | Latency | Tokens | Cost |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| checkout | staging | ✗ **Failed** | 50 % (9.5 to 90.5 %) | 4 | 1 | 1 | 1 | 0.47 | 812 ms | 1,230 | $0.25 |
| broke | staging | ! **Inconclusive** | none | 2 | 0 | 1 | 1 |  | 812 ms | 410 |  |
| mute | staging | ! **Inconclusive** | none | 0 | 0 | 0 | 0 |  |  |  |  |
| fine |  | ✓ **Passed** | 100 % (20.7 to 100 %) | 1 | 0 | 0 | 0 | 0.95 | 812 ms | 410 |  |

- checkout: 33.3 % to 66.7 % of the cases passed, because of errors, 100 % wanted
- broke: No case that counts passed or failed

### checkout: ! WARN against the base

2 cases broke and 1 was fixed; the drop of 7.1 points may be chance (p = 0.500)

|  |  |
| --- | ---: |
| Pairs | 14 |
| Broken | 2 |
| Fixed | 1 |
| In error on one side | 2 |
| Only in the base, only in the new run | 0, 1 |
| Change of the pass rate | -7.1 points (-31.0 to +17.0) |
| McNemar, one-sided p | 0.500 |

| Case | Base | New | Reason |
| --- | --- | --- | --- |
| refund-01 | Passed | Failed | Response does not match pattern: BK-[0-9]{5} |
| refund-02 | Passed | Failed | Response does not match pattern: BK-[0-9]{5} |
| refund-05 | Failed | Passed | Response matches pattern: BK-[0-9]{5} |
- Evaluated differently: criteria: judged by gpt-4o before, by gpt-4o-mini now

### mute: ? INCONCLUSIVE against the base

nothing to compare

|  |  |
| --- | ---: |
| Pairs | 0 |
| Broken | 0 |
| Fixed | 0 |
| In error on one side | 0 |
| Only in the base, only in the new run | 0, 0 |


<details><summary>1 case of broke/staging not passed</summary>

| Case | Verdict | Reason |
| --- | --- | --- |
| a | ! Inconclusive | ERROR CONNECTOR_TIMEOUT: the agent gave no answer within 30 s |

</details>

<details><summary>2 cases of checkout/staging not passed</summary>

| Case | Verdict | Reason |
| --- | --- | --- |
| y | ✗ Failed | answer: Moved to Friday at 10:00.<br>regex: FAILED: Response does not match pattern: BK-[0-9]{5} |
| z | ! Inconclusive | answer: Moved to Friday at 10:00.<br>regex: ERROR: TIMEOUT: No answer within 2,000 ms |

</details>
"""


def test_markdown_has_every_figure_and_leaves_out_what_is_unknown() -> None:
    rich = samples.rich_report()
    cases = [samples.case("x", "P"), samples.case("y", "F"), samples.case("z", "E")]
    failed = SuiteReport(samples.suite_run(cases), cases, rich.left_out, comparison=rich.comparison)
    failed.run.cost.amount = 0.25
    mute = samples.report([], suite="mute")
    mute.run.reason = ""
    mute = mute._replace(
        comparison=suite_service_pb2.SuiteComparison(new=mute.run, reason="nothing to compare")
    )
    text = written(
        write_markdown,
        samples.report([samples.case("p", "P")], suite="fine", target=""),
        samples.report([samples.case("a", "A"), samples.case("s", "S")], suite="broke"),
        failed,
        mute,
    )
    shown = html.unescape(re.sub("</?code>", "", text)).replace("\u202f", " ").replace("\u2212", "-")
    assert shown == MARKDOWN


def test_markdown_counts_unstable_cases() -> None:
    case = samples.case("c", "PFP")
    decide_case(case, 2)
    for cases, shown in (([case], True), ([samples.case("c", "PPP")], False)):
        text = written(write_markdown, samples.report(cases))
        assert ("Passed" in text, "| Unstable |" in text) == (True, shown)


def test_nothing_in_markdown_is_more_than_text() -> None:
    text = written(write_markdown, hostile_report())
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z!][\w-]*)", page))
    own = {
        "code",
        "br",
        "details",
        "em",
        "h2",
        "h3",
        "li",
        "p",
        "strong",
        "summary",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    }
    assert tags <= own
    # Every row of a table has the cells of its head.
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        assert (
            len(
                {row.count("<td") + row.count("<th") - row.count("<thead") for row in table.split("<tr>")[1:]}
            )
            == 1
        )
    outside = re.sub(r"<code>.*?</code>", "", page, flags=re.DOTALL)
    assert "@" not in outside
    assert "alert" not in outside
    assert "evil" not in outside


def test_annotations_are_one_command_a_line() -> None:
    lines = written(write_github, hostile_report()).splitlines()
    assert lines
    assert all(
        re.fullmatch(r"::(error|warning|notice) (file=[^,:]+,line=7,)?title=[^,:]*::[^\r\n]*", line)
        for line in lines
    )


def test_annotations_are_as_many_as_github_shows_and_the_rest_is_counted() -> None:
    report = samples.report([samples.case(f"case-{number}", "FE"[number % 2]) for number in range(50)])
    lines = written(write_github, report).splitlines()
    assert Counter(line.split(" ")[0] for line in lines) == {"::error": 10, "::warning": 10, "::notice": 1}
    assert "::15 errors and 15 warnings in addition" in lines[-1]
    empty = [samples.report([], suite=f"empty-{number}") for number in range(12)]
    lines = written(write_github, *empty).splitlines()
    assert Counter(line.split(" ")[0] for line in lines) == {"::error": 10, "::notice": 1}
    assert "::2 errors in addition" in lines[-1]
    assert lines[0].endswith("empty-0/staging has no verdict::No case that counts passed or failed")
    empty[0].run.reason = ""
    assert "has no verdict::no verdict\n" in written(write_github, empty[0])
    long = samples.report([samples.case("c", "F", reason="x" * 2000)], suite="s" * 2000)
    shown = written(write_github, long)
    assert re.fullmatch(r"::error title=s{1000}::answer: Moved[^%]*%0Aregex: FAILED: x{989}\.\.\.\n", shown)


def test_an_annotation_has_a_message_because_github_drops_it_otherwise() -> None:
    case = suite_service_pb2.CaseResult(case_id="mute", verdict=samples.FAILED, reason=" ", weight=1)
    (line,) = written(write_github, samples.report([case])).splitlines()
    assert line.endswith("::no reason was given")


class Tags(HTMLParser):
    """The tags of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)


def test_a_page_loads_nothing_and_its_policy_allows_nothing() -> None:
    text = written(write_page, samples.rich_report(), hostile_report())
    policy = html.unescape(text.partition("<body>")[0])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    found = Tags(text)
    assert not found.tags & {"img", "link", "iframe", "object", "embed", "base", "audio", "video"}
    names = {name for name, _ in found.attributes}
    assert not {
        name for name in names if name.startswith("on") or name in {"style", "src", "srcset", "action"}
    }
    assert {value for name, value in found.attributes if name == "href"} == {"#main", "#run-1", "#run-2"}


def test_a_page_plots_a_run_in_error_as_a_gap_and_lists_it() -> None:
    runs = [
        samples.suite_run([samples.case("a", letter)], day=day, run_id=f"run-{day}")
        for day, letter in ((1, "P"), (2, "E"), (3, "F"))
    ]
    running = samples.suite_run([], day=4, run_id="run-4")
    running.status = suite_service_pb2.SUITE_RUN_STATUS_RUNNING
    report = samples.report([samples.case("a", "F")])._replace(run=runs[2], history=[*runs[:2], running])
    text = written(write_page, report)
    assert "Pass rate of the last 3 runs" in text
    assert ", no case passed or failed" in text
    _, _, figure = text.partition("Pass rate of the last 3 runs")
    plot, _, table = figure.partition("</svg>")
    assert (plot.count('class="gap middle"'), plot.count('class="dot"'), plot.count('class="path"')) == (
        1,
        2,
        0,
    )
    assert "n/a" in table.partition("</table>")[0]


def test_a_page_of_long_texts_is_bounded_and_says_so() -> None:
    cases = [samples.case(f"case-{number}", "FFF", text="long " * 40_000) for number in range(40)]
    text = written(write_page, samples.report(cases))
    assert len(text) < 2_000_000
    assert "196,000 more characters" in text


def test_what_passed_leaves_room_for_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evald_server.suites.reports.page._MOST_CHARACTERS", 100_000)
    cases = [
        samples.case(f"case-{number}", "P" if number < 50 else "F", text="long " * 600)
        for number in range(100)
    ]
    text = written(write_page, samples.report(cases))
    without = [
        "The conversation is left out to limit the size of this page" in part
        for part in text.split('<details class="case ')[1:]
    ]
    failed, passed = without[:50], without[50:]
    for part in (failed, passed):
        assert not part[0]
        assert part[-1]
        assert part == sorted(part), "the first ones are whole"
    assert failed.count(False) > 3


def test_a_page_leaves_out_what_passed_before_what_did_not_and_counts_it() -> None:
    made = samples.crowded()
    text = written(write_page, samples.report([made]))
    assert "25 trials: 24 passed, 1 failed" in text
    assert re.search(r'<details class="trial fail" open><summary>Trial 25 ', text)
    assert "15 more trials" in text
    text = text.partition('<ol class="cases"')[2]
    for once in ("at the end", "check 59"):
        assert text.count(f">{once}<") == 10, "once in each shown trial"
    for more in ("15 more results", "10 more checks", "11 more calls", "40 more warnings"):
        assert text.count(f">{more}<") == 10


def test_a_page_says_the_trials_of_a_case_without_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evald_server.suites.reports.page._MOST_CHARACTERS", 0)
    text = written(write_page, samples.report([samples.case("c", "PFES")]))
    assert "4 trials: 1 passed, 1 failed, 1 inconclusive, 1 skipped" in text


def test_a_page_draws_no_rate_where_nothing_passed_or_failed() -> None:
    text = written(write_page, samples.report([samples.case("a", "S"), samples.case("b", "E")]))
    assert "no case passed or failed" in text
    # That of the one evaluator that passed.
    assert text.count('<svg class="bar') == 1


def test_a_page_shows_the_cases_on_which_targets_differ() -> None:
    one = [samples.case("same", "F"), samples.case("other", "P"), samples.case("only", "P")]
    other = [samples.case("same", "F"), samples.case("other", "F")]
    reports = samples.report(one), samples.report(other, target="prod")
    table = written(write_page, *reports).partition("Where targets differ")[2].partition("</table>")[0]
    words = [re.sub(r"\W+", " ", re.sub("<[^>]+>", " ", row)).split() for row in table.split("<tr")[2:]]
    assert words == [["other", "Passed", "Failed"], ["only", "Passed", "not", "run"]]
    assert "Where targets differ" not in written(write_page, reports[0])


def test_a_page_draws_the_history_of_the_pass_rate() -> None:
    cases = [samples.case("a", "P")]
    past = [samples.suite_run(cases, day=day, run_id=str(day)) for day in (21, 20)]
    report = samples.report([samples.case("a", "F")])
    text = written(write_page, report._replace(history=past))
    drawn = re.findall(r"<title>2026-11-(\d\d) 04:48 UTC: (\w+), ", text)
    assert drawn == [("20", "Passed"), ("21", "Passed"), ("22", "Failed")]
    assert len(re.findall(r"<title>2026-11-", written(write_page, report._replace(history=past[:1])))) == 2
    assert not re.findall(r"<title>2026-11-", written(write_page, report))


def test_messages_outside_of_turns_are_shown_or_counted() -> None:
    broke = case_view(samples.case("c", "A"), Verdict.ERROR, "", whole=True)
    assert broke.trials is not None
    (trial,) = broke.trials
    assert trial.error == "CONNECTOR_TIMEOUT: the agent gave no answer within 30 s"
    (turn,) = trial.turns
    assert (turn.mark, len(turn.messages), trial.before, turn.results_left_out, turn.warnings) == (
        None,
        2,
        [],
        0,
        [],
    )
    made = samples.dialogue("c", "PF")
    one = made.trials[0]
    one.messages.extend(samples.conversation())
    for _ in range(70):
        one.messages.insert(0, message_pb2.ChatMessage(role="user", text="earlier"))
    for number, moved in enumerate(one.turns):
        moved.first_message += 70
        moved.message_count += 60 * number  # more than the first 60
    one.messages.extend(samples.conversation() * 12)
    view = case_view(made, Verdict.FAILED, "", whole=True)
    assert view.trials is not None
    (trial,) = view.trials
    assert (len(trial.before), trial.before_left_out, trial.error) == (60, 10, "")
    assert [(turn.number, turn.mark, len(turn.messages), turn.left_out) for turn in trial.turns] == [
        (1, mark(samples.PASSED), 4, 0),
        (2, mark(samples.FAILED), 60, 4),
        (3, None, 5, 0),
    ]
    assert ([len(turn.assertions) for turn in trial.turns], [len(turn.metrics) for turn in trial.turns]) == (
        [2, 2, 0],
        [2, 2, 0],
    )
    assert (view.score, view.counts) == ("0.00", "")
    skipped = case_view(samples.case("c", "S", tags=["t"] * 21), Verdict.SKIPPED, "", whole=False)
    assert (skipped.score, skipped.trials, len(skipped.tags)) == ("", None, 20)


def test_a_page_shows_the_turn_that_failed_among_many() -> None:
    for letters in ("P" * 45 + "F" + "P" * 4, "P" * 49 + "E"):
        text = written(write_page, samples.report([samples.dialogue("long", letters)]))
        turns = re.findall(r"<span>Turn (\d+)</span> <span class=\"verdict (\w+)\">", text)
        red = str(letters.index(letters.strip("P")) + 1)
        assert [number for number, style in turns if style != "pass"] == [red]
        assert len(turns) == 40
        assert "10 more turns" in text


@pytest.mark.parametrize(
    ("letter", "shown"),
    [("P", "1"), ("E", "! Error"), ("S", "\u2013 Skipped")],
    ids=["passed", "error", "skipped"],
)
def test_a_metric_in_error_is_not_shown_like_one_without_data(letter: str, shown: str) -> None:
    made = samples.case("c", "P")
    metric = made.trials[0].turns[0].evaluation.results[2]
    metric.verdict = samples.VERDICTS[letter]
    text = written(write_page, samples.report([made])).partition('<ol class="cases"')[2]
    rows = re.findall(r'<th scope="row" dir="auto">([^<]*)</th><td class="n">(.*?)</td>', text)
    assert [(name, re.sub("<[^>]*>", "", value).strip()) for name, value in rows] == [
        ("Tool Call Count", shown),
        ("Token Usage", "n/a"),
    ]


@pytest.mark.parametrize(
    ("cost", "tokens", "shown"),
    [
        (0.02, 1200, "$0.02 1,200 tokens"),
        (0.02, None, "$0.02"),
        (None, 1200, "1,200 tokens"),
        (0, 0, "$0 0 tokens"),
        (None, None, None),
    ],
)
def test_a_page_says_what_was_spent_and_nothing_of_what_is_unknown(
    cost: float | None, tokens: int | None, shown: str | None
) -> None:
    report = samples.report([samples.case("c", "P")])
    for used, spent in (
        (report.run.token_usage, report.run.cost),
        (report.run.evaluator_token_usage, report.run.evaluator_cost),
    ):
        used.Clear()
        if tokens is not None:
            used.total_tokens = tokens
        if cost is not None:
            spent.amount = cost
    for name in ("token_usage", "evaluator_token_usage") if tokens is None else ():
        report.run.ClearField(name)
    text = written(write_page, report)
    for who in ("Agent", "Judges"):
        found = re.search(rf"<dt>{who}</dt><dd>(.*?)</dd>", text, re.DOTALL)
        assert (" ".join(re.sub("<[^>]*>", " ", found[1]).split()) if found else None) == shown


def test_the_templates_mark_nothing_as_safe() -> None:
    templates = [*SERVER.rglob("templates/*.html"), *SERVER.rglob("templates/*.js")]
    assert len(templates) >= 4
    for template in templates:
        source = template.read_text(encoding="utf-8")
        assert not re.search(
            r"\|\s*safe|innerHTML|outerHTML|insertAdjacent|\sstyle=|\son\w+=|autoescape", source
        ), template


def test_without_jinja_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackage, match=re.escape("pip install 'evald[web]'")):
        environment()
