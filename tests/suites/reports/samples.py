"""Sample suite runs for reports."""

from collections.abc import Sequence

from google.protobuf.struct_pb2 import Struct

from evald.v1 import evaluator_pb2, message_pb2, result_pb2, suite_service_pb2
from evald_server.suites.reports.report import SuiteReport
from evald_server.suites.verdicts import SuiteTotals, decide_case, decide_trial

PASSED, FAILED = result_pb2.VERDICT_PASSED, result_pb2.VERDICT_FAILED
ERROR, SKIPPED = result_pb2.VERDICT_ERROR, result_pb2.VERDICT_SKIPPED
VERDICTS = {"P": PASSED, "F": FAILED, "E": ERROR, "S": SKIPPED}


def conversation(text: str = "Moved to Friday at 10:00.") -> list[message_pb2.ChatMessage]:
    """Return a conversation that moves a booking, with a tool call."""
    call = message_pb2.ToolCall(
        id="c1",
        function=message_pb2.FunctionCall(name="find_slots", arguments='{"day": "Friday", "seats": 2}'),
    )
    return [
        message_pb2.ChatMessage(role="system", text="You are the assistant of an airline. " * 12),
        message_pb2.ChatMessage(role="user", text="I need to move my booking BK-48213 to Friday."),
        message_pb2.ChatMessage(role="assistant", tool_calls=[call]),
        message_pb2.ChatMessage(
            role="tool", name="find_slots", tool_call_id="c1", text='{"slots": ["09:00", "10:00", "16:30"]}'
        ),
        message_pb2.ChatMessage(role="assistant", text=text),
    ]


def evaluation(letter: str, reason: str) -> result_pb2.AggregatedEvaluation:
    """Return an evaluation with two assertions and two metrics; the second assertion has the verdict."""
    metadata = Struct()
    metadata.update({"pattern": "BK-[0-9]{5}", "matched": letter == "P"})
    found = result_pb2.AggregatedEvaluation(verdict=VERDICTS[letter], reason=reason)
    found.duration.FromMilliseconds(3)
    found.passed_count, found.failed_count = 1 + (letter == "P"), int(letter == "F")
    found.metrics["tool-call-count"] = 1
    if letter in "PF":
        found.score = {"P": 0.95, "F": 0.0}[letter]
    judge = found.results.add(
        index=0,
        name="criteria",
        type="llm-judge",
        label="LLM Judge",
        verdict=PASSED,
        score=0.95,
        kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
        reason="The booking was moved and confirmed.",
    )
    judge.checks.add(text="says the new time", met=True, evidence="Friday at 10:00")
    judge.checks.add(text="repeats the booking's number", met=letter == "P")
    regex = found.results.add(
        index=1,
        name="regex",
        type="regex",
        label="Regex",
        verdict=VERDICTS[letter],
        metadata=metadata,
        kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION,
        reason=reason,
    )
    if letter == "E":
        regex.error.code, regex.error.message = "TIMEOUT", reason
    elif letter in "PF":
        regex.score = float(letter == "P")
    calls = {"index": 2, "name": "tool-call-count", "type": "tool-call-count", "label": "Tool Call Count"}
    found.results.add(
        **calls,
        verdict=PASSED,
        kind=evaluator_pb2.EVALUATOR_KIND_METRIC,
        value=1,
        reason="1 tool call(s): find_slots",
    )
    unknown = Struct()
    unknown.update({"available": False})
    usage = {"index": 3, "name": "token-usage", "type": "token-usage", "label": "Token Usage"}
    found.results.add(
        **usage,
        verdict=PASSED,
        kind=evaluator_pb2.EVALUATOR_KIND_METRIC,
        value=0,
        metadata=unknown,
        reason="No token usage data available (connector doesn't provide it)",
    )
    return found


REASONS = {
    "P": "Response matches pattern: BK-[0-9]{5}",
    "F": "Response does not match pattern: BK-[0-9]{5}",
    "E": "No answer within 2,000 ms",
    "S": "Not applicable",
}


def case(
    case_id: str, letters: str, *, text: str = "", reason: str = "", tags: Sequence[str] = ()
) -> suite_service_pb2.CaseResult:
    """Return a case with a trial for each letter: P, F, E, S, or A for an agent's error."""
    made = suite_service_pb2.CaseResult(case_id=case_id, weight=1, tags=tags)
    for number, letter in enumerate(letters, 1):
        trial = made.trials.add(trial=number)
        trial.messages.extend(conversation(*([text] if text else [])))
        if letter == "A":
            trial.error.code, trial.error.message = (
                "CONNECTOR_TIMEOUT",
                reason or "the agent gave no answer within 30 s",
            )
            del trial.messages[2:]
        else:
            turn = trial.turns.add(
                turn=1, first_message=1, message_count=4, is_final=True, model="gpt-4o-mini"
            )
            turn.latency.FromMilliseconds(812)
            turn.token_usage.total_tokens = 410
            turn.evaluation.CopyFrom(evaluation(letter, reason or REASONS[letter]))
        decide_trial(trial)
    decide_case(made)
    return made


def dialogue(case_id: str, letters: str) -> suite_service_pb2.CaseResult:
    """Return a case with one trial, which has a turn for each letter."""
    made = suite_service_pb2.CaseResult(case_id=case_id, weight=1)
    trial = made.trials.add(trial=1)
    for number, letter in enumerate(letters, 1):
        first = len(trial.messages)
        trial.messages.extend(conversation()[1:])
        turn = trial.turns.add(
            turn=number, first_message=first, message_count=4, is_final=number == len(letters)
        )
        turn.evaluation.CopyFrom(evaluation(letter, REASONS[letter]))
    decide_trial(trial)
    decide_case(made)
    return made


def crowded() -> suite_service_pb2.CaseResult:
    """Return a failed case with more trials, results, checks, calls and warnings than a page shows."""
    made = case("crowd", "P" * 24 + "F")
    made.reason = "ninety"
    for trial in made.trials:
        turn = trial.turns[0]
        calls = trial.messages[2].tool_calls
        for number in range(60):
            turn.evaluation.results.add().CopyFrom(turn.evaluation.results[0])
            turn.evaluation.results[1].checks.add(text=f"check {number}", met=number < 59)
            turn.evaluation.warnings.append(f"warning {number}")
            calls.add().CopyFrom(calls[0])
        broken = turn.evaluation.results.add(
            name="at the end", type="x", verdict=ERROR, kind=evaluator_pb2.EVALUATOR_KIND_ASSERTION
        )
        broken.error.code = "TIMEOUT"
    return made


def suite_run(
    cases: Sequence[suite_service_pb2.CaseResult],
    *,
    suite: str = "checkout",
    target: str = "staging",
    threshold: float = 1.0,
    day: int = 22,
    run_id: str = "4f2a91c7-0000-4000-8000-000000000000",
) -> suite_service_pb2.SuiteRun:
    """Return the suite run of these cases."""
    totals = SuiteTotals(threshold)
    for one in cases:
        totals.add(one)
    run = suite_service_pb2.SuiteRun(
        id=run_id,
        suite=suite,
        target=target,
        trials=1,
        status=suite_service_pb2.SUITE_RUN_STATUS_COMPLETED,
    )
    run.create_time.FromJsonString(f"2026-11-{day:02}T04:48:28Z")
    run.complete_time.FromJsonString(f"2026-11-{day:02}T04:49:30Z")
    run.labels["commit"] = "9c1f2ab"
    totals.fill(run)
    return run


def report(cases: Sequence[suite_service_pb2.CaseResult], **keywords: object) -> SuiteReport:
    """Return the report of these cases."""
    return SuiteReport(suite_run(cases, **keywords), cases)  # type: ignore[arg-type]


def rich_report(*, target: str = "staging", shift: int = 0) -> SuiteReport:
    """Return a suite run with everything that a report can show."""
    letters = ["PPPP", "PPPF", "FFPF", "PPPP", "EEPP", "PPPP", "AAAA", "SSSS"]
    cases = [
        case(f"refund-{number:02}", letters[(number + shift) % len(letters)], tags=["smoke", "refunds"])
        for number in range(14)
    ]
    cases.append(dialogue("change-name-and-seat-over-several-turns", "PFP"))
    cases.append(
        case(
            "long-answers",
            "F",
            text="I have looked into your request. " * 400,
            reason="Wanted at most 120 words, got 2,400: " + "the answer goes on and on " * 30,
        )
    )
    cases.append(case("unbroken", "F", text="x" * 3000, reason="y" * 900))
    run = suite_run(cases, target=target, threshold=0.8)
    run.cost.currency_code, run.cost.amount = "USD", 0.0042
    for name, kind in (
        ("criteria", "llm-judge"),
        ("regex", "regex"),
        ("tool-call-count", "tool-call-count"),
    ):
        used = run.provenance.add(name=name, type=kind, version="1.0.0")
        used.provenance.config_sha256 = "ab12" * 16
        if kind == "llm-judge":
            used.provenance.judge_models.append("gpt-4o-mini")
            used.provenance.prompt_sha256 = "cd34" * 16
    history = []
    for day in range(2, 21, 2):
        past = suite_run(
            [case(f"r{i}", "P" if (i * 7 + day) % 5 else "F") for i in range(20)],
            threshold=0.8,
            day=day,
            run_id=f"past-{day}",
        )
        history.append(past)
    comparison = suite_service_pb2.SuiteComparison(
        verdict=suite_service_pb2.COMPARISON_VERDICT_WARN,
        reason="2 cases broke and 1 was fixed; the drop of 7.1 points may be chance (p = 0.500)",
        base=history[-1],
        new=run,
        pair_count=14,
        broken_count=2,
        fixed_count=1,
        error_count=2,
        new_only_count=1,
        mcnemar_p=0.5,
        score_change=-0.04,
        permutation_p=0.31,
        effect_size=-0.2,
        smallest_detectable_drop=0.34,
        provenance_changes=["criteria: judged by gpt-4o before, by gpt-4o-mini now"],
    )
    comparison.pass_rate_change.value, comparison.pass_rate_change.low, comparison.pass_rate_change.high = (
        -0.071,
        -0.31,
        0.17,
    )
    comparison.changes.add(
        case_id="refund-01",
        base_verdict=PASSED,
        new_verdict=FAILED,
        base_score=0.98,
        new_score=0.61,
        reason=REASONS["F"],
    )
    comparison.changes.add(
        case_id="refund-02",
        base_verdict=PASSED,
        new_verdict=FAILED,
        base_score=0.97,
        new_score=0.22,
        reason=REASONS["F"],
    )
    comparison.changes.add(
        case_id="refund-05",
        base_verdict=FAILED,
        new_verdict=PASSED,
        base_score=0.41,
        new_score=0.98,
        reason=REASONS["P"],
    )
    return SuiteReport(
        run,
        cases,
        [("refund-in-yen", "the sandbox has no yen")],
        lambda case_id: "suites/checkout.yaml:12",
        comparison,
        history,
    )
