"""JUnit XML: a failed case is a failure, an inconclusive case an error."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TextIO
from xml.sax.saxutils import escape, quoteattr

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import suite_service_pb2
from evald_server.untrusted import shorten, xml_text

from .failures import failure_lines
from .report import (
    SuiteReport,
    case_seconds,
    checked_cases,
    lacks_a_red_case,
    measured,
    results,
)

# Limit of characters: a CI system shows the text of every failure on one page.
_MOST_TEXT: Final = 8000


def write_junit(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write a test suite for each suite run and a test case for each case.

    If a suite run did not pass, but no case failed or is in error, one more test case has the error.
    Raises WrongCases.
    """
    xml = _Xml(stream)
    stream.write('<?xml version="1.0" encoding="utf-8"?>\n')
    with xml.element("testsuites", name="evald"):
        for report in reports:
            _write_suite(report, xml)


class _Xml:
    """A streaming writer of XML elements. Characters that XML cannot hold are replaced."""

    def __init__(self, stream: TextIO) -> None:
        self._write = stream.write

    @contextmanager
    def element(self, tag: str, **attributes: str) -> Iterator[None]:
        self._write(f"{self._tag(tag, attributes)}>\n")
        yield
        self._write(f"</{tag}>\n")

    def leaf(self, tag: str, text: str = "", **attributes: str) -> None:
        end = f">{escape(xml_text(text))}</{tag}>" if text else "/>"
        self._write(f"{self._tag(tag, attributes)}{end}\n")

    def properties(self, named: Iterable[tuple[str, str]]) -> None:
        found = list(named)
        if found:
            with self.element("properties"):
                for name, value in found:
                    self.leaf("property", name=name, value=value)

    def _tag(self, tag: str, attributes: dict[str, str]) -> str:
        return f"<{tag}" + "".join(
            f" {name}={quoteattr(xml_text(value))}" for name, value in attributes.items()
        )


def _write_suite(report: SuiteReport, xml: _Xml) -> None:
    run = report.run
    extra = lacks_a_red_case(run)
    attributes = {
        "tests": str(run.case_count + len(report.left_out) + extra),
        "failures": str(run.failed_count),
        "errors": str(run.error_count + extra),
        "skipped": str(run.skipped_count + len(report.left_out)),
    }
    if run.HasField("create_time"):
        began = datetime.fromtimestamp(run.create_time.seconds, UTC)
        attributes["timestamp"] = began.strftime("%Y-%m-%dT%H:%M:%S")
        if run.HasField("complete_time"):
            attributes["time"] = (
                f"{run.complete_time.ToNanoseconds() / 1e9 - run.create_time.ToNanoseconds() / 1e9:.3f}"
            )
    with xml.element("testsuite", name=report.name, **attributes):
        xml.properties(_run_properties(run))
        if extra:
            with xml.element("testcase", classname=report.name, name="(verdict of the suite)"):
                xml.leaf("error", message=run.reason or "no verdict", type="INCONCLUSIVE")
        for case, verdict in checked_cases(report):
            _write_case(case, verdict, report, xml)
        for case_id, why in report.left_out:
            with xml.element(
                "testcase", classname=report.name, name=case_id, **report.file_and_line(case_id)
            ):
                xml.leaf("skipped", message=why)


def _run_properties(run: suite_service_pb2.SuiteRun) -> Iterator[tuple[str, str]]:
    yield "verdict", read_verdict(run.verdict).name
    yield "reason", run.reason
    yield "threshold", f"{run.threshold:g}"
    if run.HasField("pass_rate"):
        rate = run.pass_rate
        yield "pass_rate", f"{rate.value:.6g}"
        yield "pass_rate_interval", f"{rate.low:.6g} to {rate.high:.6g}"
    if run.HasField("mean_score"):
        yield "mean_score", f"{run.mean_score:.6g}"
    if run.cached_answer_count:
        yield "cached_judge_answers", str(run.cached_answer_count)
    if run.id:
        yield "suite_run_id", run.id


def _write_case(case: suite_service_pb2.CaseResult, verdict: Verdict, report: SuiteReport, xml: _Xml) -> None:
    attributes = {"time": f"{case_seconds(case):.3f}", **report.file_and_line(case.case_id)}
    with xml.element("testcase", classname=report.name, name=case.case_id, **attributes):
        xml.properties(_case_properties(case))
        if verdict is Verdict.SKIPPED:
            xml.leaf("skipped", message=case.reason)
        elif verdict is not Verdict.PASSED:
            text = shorten("\n".join(failure_lines(case)), _MOST_TEXT)
            tag = "failure" if verdict is Verdict.FAILED else "error"
            xml.leaf(tag, text, message=case.reason or verdict.name, type=verdict.name)


def _case_properties(case: suite_service_pb2.CaseResult) -> Iterator[tuple[str, str]]:
    if case.HasField("score"):
        yield "score", f"{case.score:.6g}"
    if len(case.trials) > 1:
        yield "trials", f"{case.passed_count} of {len(case.trials)} passed"
    for place, result in results(case):
        name = f"{result.name} ({place})" if place else result.name
        if result.HasField("score"):
            yield f"score: {name}", f"{result.score:.6g}"
        elif (value := measured(result)) is not None:
            yield f"value: {name}", f"{value:.6g}"
    for warning in case.warnings:
        yield "warning", warning
    for tag in case.tags:
        yield "tag", tag
