"""Findings for machines: JSON and JUnit."""

import re
import xml.etree.ElementTree as ET
from typing import Any, Final

from .suite import Finding, Outcome, Report

# What XML 1.0 cannot hold, not even escaped. Source: W3C, Extensible Markup Language (XML) 1.0, 2.2.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_dict(report: Report) -> dict[str, Any]:
    """As JSON data."""
    return {
        "passed": report.passed,
        "mode": report.mode,
        "plugin": {
            "name": report.info.name,
            "version": report.info.version,
            "sdk": report.info.sdk,
            "types": [found.type for found in report.info.evaluator_types],
        },
        "counts": {outcome.value: report.count(outcome) for outcome in Outcome},
        "rules": [
            {
                "rule": finding.rule.number,
                "severity": finding.rule.severity.value,
                "sentence": finding.rule.sentence,
                "outcome": finding.outcome.value,
                "text": finding.text,
            }
            for finding in report.findings
        ],
    }


def to_junit(report: Report) -> str:
    """As JUnit XML: a broken MUST is a failure, what could not be tried is skipped."""
    suite = ET.Element(
        "testsuite",
        name=_xml(f"evald conformance: {report.info.name} {report.info.version} ({report.mode})"),
        tests=str(len(report.findings)),
        failures=str(report.count(Outcome.FAILED)),
        errors="0",
        skipped=str(report.count(Outcome.NOT_SHOWN)),
    )
    for finding in report.findings:
        _add_case(suite, finding)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    text: str = ET.tostring(root, encoding="unicode", xml_declaration=True)
    return text + "\n"


def _add_case(suite: ET.Element, finding: Finding) -> None:
    rule = finding.rule
    case = ET.SubElement(
        suite, "testcase", classname="evald.plugin.v1", name=_xml(f"{rule.number} {rule.sentence}")
    )
    if finding.outcome is Outcome.FAILED:
        ET.SubElement(case, "failure", message=_xml(finding.text), type=rule.number)
    elif finding.outcome is Outcome.NOT_SHOWN:
        ET.SubElement(case, "skipped", message=_xml(finding.text))
    elif finding.outcome is Outcome.WARNING:
        ET.SubElement(case, "system-out").text = _xml(f"should hold, but does not: {finding.text}")


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
