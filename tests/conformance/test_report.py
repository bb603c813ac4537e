"""Reports carry what plugins say without harm."""

import json
import xml.etree.ElementTree as ET

from evald.plugin.v1 import task_pb2
from evald_server.conformance.checks import RULES
from evald_server.conformance.report import ConformanceReport, Finding, RuleOutcome, to_dict, to_junit

NASTY = "\x1b[31m<b>&\x00\ufffe]]>\n"


def report() -> ConformanceReport:
    outcomes = (RuleOutcome.PASSED, RuleOutcome.FAILED, RuleOutcome.WARNING, RuleOutcome.NOT_SHOWN)
    findings = [Finding(rule, outcome, NASTY) for rule, outcome in zip(RULES, outcomes, strict=False)]
    return ConformanceReport("target", task_pb2.PluginInfo(name="\x01plugin"), findings)


def test_junit_is_xml_whatever_a_plugin_says() -> None:
    suite = ET.fromstring(to_junit(report()))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [[], ["failure"], ["system-out"], ["skipped"]]
    assert "<b>&" in (suite[1][0].get("message") or "")


def test_json_counts_what_it_lists() -> None:
    data = to_dict(report())
    assert json.loads(json.dumps(data)) == data
    assert data["counts"] == {"passed": 1, "failed": 1, "warning": 1, "not_shown": 1}
    assert [rule["outcome"] for rule in data["rules"]] == ["passed", "failed", "warning", "not_shown"]
