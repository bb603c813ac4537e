"""Terminal view of a run: its conversation turn by turn with the results beside it, then tables of the last turn."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evald import EvaluatorResult
from evald.chat import Message
from evald.errors import InvalidInput
from evald.records import read_usage, read_verdict
from evald.structs import duration_ms
from evald.v1 import message_pb2, result_pb2, run_service_pb2
from evald_server.pages.formats import number

from .console import new_table, out, say, show
from .result_tables import mark, result_tables, verdict_text
from .sanitize import clean
from .totals import title

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
