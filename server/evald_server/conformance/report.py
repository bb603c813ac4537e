"""The report of a check, and its JSON and JUnit formats."""

import xml.etree.ElementTree as ET
from enum import Enum
from typing import Any, NamedTuple

from evald.plugin.v1 import task_pb2
from evald_server.untrusted import xml_text

from .link import Mode
from .rules import ContractRule


class RuleOutcome(Enum):
    """Outcome of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    """A broken rule that is only a SHOULD."""
    NOT_SHOWN = "not_shown"
    """The rule could not be checked; the text says what is missing."""


class Finding(NamedTuple):
    """The outcome of one rule. text: the reason, "" if the rule holds."""

    rule: ContractRule
    outcome: RuleOutcome
    text: str = ""


class ConformanceReport(NamedTuple):
    """All findings about one plugin."""

    mode: Mode
    info: task_pb2.PluginInfo
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether no MUST rule is broken."""
        return not self.count(RuleOutcome.FAILED)

    def count(self, outcome: RuleOutcome) -> int:
        """Return the number of rules with an outcome."""
        return sum(finding.outcome is outcome for finding in self.findings)


def to_dict(report: ConformanceReport) -> dict[str, Any]:
    """Convert the report to JSON data."""
    return {
        "passed": report.passed,
        "mode": report.mode,
        "plugin": {
            "name": report.info.name,
            "version": report.info.version,
            "sdk": report.info.sdk,
            "types": [found.type for found in report.info.evaluator_types],
        },
        "counts": {outcome.value: report.count(outcome) for outcome in RuleOutcome},
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


def to_junit(report: ConformanceReport) -> str:
    """Convert the report to JUnit XML. A broken MUST is a failure; a rule that could not be checked is skipped."""
    suite = ET.Element(
        "testsuite",
        name=xml_text(f"evald conformance: {report.info.name} {report.info.version} ({report.mode})"),
        tests=str(len(report.findings)),
        failures=str(report.count(RuleOutcome.FAILED)),
        errors="0",
        skipped=str(report.count(RuleOutcome.NOT_SHOWN)),
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
        suite, "testcase", classname="evald.plugin.v1", name=xml_text(f"{rule.number} {rule.sentence}")
    )
    if finding.outcome is RuleOutcome.FAILED:
        ET.SubElement(case, "failure", message=xml_text(finding.text), type=rule.number)
    elif finding.outcome is RuleOutcome.NOT_SHOWN:
        ET.SubElement(case, "skipped", message=xml_text(finding.text))
    elif finding.outcome is RuleOutcome.WARNING:
        ET.SubElement(case, "system-out").text = xml_text(f"recommended, but not fulfilled: {finding.text}")
