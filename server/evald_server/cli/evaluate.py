"""`evald evaluate`: evaluate recorded conversations, one with live output or many with a progress bar."""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.live import Live

from ..suites.recorded_turns import unanswered_warning
from ..suites.reports.failures import answer_lines
from .batch_eval import (
    EvaluatedConversation,
    concluded,
    evaluate_every_turn,
    evaluate_last_turns,
    evaluate_session,
)
from .console import err, out, progress_bar, say, show, warn
from .conversations import RecordedConversation, ends_unanswered, last_turn, read_conversations
from .exit_codes import ExitCode, usage_error
from .report_files import check_report_file, write_report_file
from .result_tables import (
    RunTotals,
    case_row,
    case_tables,
    result_tables,
    running_tables,
    total_tables,
    turn_table,
    verdict_text,
)
from .sanitize import clean, print_json
from .server_connection import connect, run_async
from .specs import SpecSet, load_specs
from .validate import find_violations

if TYPE_CHECKING:
    from evald import AsyncClient, Evaluation

    from .evaluated_cases import EvaluatedCases

# The spellings of the time limit in the options of a file. --timeout replaces them.
_TIMEOUT_KEYS = frozenset(("timeout", "timeout_ms", "timeoutMs", "timeout_seconds", "timeoutSeconds"))

_SHOWN_FAILURES = 10
_SHOWN_WARNINGS = 5


def run(args: argparse.Namespace) -> int:
    """Evaluate the conversations of the files."""
    for path, format_name in _reports(args):
        check_report_file(f"--{format_name}", path, format_name)
    specs = load_specs(args.spec_files, args.expressions)
    conversations = read_conversations(args.files)
    first = list(islice(conversations, 2))
    if not specs.specs and not first[0].data.get("scenario"):
        raise usage_error(
            "no evaluators are given, wanted at least one",
            "for example -e regex:pattern='BK-[0-9]+', or --evaluators FILE; evald types lists all evaluators",
        )
    if args.timeout is not None:
        for key in _TIMEOUT_KEYS & specs.options.keys():
            del specs.options[key]
        specs.options["timeout_seconds"] = args.timeout
    return run_async(_evaluate(args, specs, first, chain(first, conversations)))


def _reports(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return path and format of each requested report."""
    return [(path, name) for path, name in ((args.junit, "junit"), (args.html, "html")) if path]


async def _evaluate(
    args: argparse.Namespace,
    specs: SpecSet,
    first: list[RecordedConversation],
    conversations: Iterator[RecordedConversation],
) -> int:
    async with connect(args) as client:
        violations = await find_violations(client, specs) if specs.specs else []
        for violation in violations:
            warn(clean(str(violation)), violation.hint)
        if violations:
            return ExitCode.USAGE
        cases = None
        if _reports(args):
            from .evaluated_cases import EvaluatedCases

            cases = EvaluatedCases(args.files, every_turn=args.turns)
        if len(first) == 1 and not args.json:
            code = await _evaluate_one(client, first[0], specs, cases, every_turn=args.turns)
        else:
            code = await _evaluate_many(client, conversations, specs, args, cases)
        if cases is not None:
            for path, format_name in _reports(args):
                write_report_file(path, format_name, [cases.report()])
        return code


async def _evaluate_one(
    client: "AsyncClient",
    conversation: RecordedConversation,
    specs: SpecSet,
    cases: "EvaluatedCases | None",
    *,
    every_turn: bool,
) -> int:
    watch = _watch_session if every_turn else _watch_last_turn
    evaluated = await watch(client, conversation, specs)
    totals = RunTotals()
    totals.add(evaluated.verdict, evaluated.evaluations)
    last = evaluated.turns[-1]
    if every_turn and not isinstance(last, str):
        show(*result_tables(last.results), *total_tables(totals.evaluators.values()))
    _print_warnings([warning for evaluation in evaluated.evaluations for warning in evaluation.warnings])
    if evaluated.verdict in ("FAILED", "ERROR"):
        from .evaluated_cases import case_of

        for line in answer_lines(case_of(evaluated, every_turn=every_turn)):
            say(line)
    say(verdict_text(evaluated.verdict), "  ", clean(evaluated.reason))
    _warn_of_unanswered(int(ends_unanswered(conversation)))
    if cases is not None:
        cases.add(evaluated)
    return totals.conversations.exit_code


async def _watch_last_turn(
    client: "AsyncClient", conversation: RecordedConversation, specs: SpecSet
) -> EvaluatedConversation:
    """Show the results of one turn as they arrive."""
    from evald import Evaluation, EvaluatorResult, Started

    waiting: dict[str, None] = {}
    results: list[EvaluatorResult] = []
    evaluation: Evaluation | None = None
    with _live_screen() as draw:
        turn = last_turn(conversation)
        # No client deadline: when the server's time limit ends the call, it still sends a summary.
        async for event in client.stream(turn, specs.specs, options=specs.options, timeout=math.inf):
            match event:
                case Started():
                    waiting = dict.fromkeys(spec.name or spec.type for spec in event.plan)
                case EvaluatorResult():
                    results = sorted((*results, event), key=lambda result: result.index)
                    waiting.pop(event.name, None)
                case Evaluation():
                    evaluation = event
            draw(running_tables(results, waiting))
    assert evaluation is not None  # a stream without a summary raises
    return concluded(conversation, [evaluation])


async def _watch_session(
    client: "AsyncClient", conversation: RecordedConversation, specs: SpecSet
) -> EvaluatedConversation:
    turns: list[Evaluation | str] = []
    with _live_screen() as draw:
        async for turn in evaluate_session(client, conversation, specs):
            turns.append(turn)
            draw(turn_table(turns))
    return concluded(conversation, turns)


@contextmanager
def _live_screen() -> "Iterator[Callable[[RenderableType], None]]":
    """Yield a function that redraws a terminal. Without a terminal, print only the last state, at the end."""
    latest: list[RenderableType] = []
    if not out().is_terminal:
        yield lambda state: latest.__setitem__(slice(None), [state])
        show(*latest)
        return
    with Live(console=out(), refresh_per_second=10) as live:
        yield live.update


async def _evaluate_many(
    client: "AsyncClient",
    conversations: Iterator[RecordedConversation],
    specs: SpecSet,
    args: argparse.Namespace,
    cases: "EvaluatedCases | None",
) -> int:
    totals = RunTotals()
    unpassed: list[EvaluatedConversation] = []
    skipped: list[EvaluatedConversation] = []
    warnings: dict[str, None] = {}
    evaluate = evaluate_every_turn if args.turns else evaluate_last_turns
    hidden = (args.json and out().is_terminal) or not err().is_terminal
    total = None if hidden else _count_lines(args.files)
    with progress_bar("evaluating", "{task.fields[counts]}", total, hidden=hidden, counts="") as move_on:
        async for evaluated in evaluate(client, conversations, specs):
            totals.add(evaluated.verdict, evaluated.evaluations)
            totals.unanswered += ends_unanswered(evaluated.conversation)
            if cases is not None:
                cases.add(evaluated)
            if len(warnings) <= _SHOWN_WARNINGS:
                warnings |= dict.fromkeys(w for e in evaluated.evaluations for w in e.warnings)
            rows = skipped if evaluated.verdict == "SKIPPED" else unpassed
            if evaluated.verdict != "PASSED" and len(rows) < _SHOWN_FAILURES:
                rows.append(evaluated)
            if args.json:
                print_json(_to_dict(evaluated, every_turn=args.turns))
            count = totals.conversations
            move_on(advance=1, counts=f"{count.passed} passed{count.rest}")
    if args.json:
        print_json(totals.to_dict())
    else:
        _print_report(totals, [*unpassed, *skipped][:_SHOWN_FAILURES], every_turn=args.turns)
        _print_warnings(list(warnings)[:_SHOWN_WARNINGS])
        if len(warnings) > _SHOWN_WARNINGS:
            say(("more warnings are not shown: ", "yellow"), "--json has all of them")
    _warn_of_unanswered(totals.unanswered)
    return totals.conversations.exit_code


def _count_lines(files: Iterable[str]) -> int | None:
    """Count the conversations of JSON Lines files. None if an input has another format or can be read only once."""
    total = 0
    for name in files:
        if Path(name).suffix not in (".jsonl", ".ndjson") or not Path(name).is_file():
            return None
        with Path(name).open("rb") as stream:
            total += sum(1 for line in stream if line.strip())
    return total


def _to_dict(evaluated: EvaluatedConversation, *, every_turn: bool) -> dict[str, Any]:
    """Return the object of one conversation for `--json`."""
    record: dict[str, Any] = {
        "record": "conversation",
        "id": evaluated.conversation.id,
        "place": evaluated.conversation.place,
        "verdict": evaluated.verdict,
        "success": evaluated.verdict == "PASSED",
        "reason": evaluated.reason,
        "unanswered": ends_unanswered(evaluated.conversation),
    }
    turns = [
        {"error": {"message": turn}} if isinstance(turn, str) else {"evaluation": turn.to_dict()}
        for turn in evaluated.turns
    ]
    if every_turn:
        record["turns"] = [{"turn": number, **turn} for number, turn in enumerate(turns, start=1)]
    else:
        record |= turns[0]
    return record


def _print_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        say(("warning: ", "yellow"), clean(warning))


def _warn_of_unanswered(count: int) -> None:
    """Print the number of conversations at whose end the agent may have broken down."""
    if count:
        warn(f"warning: {unanswered_warning(count)}")


def _print_report(totals: RunTotals, unpassed: list[EvaluatedConversation], *, every_turn: bool) -> None:
    from .evaluated_cases import case_of

    count = totals.conversations
    show(*total_tables(totals.evaluators.values()))
    if unpassed:
        hidden = count.total - count.passed - len(unpassed)
        show(
            *case_tables(
                "Conversation", [case_row(case_of(one, every_turn=every_turn)) for one in unpassed], hidden
            )
        )
    turns = f" ({totals.turns} turns)" if totals.turns > count.total else ""
    say(
        verdict_text(count.verdict),
        f"  {count.passed} of {count.total} conversations passed{count.rest}{turns}",
    )
