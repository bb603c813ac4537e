"""Runs the checks of all rules on a plugin."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .checks import RULES
from .checks.turns import fits
from .link import Link, PluginGone
from .report import ConformanceReport, Finding, RuleOutcome
from .rules import ContractRule, NotTestable, RuleBroken, Severity, Timeouts, Trial
from .samples import Sample, schema_of


class UnknownSample(ValueError):
    """A config was given for a type that the plugin does not offer."""


async def check(
    link: Link,
    configs: Mapping[str, Mapping[str, Any]],
    slow: tuple[str, Mapping[str, Any]] | None = None,
    tell: Callable[[ContractRule], None] = lambda _: None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 - immutable
) -> ConformanceReport:
    """Check every rule that applies to the plugin's mode.

    configs: by type, for types that need one. slow: a type, and a config with which it takes 5 s or more.
    tell: called before each rule. timeouts: time limits. Raises UnknownSample.
    """
    by_type = {found.type: found for found in link.info.evaluator_types}
    for name in (*configs, *([slow[0]] if slow else ())):
        if name not in by_type:
            raise UnknownSample(f'the plugin does not offer "{name}"; it offers {", ".join(by_type)}')
    trial = Trial(
        link,
        list(_samples(link, configs)),
        Sample(by_type[slow[0]], slow[1]) if slow else None,
        timeouts,
    )
    findings: list[Finding] = []
    gone = ""
    for rule in RULES:
        if link.mode not in rule.modes:
            continue
        tell(rule)
        if gone and not rule.looks_back:
            findings.append(Finding(rule, RuleOutcome.NOT_SHOWN, gone))
            continue
        finding = await _try(rule, trial)
        findings.append(finding)
        if finding.outcome is RuleOutcome.FAILED and not await _lives(link, timeouts):
            gone = f"the plugin has not answered since rule {rule.number}"
    return ConformanceReport(link.mode, link.info, findings)


async def _try(rule: ContractRule, trial: Trial) -> Finding:
    try:
        await rule.check(trial)
    except NotTestable as problem:
        return Finding(rule, RuleOutcome.NOT_SHOWN, str(problem))
    except (RuleBroken, PluginGone) as problem:
        outcome = RuleOutcome.FAILED if rule.severity is Severity.MUST else RuleOutcome.WARNING
        return Finding(rule, outcome, str(problem))
    return Finding(rule, RuleOutcome.PASSED)


async def _lives(link: Link, timeouts: Timeouts) -> bool:
    """Return whether the plugin answers, or reconnects soon."""
    try:
        await link.recover(timeouts.back)
    except PluginGone:
        return False
    return True


def _samples(link: Link, configs: Mapping[str, Mapping[str, Any]]) -> Iterator[Sample]:
    for found in link.info.evaluator_types:
        if found.type in configs:
            yield Sample(found, configs[found.type])
            continue
        schema = schema_of(found)
        # An invalid schema has a rule of its own.
        if schema is None or fits(schema, {}):
            yield Sample(found, {})
