"""Runs the rules on a plugin."""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from evald.plugin.v1 import task_pb2

from .checks.turns import fits
from .links import Gone, Link, Mode
from .rules import RULES, Rule, Severity
from .samples import Sample, schema_of
from .trial import Broken, NotShown, Pace, Trial


class Outcome(Enum):
    """What became of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    """Broken, but only a SHOULD."""
    NOT_SHOWN = "not_shown"
    """It could not be tried; the text says what would be needed."""


class Finding(NamedTuple):
    """A rule and what became of it. text: why, "" when it holds."""

    rule: Rule
    outcome: Outcome
    text: str = ""


class Report(NamedTuple):
    """All findings about one plugin."""

    mode: Mode
    info: task_pb2.PluginInfo
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether no rule that must hold is broken."""
        return not self.count(Outcome.FAILED)

    def count(self, outcome: Outcome) -> int:
        """How many rules ended like this."""
        return sum(finding.outcome is outcome for finding in self.findings)


class UnknownSample(ValueError):
    """A config was given for a type that the plugin does not offer."""


async def check(
    link: Link,
    configs: Mapping[str, Mapping[str, Any]],
    slow: tuple[str, Mapping[str, Any]] | None = None,
    tell: Callable[[Rule], None] = lambda _: None,
    pace: Pace = Pace(),  # noqa: B008 - immutable
) -> Report:
    """Try every rule that holds for the plugin's way in.

    configs: by type, for types that need one. slow: a type and a config with which it takes 5 s or more.
    tell: called before each rule. pace: how long things may take. Raises UnknownSample.
    """
    by_type = {found.type: found for found in link.info.evaluator_types}
    for name in (*configs, *([slow[0]] if slow else ())):
        if name not in by_type:
            raise UnknownSample(f'the plugin does not offer "{name}"; it offers {", ".join(by_type)}')
    trial = Trial(
        link,
        list(_samples(link, configs)),
        Sample(by_type[slow[0]], slow[1]) if slow else None,
        pace,
    )
    findings: list[Finding] = []
    gone = ""
    for rule in RULES:
        if link.mode not in rule.modes:
            continue
        tell(rule)
        if gone and not rule.looks_back:
            findings.append(Finding(rule, Outcome.NOT_SHOWN, gone))
            continue
        finding = await _try(rule, trial)
        findings.append(finding)
        if finding.outcome is Outcome.FAILED and not await _lives(link, pace):
            gone = f"the plugin has not been there since {rule.number}"
    return Report(link.mode, link.info, findings)


async def _try(rule: Rule, trial: Trial) -> Finding:
    try:
        await rule.check(trial)
    except NotShown as problem:
        return Finding(rule, Outcome.NOT_SHOWN, str(problem))
    except (Broken, Gone) as problem:
        outcome = Outcome.FAILED if rule.severity is Severity.MUST else Outcome.WARNING
        return Finding(rule, outcome, str(problem))
    return Finding(rule, Outcome.PASSED)


async def _lives(link: Link, pace: Pace) -> bool:
    """Whether it still answers, or is back soon."""
    try:
        await link.recover(pace.back)
    except Gone:
        return False
    return True


def _samples(link: Link, configs: Mapping[str, Mapping[str, Any]]) -> Iterator[Sample]:
    for found in link.info.evaluator_types:
        if found.type in configs:
            yield Sample(found, configs[found.type])
            continue
        schema = schema_of(found)
        # A schema that is none has a rule of its own.
        if schema is None or fits(schema, {}):
            yield Sample(found, {})
