"""`evald evaluate`: judge recorded conversations, one live on the screen or many with a progress bar."""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .console import err, out, say, show, warn, while_shown
from .conversations import Conversation, read_all
from .exits import Exit, usage_error
from .judging import Judged, judge_all_turns, judge_last_turns, judge_turns
from .plain import clean, print_json
from .specs import SpecSet, load_specs
from .tables import result_tables, running, total_tables, turn_table, unpassed_table, verdict_text
from .target import connected, run_async
from .totals import Totals
from .turns import last_turn_of
from .violations import find_violations

if TYPE_CHECKING:
    from evald import AsyncClient, Evaluation

# Ways to write the time limit in a file's options, before which the command line goes.
_TIMEOUT_KEYS = frozenset(("timeout", "timeout_ms", "timeoutMs", "timeout_seconds", "timeoutSeconds"))

_SHOWN_FAILURES = 10
_SHOWN_WARNINGS = 5


def run(args: argparse.Namespace) -> int:
    """Evaluate what the files hold."""
    specs = load_specs(args.spec_files, args.expressions)
    conversations = read_all(args.files)
    first = list(islice(conversations, 2))
    if not specs.specs and not first[0].data.get("scenario"):
        raise usage_error(
            "no evaluators: nothing would be judged",
            "name some: -e regex:pattern='BK-[0-9]+', or --evaluators FILE; evald types lists them all",
        )
    if args.timeout is not None:
        for key in _TIMEOUT_KEYS & specs.options.keys():
            del specs.options[key]
        specs.options["timeout_seconds"] = args.timeout
    return run_async(_evaluate(args, specs, first, chain(first, conversations)))


async def _evaluate(
    args: argparse.Namespace, specs: SpecSet, first: list[Conversation], conversations: Iterator[Conversation]
) -> int:
    async with connected(args) as client:
        violations = await find_violations(client, specs) if specs.specs else []
        for violation in violations:
            unknown = violation.reason == "UNKNOWN_TYPE"
            warn(clean(str(violation)), "evald types lists all evaluators" if unknown else "")
        if violations:
            return Exit.USAGE
        if len(first) == 1 and not args.json:
            return await _one(client, first[0], specs, every_turn=args.turns)
        return await _many(client, conversations, specs, args)


async def _one(client: "AsyncClient", conversation: Conversation, specs: SpecSet, *, every_turn: bool) -> int:
    judged = await (_watch_turns if every_turn else _watch)(client, conversation, specs)
    totals = Totals()
    totals.add(judged.verdict, judged.judged_turns())
    last = judged.evaluations[-1]
    if every_turn and not isinstance(last, str):
        show(*result_tables(last.results), *total_tables(totals.evaluators.values()))
    _warn_of([warning for evaluation in judged.judged_turns() for warning in evaluation.warnings])
    say(verdict_text(judged.verdict), "  ", clean(judged.reason))
    return totals.exit_code


async def _watch(client: "AsyncClient", conversation: Conversation, specs: SpecSet) -> Judged:
    """Show the results of one turn as they come in."""
    from evald import Evaluation, EvaluatorResult, Started

    waiting: dict[str, None] = {}
    results: list[EvaluatorResult] = []
    evaluation: Evaluation | None = None
    with _screen() as draw:
        turn = last_turn_of(conversation)
        # The server's own limit ends the call; one of the client would come without a summary.
        async for event in client.stream(turn, specs.specs, options=specs.options, timeout=math.inf):
            match event:
                case Started():
                    waiting = dict.fromkeys(spec.name or spec.type for spec in event.plan)
                case EvaluatorResult():
                    results = sorted((*results, event), key=lambda result: result.index)
                    waiting.pop(event.name, None)
                case Evaluation():
                    evaluation = event
            draw(running(results, waiting))
    assert evaluation is not None  # a stream that ends without one raises
    return Judged(conversation, [evaluation])


async def _watch_turns(client: "AsyncClient", conversation: Conversation, specs: SpecSet) -> Judged:
    evaluations: list[Evaluation | str] = []
    with _screen() as draw:
        async for evaluation in judge_turns(client, conversation, specs):
            evaluations.append(evaluation)
            draw(turn_table(evaluations))
    return Judged(conversation, evaluations)


@contextmanager
def _screen() -> "Iterator[Callable[[RenderableType], None]]":
    """Draws again and again on a terminal; elsewhere the last state alone is printed, at the end."""
    latest: list[RenderableType] = []
    if not out().is_terminal:
        yield lambda state: latest.__setitem__(slice(None), [state])
        show(*latest)
        return
    with Live(console=out(), refresh_per_second=10) as live:
        yield live.update


async def _many(
    client: "AsyncClient", conversations: Iterator[Conversation], specs: SpecSet, args: argparse.Namespace
) -> int:
    totals = Totals()
    unpassed: list[Judged] = []
    warnings: dict[str, None] = {}
    find = judge_all_turns if args.turns else judge_last_turns
    progress = _progress(hidden=args.json and out().is_terminal)
    with while_shown(progress):
        task = progress.add_task("", total=_count(args.files) if not progress.disable else None, failed=0)
        async for judged in find(client, conversations, specs):
            totals.add(judged.verdict, judged.judged_turns())
            if len(warnings) < _SHOWN_WARNINGS:
                warnings |= dict.fromkeys(w for e in judged.judged_turns() for w in e.warnings)
            if judged.verdict != "PASSED" and len(unpassed) < _SHOWN_FAILURES:
                unpassed.append(judged)
            if args.json:
                print_json(_record(judged, every_turn=args.turns))
            progress.update(task, advance=1, failed=totals.conversations.failed)
    if args.json:
        print_json(totals.to_dict())
    else:
        _report(totals, unpassed)
        _warn_of(list(warnings)[:_SHOWN_WARNINGS])
    return totals.exit_code


def _progress(*, hidden: bool) -> Progress:
    return Progress(
        TextColumn("evaluating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=hidden or not err().is_terminal,
    )


def _count(files: Iterable[str]) -> int | None:
    """How many lines there are, which for JSON Lines is how many conversations; None when nobody knows."""
    total = 0
    for name in files:
        if name == "-" or Path(name).suffix not in (".jsonl", ".ndjson"):
            return None
        with Path(name).open("rb") as stream:
            total += sum(1 for line in stream if line.strip())
    return total


def _record(judged: Judged, *, every_turn: bool) -> dict[str, Any]:
    """The object of one conversation under `--json`."""
    conversation = judged.conversation
    record: dict[str, Any] = {
        "record": "conversation",
        "id": conversation.id,
        "place": conversation.place,
        "verdict": judged.verdict,
        "success": judged.verdict == "PASSED",
        "reason": judged.reason,
    }
    views = [_view(evaluation) for evaluation in judged.evaluations]
    if every_turn:
        record["turns"] = [{"turn": number, **view} for number, view in enumerate(views, start=1)]
    else:
        record |= views[0]
    return record


def _view(evaluation: "Evaluation | str") -> dict[str, Any]:
    if isinstance(evaluation, str):
        return {"error": {"message": evaluation}}
    return {"evaluation": evaluation.to_dict()}


def _warn_of(warnings: list[str]) -> None:
    for warning in warnings:
        say(("warning: ", "yellow"), clean(warning))


def _report(totals: Totals, unpassed: list[Judged]) -> None:
    count = totals.conversations
    show(*total_tables(totals.evaluators.values()))
    if unpassed:
        hidden = count.total - count.passed - len(unpassed)
        show(*unpassed_table([(j.conversation.id, j.verdict, j.reason) for j in unpassed], hidden))
    numbers = ((count.failed, "failed"), (count.errors, "inconclusive"), (count.skipped, "skipped"))
    rest = "".join(f", {number} {word}" for number, word in numbers if number)
    turns = f" ({totals.turns} turns)" if totals.turns > count.total else ""
    say(verdict_text(count.verdict), f"  {count.passed} of {count.total} conversations passed{rest}{turns}")
