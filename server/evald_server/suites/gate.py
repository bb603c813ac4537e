"""Gates for CI: read a file of rules for suites, and decide whether a change may be merged."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from pydantic import Field, ValidationError

from evald.v1 import result_pb2, suite_service_pb2

from .comparison import BLOCK, INCONCLUSIVE, PASS
from .documents import DataPath, Document, InvalidDocument, path_text, read_document
from .file_models import FilePart, Share, Threshold, problem_message
from .verdicts import suite_verdict

Decision: TypeAlias = Literal["GO", "NO-GO", "INCONCLUSIVE"]


class GateRule(FilePart):
    """A rule for one suite."""

    suite: str = Field(min_length=1, description="Name of the suite.")
    target: str = Field("", description="Name of the tested connector; default: any.")
    tier: Literal["critical", "supporting", "advisory"] = Field(
        "critical",
        description="critical: a comparison with WARN or BLOCK is NO-GO. supporting: only BLOCK is NO-GO. "
        "advisory: reported, does not affect the decision.",
    )
    threshold: Threshold | None = Field(None, description="Minimum pass rate of the new run.")
    max_drop: Share | None = Field(None, description="Maximum drop of the pass rate against the base.")
    min_pairs: int = Field(0, ge=0, description="Minimum number of cases with a verdict in both runs.")
    max_error_rate: Share | None = Field(None, description="Maximum share of cases in error in the new run.")

    def applies_to(self, run: suite_service_pb2.SuiteRun) -> bool:
        """Return whether the rule applies to a suite run."""
        return self.suite == run.suite and self.target in ("", run.target)


class GateFile(FilePart):
    """The rules of a gate."""

    gates: list[GateRule] = Field(min_length=1, description="The rules.")


def read_gate(path: Path) -> list[GateRule]:
    """Read a gate file in YAML or JSON. Raises InvalidDocument with the file and the line of the first problem."""
    document = read_document(path)
    try:
        rules = GateFile.model_validate(document.data).gates
    except ValidationError as problem:
        error = problem.errors(include_url=False, include_context=False)[0]
        where: DataPath = tuple(error["loc"])
        known = [*(GateRule if len(where) > 1 else GateFile).model_fields]
        raise _invalid(document, where, problem_message(error, known)) from None
    for index, rule in enumerate(rules):
        if rule.threshold is None and rule.max_drop is None:
            raise _invalid(document, ("gates", index), "missing limit; wanted `threshold` or `max_drop`")
        if rule.max_drop is None and rule.min_pairs:
            raise _invalid(
                document, ("gates", index, "min_pairs"), "given without `max_drop`; wanted both, or neither"
            )
    if all(rule.tier == "advisory" for rule in rules):
        raise _invalid(
            document,
            ("gates",),
            "every rule is advisory, so the gate can never stop a change; wanted at least one critical or supporting rule",
        )
    return rules


def _invalid(document: Document, where: DataPath, message: str) -> InvalidDocument:
    path = path_text(where)
    return InvalidDocument(document.file, document.line(where), f"{path}: {message}" if path else message)


class GateRuling(NamedTuple):
    """The result of one rule. target: "" when no suite run was found."""

    rule: GateRule
    target: str
    decision: Decision
    reason: str


def check_rule(
    rule: GateRule, new: suite_service_pb2.SuiteRun, comparison: suite_service_pb2.SuiteComparison | None
) -> GateRuling:
    """Return the result of a rule for a suite run. comparison: with the rule's max_drop; None if it has none.

    NO-GO outranks INCONCLUSIVE. But a run that is incomplete, or has too many errors, is always INCONCLUSIVE.
    """
    judged = new.passed_count + new.failed_count
    run = judged + new.error_count
    if new.status != suite_service_pb2.SUITE_RUN_STATUS_COMPLETED:
        return GateRuling(rule, new.target, "INCONCLUSIVE", "The new run did not complete")
    if not new.HasField("pass_rate"):
        return GateRuling(rule, new.target, "INCONCLUSIVE", "No case passed or failed")
    if rule.max_error_rate is not None and new.error_count / run > rule.max_error_rate:
        reason = f"{new.error_count} of {run} cases in error, at most {rule.max_error_rate:.1%} accepted"
        return GateRuling(rule, new.target, "INCONCLUSIVE", reason)
    found = []
    if rule.threshold is not None:
        # Older results lack the weight of cases in error. They are assumed to weigh as much as others on average.
        errors = new.error_share if new.HasField("error_share") else new.error_count / run
        passed = (1 - errors) * new.pass_rate.value
        failed = (1 - errors) * (1 - new.pass_rate.value)
        found.append(_threshold(passed, failed, errors, rule.threshold))
    if comparison is not None:
        found.append(_drop(rule, comparison))
    decision = overall(decision for decision, _ in found)
    reason = "; ".join(reason for each, reason in found if each == decision)
    return GateRuling(rule, new.target, decision, reason)


def _threshold(passed: float, failed: float, errors: float, threshold: float) -> tuple[Decision, str]:
    verdict, reason = suite_verdict(passed, failed, errors, threshold)
    if verdict == result_pb2.VERDICT_PASSED:
        return "GO", reason
    return ("NO-GO" if verdict == result_pb2.VERDICT_FAILED else "INCONCLUSIVE"), reason


def _drop(rule: GateRule, comparison: suite_service_pb2.SuiteComparison) -> tuple[Decision, str]:
    if comparison.verdict == BLOCK:
        return "NO-GO", comparison.reason
    if comparison.verdict in (INCONCLUSIVE, suite_service_pb2.COMPARISON_VERDICT_UNSPECIFIED):
        return "INCONCLUSIVE", comparison.reason
    if comparison.pair_count < rule.min_pairs:
        return "INCONCLUSIVE", f"{comparison.pair_count} pairs, at least {rule.min_pairs} wanted"
    if comparison.verdict == PASS or rule.tier == "supporting":
        return "GO", comparison.reason
    return "NO-GO", comparison.reason


def not_found(rule: GateRule) -> GateRuling:
    """Return the result of a rule without a suite run."""
    return GateRuling(rule, "", "INCONCLUSIVE", "No suite run of this suite was found")


def overall(decisions: Iterable[Decision]) -> Decision:
    """Return the worst decision: NO-GO, INCONCLUSIVE, GO; INCONCLUSIVE without decisions."""
    found = set(decisions)
    for decision in _WORST_FIRST:
        if decision in found:
            return decision
    return "INCONCLUSIVE"


_WORST_FIRST: Final[tuple[Decision, ...]] = ("NO-GO", "INCONCLUSIVE", "GO")


def decide(results: Iterable[GateRuling]) -> Decision:
    """Return the decision of a gate. Advisory rules do not count."""
    return overall(result.decision for result in results if result.rule.tier != "advisory")
