"""`evald runs`: run scenarios; watch, list, show, export and import runs."""

import argparse
import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evald import EvaluatorResult
from evald.chat import Message
from evald.convert.runs import event_to_json, run_to_json
from evald.errors import EvaldError, InvalidInput, Unavailable
from evald.records import read_usage, read_verdict
from evald.structs import duration_ms
from evald.v1 import message_pb2, result_pb2, run_service_pb2
from evald_server.methods import StandardMethods
from evald_server.pages.formats import number

from .console import new_table, out, say, show, warn
from .exit_codes import ExitCode, usage_error
from .result_tables import VerdictCount, mark, result_tables, title, verdict_text
from .sanitize import clean, print_json, to_json
from .server_client import KINDS, ServerClient, open_server
from .server_connection import run_async
from .stored_import import import_files, is_id
from .stored_parser import STATUSES, VERDICTS

_pb = run_service_pb2

# Maximum number of runs watched at the same time: one connection carries about 100 streams.
_WATCHED: Final = 32

_AGO: Final = re.compile(r"(\d{1,6})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


def run(args: argparse.Namespace) -> int:
    """Perform the action."""
    if args.action == "import":
        return import_files(args, "run")
    return run_async(perform(args))


async def perform(args: argparse.Namespace) -> int:
    """Perform an action that needs no file."""
    async with open_server(args) as store:
        return await _ACTIONS[args.action](store, args)


async def _start(store: ServerClient, args: argparse.Namespace) -> int:
    if bool(args.scenario) == bool(args.experiment):
        raise usage_error(
            "wanted either a scenario or --experiment", "evald runs start SCENARIO --connector NAME"
        )
    if args.experiment:
        if args.connector or args.persona:
            raise usage_error(
                "--connector and --persona cannot be used with --experiment: an experiment has its own"
            )
        experiment = await store.find(KINDS["experiment"], args.experiment)
        answer = await store.call(_pb.StartRunsRequest(experiment_id=experiment.id))
        return await _go_on(store, list(answer.runs), args)
    if not args.connector:
        raise usage_error(
            "--connector is missing: it defines how evald calls the agent",
            "evald connectors list lists the stored connectors",
        )
    request = _pb.StartRunRequest(
        scenario_id=(await store.find(KINDS["scenario"], args.scenario)).id,
        connector_id=(await store.find(KINDS["connector"], args.connector)).id,
    )
    if args.persona:
        request.persona_id = (await store.find(KINDS["persona"], args.persona)).id
    answer = await store.call(request)
    return await _go_on(store, [answer.run], args)


async def _again(store: ServerClient, args: argparse.Namespace) -> int:
    """Retry or resume a run."""
    verb = args.action.capitalize()
    request = getattr(_pb, f"{verb}RunRequest")(run_id=args.runs[0])
    answer = await store.call(request)
    return await _go_on(store, [answer.run], args)


async def _go_on(store: ServerClient, runs: Sequence[_pb.Run], args: argparse.Namespace) -> int:
    """Watch queued runs, or only print them."""
    if args.watch:
        return await _watch_all(store, [run.id for run in runs], as_json=args.json)
    if args.json:
        data = [run_to_json(run) for run in runs]
        print_json(data[0] if len(data) == 1 else data, indent=2)
    else:
        for run in runs:
            say(clean(run.id))
    return ExitCode.PASSED


async def _watch(store: ServerClient, args: argparse.Namespace) -> int:
    return await _watch_all(store, args.runs, as_json=args.json)


async def _watch_all(store: ServerClient, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Show runs until all have ended. Returns the worst exit code."""
    count = VerdictCount()
    if len(run_ids) == 1 and not as_json:
        with RunView.open() as view:
            ended = await store.watch(run_ids[0], view.event)
            view.end(ended)
        count.add(verdict_name(ended))
        return count.exit_code
    places = asyncio.Semaphore(_WATCHED)

    async def watch(run_id: str) -> None:
        try:
            async with places:
                ended = await store.watch(
                    run_id, lambda event: _print_event(run_id, event) if as_json else None
                )
        except EvaldError as problem:
            # The other runs continue, unless the server is gone.
            if len(run_ids) == 1 or isinstance(problem, Unavailable):
                raise
            warn(f"{clean(run_id)}: {clean(problem.message)}")
            count.add("ERROR")
            return
        count.add(verdict_name(ended))
        if not as_json:
            verdict = verdict_text(verdict_name(ended))
            say(verdict, f"  {clean(run_id)}  {parties(ended)}  ", (clean(reason(ended), 200), "dim"))

    await asyncio.gather(*map(watch, run_ids))
    if not as_json:
        say(verdict_text(count.verdict), f"  {count.passed} of {count.total} runs passed{count.rest}")
    return count.exit_code


def _print_event(run_id: str, event: _pb.WatchRunResponse) -> None:
    print_json({"runId": run_id, **event_to_json(event)})


async def _list(store: ServerClient, args: argparse.Namespace) -> int:
    wanted = await _filters(store, args) | {
        "include_messages": args.messages,
        "oldest_first": args.oldest_first,
    }
    found = [run async for run in store.runs(wanted, args.limit)]
    if args.json:
        print_json([run_to_json(run) for run in found], indent=2)
    elif found:
        show(runs_table(found))
    else:
        say("No runs match.")
    return ExitCode.PASSED


async def _filters(store: ServerClient, args: argparse.Namespace) -> dict[str, Any]:
    """Return the filters of the command line as fields of ListRunsRequest."""
    wanted: dict[str, Any] = {
        "execution_id": args.execution,
        "status": STATUSES.index(args.status) + 1 if args.status else 0,
        "verdict": VERDICTS.index(args.verdict) + 1 if args.verdict else 0,
        "failed_evaluator": args.failed_evaluator,
    }
    for word, kind in KINDS.items():
        name = getattr(args, word)
        wanted[f"{word}_id"] = name if not name or is_id(name) else await _id_of(store, kind, name)
    for name in ("since", "until"):
        text = getattr(args, name)
        if text:
            wanted[name] = _time(text, f"--{name}")
    return wanted


async def _id_of(store: ServerClient, kind: StandardMethods, name: str) -> str:
    """Return the id of the resource with this name, else the name itself: runs outlive their resources."""
    found = await store.lookup(kind, name)
    if found is None:
        warn(f'no {kind.word} has the name "{clean(name)}"; using it as an id')
        return name
    return str(found.id)


def _time(text: str, option: str) -> datetime:
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage_error(
            f"{option}: got {text!r}, wanted a time",
            "for example 2026-01-31, 2026-01-31T12:00:00Z, or 30m, 24h, 7d",
        ) from None


async def _show(store: ServerClient, args: argparse.Namespace) -> int:
    found = await store.run(args.runs[0])
    if args.json:
        print_json(run_to_json(found, whole=True), indent=2)
    else:
        show_run(found)
    return ExitCode.PASSED


async def _cancel(store: ServerClient, args: argparse.Namespace) -> int:
    """Cancel or delete runs."""
    verb = args.action.capitalize()
    done = "cancelled" if verb == "Cancel" else "deleted"
    for run_id in args.runs:
        await store.call(getattr(_pb, f"{verb}RunRequest")(run_id=run_id))
        if not args.json:
            say((f"{done:10}", "green"), clean(run_id))
    if args.json:
        print_json({done: args.runs})
    return ExitCode.PASSED


async def _export(store: ServerClient, args: argparse.Namespace) -> int:
    run_ids = args.runs
    if not run_ids:
        wanted = await _filters(store, args) | {"oldest_first": True}
        run_ids = [run.id async for run in store.runs(wanted)]
    for run_id in run_ids:
        found = await store.run(run_id)
        sys.stdout.write(to_json({"kind": "run", **run_to_json(found, whole=True)}) + "\n")
    return ExitCode.PASSED


_ACTIONS: Final[Mapping[str, Callable[[ServerClient, argparse.Namespace], Awaitable[int]]]] = {
    "start": _start,
    "watch": _watch,
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "delete": _cancel,
    "retry": _again,
    "resume": _again,
    "export": _export,
}


_ROLE_STYLES: Final = {"user": "cyan", "assistant": "bold", "tool": "dim", "system": "dim"}
_MOST_TEXT: Final = 1200
_MOST_ARGUMENTS: Final = 200


def status_name(run: run_service_pb2.Run) -> str:
    """Return a run's status in lower case."""
    return run_service_pb2.RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower()


def verdict_name(run: run_service_pb2.Run) -> str:
    """Return a run's verdict. A run that is not completed or has no verdict is an ERROR: inconclusive."""
    if run.status != run_service_pb2.RUN_STATUS_COMPLETED or not run.verdict:
        return "ERROR"
    return read_verdict(run.verdict).name


def reason(run: run_service_pb2.Run) -> str:
    """Return the reason for a run's verdict or status."""
    if run.HasField("error"):
        return f"{run.error.code}: {run.error.message}"
    return run.result.reason or ("" if run.verdict else status_name(run))


class RunView:
    """A printer of a run's events. It redraws the current turn on terminals only."""

    def __init__(self, live: Live | None = None) -> None:
        self._live = live
        self._messages: list[message_pb2.ChatMessage] = []
        self._results: list[result_pb2.EvaluationResult] = []
        self._attempt = 1

    @classmethod
    @contextmanager
    def open(cls) -> Iterator["RunView"]:
        """Yield a view of one run."""
        if not out().is_terminal:
            yield cls()
            return
        with Live(console=out(), refresh_per_second=8, transient=True) as live:
            yield cls(live)

    def event(self, event: run_service_pb2.WatchRunResponse) -> None:
        """Show an event."""
        kind = event.WhichOneof("event")
        if kind == "message":
            self._messages.append(event.message.message)
        elif kind == "result":
            self._results.append(event.result.result)
        elif kind == "turn":
            show(turn_block(self._messages, self._results, event.turn))
            self._messages, self._results = [], []
        elif kind == "status" and event.status.attempt > self._attempt:
            self._attempt = event.status.attempt
            self._messages, self._results = [], []
            say((f"attempt {self._attempt}: the run starts again", "yellow"))
        if self._live is not None:
            self._live.update(turn_block(self._messages, self._results, None))

    def end(self, run: run_service_pb2.Run) -> None:
        """Show the rest of the conversation, the tables and the verdict."""
        if self._live is not None:
            self._live.update(Text())
            self._live.stop()
        if self._messages:
            show(turn_block(self._messages, (), None))
        show_end(run)


def show_run(run: run_service_pb2.Run) -> None:
    """Print a whole run."""
    say((clean(run.id), "bold"), f"  {parties(run)}  {status_name(run)}")
    shown = 0
    for turn in run.turns:
        end = turn.first_message + turn.message_count
        show(turn_block(run.messages[shown:end], turn.evaluation.results, turn))
        shown = end
    if shown < len(run.messages):
        show(turn_block(run.messages[shown:], (), None))
    show_end(run)


def show_end(run: run_service_pb2.Run) -> None:
    """Print the tables of the last evaluated turn, the run's time, tokens and cost, and its verdict."""
    show(*result_tables([EvaluatorResult.from_pb(result) for result in run.output.evaluator_results]))
    facts = [f"turns: {run.turn_count}", f"messages: {run.output.message_count}"]
    if run.output.HasField("total_latency"):
        facts.append(f"agent: {duration_ms(run.output.total_latency):,.0f} ms")
    tokens = read_usage(run.token_usage).total if run.HasField("token_usage") else None
    facts += [f"tokens: {tokens:,}"] if tokens is not None else []
    facts += [f"cost: {run.cost.amount:.4f} {clean(run.cost.currency_code)}"] if run.HasField("cost") else []
    say((", ".join(facts), "dim"))
    say(verdict_text(verdict_name(run)), "  ", clean(reason(run)))
    hint = {"error": "retry", "interrupted": "resume"}.get(status_name(run))
    if hint:
        say(("  next: ", "bold"), f"evald runs {hint} {clean(run.id)}")


def runs_table(runs: Sequence[run_service_pb2.Run]) -> Table:
    """Return a table with a row per run."""
    table = new_table(
        "Id", "Status", "Verdict", "Scenario, persona, agent", ("Turns", "right"), "Queued", "Why"
    )
    for run in runs:
        verdict = verdict_name(run) if run.verdict else ""
        table.add_row(
            clean(run.id, 40),
            status_name(run),
            Text(*verdict_text(verdict)) if verdict else "",
            parties(run),
            str(run.turn_count),
            run.create_time.ToDatetime().isoformat(" ", "minutes"),
            clean(reason(run), 200) if verdict != "PASSED" else "",
        )
    return table


def parties(run: run_service_pb2.Run) -> str:
    """Return the names of scenario, persona and connector. An id replaces an unknown name."""
    names = (
        run.scenario.name or run.scenario_id,
        run.persona.name or run.persona_id,
        run.connector.name or run.connector_id,
    )
    return clean(" · ".join(name for name in names if name), 120)


def turn_block(
    messages: Sequence[message_pb2.ChatMessage],
    results: Sequence[result_pb2.EvaluationResult],
    turn: run_service_pb2.RunTurn | None,
) -> RenderableType:
    """Return a turn: its messages, and the results beside them. turn: None until the turn has ended."""
    conversation = Table.grid(padding=(0, 2, 0, 0), expand=True)
    conversation.add_column(width=9)
    conversation.add_column(ratio=1, overflow="fold")
    for pb in messages:
        for role, text in _lines(Message(pb)):
            style = _ROLE_STYLES.get(role, "")
            conversation.add_row(Text(clean(role, 9), style), Text(text, style if role == "tool" else ""))
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(ratio=3)
    grid.add_column(ratio=2, overflow="fold")
    warnings = turn.evaluation.warnings if turn is not None else ()
    notes = [Text(f"warning: {clean(warning, 300)}", "yellow") for warning in warnings]
    grid.add_row(conversation, Group(*_turn_head(turn), *map(_result_line, results), *notes))
    return grid


def _turn_head(turn: run_service_pb2.RunTurn | None) -> Iterator[Text]:
    if turn is not None:
        latency = f", {duration_ms(turn.latency):,.0f} ms" if turn.HasField("latency") else ""
        yield Text(f"turn {turn.turn}{', final' if turn.is_final else ''}{latency}", "dim")


def _lines(message: Message) -> Iterator[tuple[str, str]]:
    """Yield role and text of a message, then of each tool call."""
    try:
        text, calls = message.text, message.tool_calls
    except InvalidInput as problem:
        yield message.role, clean(f"({problem})", _MOST_TEXT)
        return
    if text or not calls:
        yield message.role, clean(text or message.refusal or "", _MOST_TEXT)
    for call in calls:
        yield message.role, clean(f"calls {call.name}({call.arguments})", _MOST_ARGUMENTS)


def _result_line(pb: result_pb2.EvaluationResult) -> Text:
    result = EvaluatorResult.from_pb(pb)
    name = clean(title(result), 40)
    if result.kind.name == "METRIC" and result.verdict.name == "PASSED":
        value = "n/a" if result.measurement is None else number(result.measurement)
        return Text(f"  {name} {value}", "dim")
    line = Text.assemble(mark(result.verdict.name), f" {name}")
    if not result.passed:
        line.append(f": {clean(result.error.message if result.error else result.reason, 200)}")
    for flag, is_set in (("pending", result.pending), ("shadow", result.shadow)):
        if is_set:
            line.append(f" ({flag})", "dim")
    return line
