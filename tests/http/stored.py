"""Stored runs and suite runs of every kind, with ordinary or hostile texts, for tests of pages."""

import time
from collections.abc import Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from evald.v1 import context_pb2, result_pb2, run_service_pb2, suite_service_pb2
from evald_server.runs.turn_events import split_run
from evald_server.store.database import FILE_NAME, Database
from evald_server.store.resources import ResourceKind, ResourceStore, StoredResource
from evald_server.store.runs import RunStore
from evald_server.store.suites import StoredCase, SuiteStore
from evald_server.suites.reports.report import SuiteReport

from ..suites.reports import samples
from ..suites.reports.hostile import HOSTILE

Run = run_service_pb2.Run

LONG = "I have looked into your request. " * 900
LONG_NAME = (
    "The booking is moved twice, and the second time to a day that is full: " + "then it is asked again. " * 5
)
FAILED, PASSED, BROKE, LONG_RUN, TALK = ("run-failed", "run-passed", "run-broke", "run-long", "run-talk")
STATUSES = {"run-cancelled": 6, "run-interrupted": 5}


def run_id(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def a_run(name: str, letters: str, text: str = "Moved to Friday at 10:00.", talks: int = 1) -> Run:
    """Return a run with a turn for each letter; the last one decides."""
    run = Run(
        id=run_id(name), status=run_service_pb2.RUN_STATUS_COMPLETED, attempt=1, turn_count=len(letters)
    )
    run.scenario_id, run.persona_id, run.connector_id = "scenario", "persona", "connector"
    run.scenario.name, run.persona.name, run.connector.name = "Booking flow", "Maria", "staging agent"
    run.connector.type, run.verdict = "http", samples.VERDICTS[letters[-1]]
    now = time.time_ns() // 1_000_000
    for field, offset in (
        ("create_time", 3000),
        ("start_time", 2800),
        ("complete_time", 0),
        ("update_time", 0),
    ):
        getattr(run, field).FromMilliseconds(now - offset)
    run.token_usage.total_tokens = 2310
    run.cost.amount, run.cost.currency_code = 0.0042, "USD"
    for number, letter in enumerate(letters, start=1):
        said = samples.conversation(text)[1:] * talks
        turn = run.turns.add(turn=number, first_message=len(run.messages), message_count=len(said))
        turn.is_final = number == len(letters)
        turn.latency.FromMilliseconds(812)
        turn.token_usage.total_tokens = 410
        turn.evaluation.CopyFrom(samples.evaluation(letter, "Regex: no match"))
        judge = turn.evaluation.results[0]
        judge.name = judge.type
        judge.raw_request.update(
            {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Judge it."}]}
        )
        judge.provenance.judge_models.append("gpt-4o-mini")
        if letter == "F" and not turn.is_final:
            turn.evaluation.results[1].pending = True
        run.messages.extend(said)
    run.output.evaluator_results.extend(run.turns[-1].evaluation.results)
    run.result.reason = "Regex, turn 3: Response does not match pattern: BK-[0-9]{5}"
    run.result.score = 0.5
    if letters[-1] == "E":
        run.status, run.verdict = run_service_pb2.RUN_STATUS_ERROR, result_pb2.VERDICT_ERROR
        run.ClearField("result")
        run.error.code, run.error.message = "EVALUATOR_ERROR", "Regex: TIMEOUT after 2,000 ms"
    return run


def usual_runs() -> list[Run]:
    stopped = []
    for name, status in STATUSES.items():
        run = a_run(name, "P")
        run.status, run.verdict = status, 0  # type: ignore[assignment]
        stopped.append(run)
    return [
        *stopped,
        a_run(TALK, "P" * 30, talks=1),
        a_run(LONG_RUN, "PP", LONG),
        a_run(BROKE, "PE"),
        a_run(PASSED, "PPP"),
        a_run(FAILED, "PFF"),
    ]


def hostile_runs(texts: Sequence[str] = HOSTILE) -> list[Run]:
    """Return a run for each hostile text, with the text in every field."""
    runs = []
    for number, text in enumerate(texts):
        run = a_run(f"hostile-{number}", "PEF"[number % 3] * 2, text)
        for part in (run.scenario, run.persona, run.connector):
            part.name = text
        run.result.reason = run.error.message = run.error.code = text
        if run.status != run_service_pb2.RUN_STATUS_ERROR:
            run.ClearField("error")
        for message in run.messages:
            message.role, message.name = (text, text) if number % 2 else (message.role, text)
            for call in message.tool_calls:
                call.function.name = call.function.arguments = text
        for turn in run.turns:
            turn.model = text
            turn.evaluation.warnings.append(text)
            for result in turn.evaluation.results:
                result.name = result.label = result.reason = result.version = result.instance_id = text
                result.metadata.update({text: text})
                result.raw_request.update({text: text})
                result.checks.add(text=text, evidence=text)
                result.provenance.judge_models.append(text)
        run.ClearField("output")
        run.output.evaluator_results.extend(run.turns[-1].evaluation.results)
        runs.append(run)
    return runs


def suites(
    reports: Sequence[SuiteReport],
) -> list[tuple[suite_service_pb2.SuiteRun, Sequence[suite_service_pb2.CaseResult]]]:
    """Return suite runs of the same suite and target."""
    made = []
    for number, report in enumerate(reports):
        run = suite_service_pb2.SuiteRun()
        run.CopyFrom(report.run)
        run.id = run_id(f"suite-{number}")
        run.status = suite_service_pb2.SUITE_RUN_STATUS_COMPLETED
        run.create_time.FromSeconds(int(time.time()) - 3600 + number)
        made.append((run, list(report.cases)))
    return made


async def fill(folder: Path, runs: Sequence[Run], reports: Sequence[SuiteReport] | None = None) -> None:
    """Store runs and suite runs, by default two, in the data directory of a server that is not started yet."""
    if reports is None:
        reports = [samples.rich_report(), samples.rich_report(shift=3)]
    database = Database(folder / FILE_NAME)
    await database.start()
    try:
        for run in runs:
            await RunStore(database).import_run(*split_run(run))
        scenario = context_pb2.Scenario(id="long-name", name=LONG_NAME, instructions="Ask.")
        now = time.time_ns() // 1000
        await ResourceStore(database).create(
            ResourceKind.SCENARIO,
            StoredResource(scenario.id, scenario.name, scenario.SerializeToString(), now, now),
        )
        store = SuiteStore(database)
        for run, cases in suites(reports):
            key = await store.create(run, b"{}")
            stored = []
            for case in cases:
                brief = suite_service_pb2.CaseResult()
                brief.CopyFrom(case)
                brief.ClearField("trials")
                whole, short = case.SerializeToString(), brief.SerializeToString()
                stored.append(StoredCase(case.case_id, case.verdict, short, whole))
            await store.add(key, stored)
            await store.finish(key, run)
    finally:
        await database.close()


def pages() -> dict[str, str]:
    """Return the path of each page by name."""
    base, new = run_id("suite-0"), run_id("suite-1")
    return {
        "overview": "/console/overview?period=7d",
        "runs": "/console/runs",
        "runs-none": "/console/runs?status=queued&persona=nobody",
        "run": f"/console/runs/{run_id(FAILED)}",
        "run-broke": f"/console/runs/{run_id(BROKE)}",
        "run-long": f"/console/runs/{run_id(LONG_RUN)}?turn=1",
        "run-talk": f"/console/runs/{run_id(TALK)}?turn=20",
        "suites": "/console/suites",
        "suite": f"/console/suites/{new}",
        "case": f"/console/suites/{new}/case?id=long-answers",
        "compare": f"/console/suites/compare?base={base}&new={new}",
        "nowhere": "/console/nowhere",
    }
