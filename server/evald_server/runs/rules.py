"""The rules that decide from turn results when a run stops and which verdict it gets."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from google.protobuf.struct_pb2 import Value

from evald.v1 import context_pb2, evaluator_pb2, result_pb2
from evald_server.engine.plan import Plan

_DEFAULT_MAX_MESSAGES: Final = 10

# Roles of the messages that count towards `max_messages`; system and tool messages do not count.
COUNTED_ROLES: Final = ("user", "assistant")

_JUDGE: Final = "llm-judge"
_SUCCESS_KEYS: Final = ("successCriteria", "success_criteria")
_FAILURE_KEYS: Final = ("failureCriteria", "failure_criteria")
_MODE_KEYS: Final = ("failureCriteriaMode", "failure_criteria_mode")

_PASSED, _FAILED = result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED
_ERROR, _SKIPPED = result_pb2.VERDICT_ERROR, result_pb2.VERDICT_SKIPPED


class StopCause(Enum):
    """Why a conversation ends. LIMIT: `max_messages` is reached. USER_DONE: the user has nothing more to say."""

    MET = "met"
    FAILURE = "failure"
    ASSERTION = "assertion"
    BROKEN = "broken"
    LIMIT = "limit"
    USER_DONE = "user_done"


class TurnFindings(NamedTuple):
    """The results of one turn that matter for the run. Each field is the first such result in declared order, or None.

    met: success criteria, if there are any and all are met. unmet: success criteria that are not met. failure: failure
    criteria that are met, on a turn where they count. unjudged: criteria without a verdict.
    failed: an enforced assertion, not criteria, that failed and cannot pass on a later turn.
    broken: an enforced assertion without a verdict that does not fail open.
    pending: an enforced assertion that failed and can pass on a later turn.
    """

    met: result_pb2.EvaluationResult | None = None
    unmet: result_pb2.EvaluationResult | None = None
    failure: result_pb2.EvaluationResult | None = None
    unjudged: result_pb2.EvaluationResult | None = None
    failed: result_pb2.EvaluationResult | None = None
    broken: result_pb2.EvaluationResult | None = None
    pending: result_pb2.EvaluationResult | None = None


class Conclusion(NamedTuple):
    """The verdict of a run and its reason. broken: the result without a verdict that puts the run in error."""

    verdict: result_pb2.Verdict
    reason: str
    broken: result_pb2.EvaluationResult | None = None


class RunRules:
    """The rules of one scenario.

    criteria: indexes of the judges whose criteria count as the scenario's: the judge of the scenario's own criteria,
    and every enforced `llm-judge` in its list.
    """

    def __init__(self, scenario: context_pb2.Scenario, plan: Plan) -> None:
        self.max_messages = most_messages(scenario)
        self._continues = scenario.on_assertion_failure == context_pb2.ASSERTION_FAILURE_POLICY_CONTINUE
        self._fail_open = frozenset(
            planned.index for planned in plan.evaluators if planned.fail_open and not planned.required
        )
        own = len(scenario.evaluators) + _has_own_criteria(scenario)  # the automatic evaluators follow
        configs = {
            planned.index: evaluator_pb2.EvaluatorSpec.FromString(spec).config.fields
            for planned, spec in zip(plan.evaluators[:own], plan.template.specs, strict=False)
            if planned.definition.type == _JUDGE and planned.counts and not planned.negate
        }
        self._success = frozenset(i for i, config in configs.items() if _has_text(config, _SUCCESS_KEYS))
        self._failure = frozenset(i for i, config in configs.items() if _has_text(config, _FAILURE_KEYS))
        self.criteria = self._success | self._failure
        self._every_turn = frozenset(
            i
            for i, config in configs.items()
            if any(k in config and config[k].string_value == "every_turn" for k in _MODE_KEYS)
        )

    def findings(self, results: Iterable[result_pb2.EvaluationResult]) -> TurnFindings:
        """Return the findings of a turn's results."""
        found: dict[str, result_pb2.EvaluationResult] = {}
        met = 0
        for result in results:
            if (
                result.kind == evaluator_pb2.EVALUATOR_KIND_METRIC
                or result.enforcement == evaluator_pb2.ENFORCEMENT_SHADOW
            ):
                continue
            criteria = result.index in self.criteria
            if result.verdict == _PASSED:
                if result.index in self._success:
                    met += 1
                    found.setdefault("met", result)
            elif result.verdict == _ERROR:
                if criteria:
                    found.setdefault("unjudged", result)
                if result.index not in self._fail_open:
                    found.setdefault("broken", result)
            elif result.verdict == _FAILED:
                if criteria and not result.pending and _says(result, "failureMet"):
                    found.setdefault("failure", result)
                elif result.index in self._success and not _says(result, "successMet"):
                    found.setdefault("unmet", result)
                else:
                    found.setdefault("pending" if result.pending else "failed", result)
        if met < len(self._success):
            found.pop("met", None)
        return TurnFindings(**found)

    def stop(self, findings: TurnFindings, end: StopCause | None) -> StopCause | None:
        """Return why the conversation ends with this turn; None if it continues. end: the cause that ends it anyway."""
        if findings.failure is not None:
            # In the other mode failure criteria count only on the last turn, so `end` stays the cause.
            return StopCause.FAILURE if end is None or findings.failure.index in self._every_turn else end
        if not self._continues:
            if findings.failed is not None:
                return StopCause.ASSERTION
            if findings.broken is not None and end is None:
                return StopCause.BROKEN
        if findings.met is not None and not (findings.failed or findings.broken or findings.pending):
            return StopCause.MET
        return end

    def must_judge_again(self, results: Iterable[result_pb2.EvaluationResult]) -> list[int]:
        """Return indexes of criteria that passed with met failure criteria, because the turn was not the last.

        If the turn becomes the last one, they must be judged again.
        """
        return [
            result.index
            for result in results
            if result.index in self._failure and result.verdict == _PASSED and _says(result, "failureMet")
        ]

    def conclude(
        self,
        cause: StopCause,
        before: TurnFindings,
        last: result_pb2.AggregatedEvaluation,
        earlier: TurnFindings,
        message_count: int,
    ) -> Conclusion:
        """Return the verdict of a run and its reason.

        before: the findings of the last turn before it was known to be the last; they take precedence over the
        evaluators that waited for the last turn. last: the evaluation of the last turn. earlier: failures and errors
        of the previous turns.
        """
        after = self.findings(last.results)
        if cause is StopCause.BROKEN:
            # A fault ended the conversation early. The run must not fail because of what is missing after it.
            after = before
        for found in (before, earlier, after):
            if found.failure is not None:
                return Conclusion(_FAILED, f"Failure criteria was triggered. {found.failure.reason}")
            if found.failed is not None:
                return Conclusion(_FAILED, f"Evaluator assertion failed. {found.failed.reason}")
        at_the_end = cause in (StopCause.LIMIT, StopCause.USER_DONE)
        if at_the_end and after.unmet is not None:
            if cause is StopCause.LIMIT:
                why = f"Max messages ({self.max_messages}) reached without meeting success criteria"
            else:
                why = (
                    f"The conversation ended after {message_count} messages without meeting success criteria"
                )
            return Conclusion(_FAILED, f"{why}. {after.unmet.reason}")
        # Criteria without a verdict are not met, even if their judge may fail open.
        broken = before.broken or after.broken or earlier.broken or after.unjudged
        if broken is not None:
            return Conclusion(_ERROR, f'"{broken.name}" gave no verdict: {broken.reason}', broken)
        if last.verdict != _PASSED:
            return Conclusion(last.verdict, last.reason)
        judged = after.met or next((result for result in last.results if result.index in self.criteria), None)
        if judged is not None:
            return Conclusion(_PASSED, judged.reason)
        if cause is StopCause.LIMIT:
            return Conclusion(_PASSED, f"Completed {self.max_messages} messages. {last.reason}.")
        return Conclusion(_PASSED, f"The conversation ended after {message_count} messages. {last.reason}.")


def most_messages(scenario: context_pb2.Scenario) -> int:
    """Return the maximum number of messages in a conversation."""
    return scenario.max_messages if scenario.HasField("max_messages") else _DEFAULT_MAX_MESSAGES


def counted_roles(scenario: context_pb2.Scenario) -> list[str]:
    """Return the roles of the scenario's initial messages that count."""
    return [message.role for message in scenario.messages if message.role in COUNTED_ROLES]


def _has_text(config: Mapping[str, Value], keys: Iterable[str]) -> bool:
    # A null value means no criteria.
    return any(key in config and config[key].string_value for key in keys)


def _has_own_criteria(scenario: context_pb2.Scenario) -> bool:
    if not (scenario.success_criteria or scenario.failure_criteria):
        return False
    only_evaluators = scenario.criteria_policy == context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
    return not (scenario.evaluators and only_evaluators)


def _says(result: result_pb2.EvaluationResult, key: str) -> bool:
    return result.metadata.fields[key].bool_value if key in result.metadata.fields else False
