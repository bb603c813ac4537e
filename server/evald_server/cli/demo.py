"""`evald demo`: a real server evaluates recorded conversations of an airline's agent.

All output is computed during the demo.
"""

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.text import Text

from ..suites.recorded_turns import turn_bounds
from . import runs
from .console import new_table, out, say, show
from .conversations import RecordedConversation, every_turn, read_conversations
from .demo_agent import serve_agent
from .exit_codes import CommandError, ExitCode
from .parser import parse
from .result_tables import RunTotals, mark, result_tables, title, total_tables, verdict_text
from .sanitize import clean
from .server_client import open_server
from .server_connection import run_async
from .stored_import import Importing, read_files, read_records

if TYPE_CHECKING:
    from evald import Client, Evaluation, Turn
    from evald.spec import SpecLike

DATA: Final = Path(__file__).with_name("demo_data") / "conversations.jsonl"
_SCENARIO: Final = DATA.with_name("appointment.yaml")

# The tools that change the airline's database; the others only read it.
_CHANGES: Final = (
    "book_reservation",
    "cancel_reservation",
    "send_certificate",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
)

_CHECKS: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    (
        {
            "type": "regex",
            "name": "no-payment-ids",
            "config": {"pattern": r"(credit_card|gift_card|certificate)_[0-9]+", "mustMatch": False},
        },
        "regex: the agent does not show the customer an internal payment id",
    ),
    (
        {"type": "tool-call-budget", "name": "few-tool-calls", "config": {"maxCalls": 8}},
        "tool-call-budget: at most 8 tool calls before the agent answers",
    ),
    (
        {"type": "length-within", "name": "short-answer", "config": {"max": 120, "unit": "words"}},
        "length-within: at most 120 words, short enough to be read out on the phone",
    ),
    ({"type": "tool-call-count"}, "metric: tool calls of the turn"),
    ({"type": "response-length"}, "metric: characters of the answer"),
)
_TASK_CHECK: Final = (
    "tool-use, on the last turn: exactly the bookings and changes that solve the task, with their arguments"
)

# Without these packages the server has no console and logs that.
_HAS_WEB: Final = all(find_spec(name) for name in ("jinja2", "starlette", "uvicorn"))

# A server is ready within 1.5 s.
_START_SECONDS: Final = 20
_STOP_SECONDS: Final = 15

_SHOWN_TELEMETRY: Final = re.compile(
    r"evald_(evaluations_total|evaluator_results_total|metric_value_\w+_(sum|count)|evaluation_duration_seconds_(sum|count))\b"
)


class DemoServer(NamedTuple):
    """A running `evald serve`. console: address of its console, "" without the packages for it."""

    process: "subprocess.Popen[bytes]"
    address: str
    http_address: str
    console: str


def run(args: argparse.Namespace) -> int:
    """Run the demo. The exit code does not depend on the verdicts."""
    from evald import Client

    began = time.perf_counter()
    conversations = list(read_conversations([str(DATA)]))
    say(
        ("evald demo", "bold"),
        f"  {len(conversations)} recorded conversations of an airline's agent (gpt-4o, tau-bench)",
    )
    with _server() as server, Client(server.address) as client:
        _step(2, "One conversation, turn by turn, through a session: each turn sends only its new messages.")
        _show_session(client, conversations[0])
        _step(3, "Every turn of all conversations, as one batch.")
        _show_batch(client, conversations)
        _step(
            4,
            "A scenario: a scripted user talks to an agent with tools; every turn is evaluated and stored.",
        )
        _show_scenario(server)
        _step(5, f"Metrics for Prometheus: the main lines of http://{server.http_address}/metrics")
        _show_telemetry(server)
        if args.console:
            _keep_open(server)
        _step(6, "Stop the server: SIGTERM lets calls in flight finish.")
    say(f"The server stopped. The demo took {time.perf_counter() - began:.1f} s.")
    if server.console and not args.console:
        say(f"Its console was at {server.console}; evald demo --console keeps it running.")
    say("Next: evald serve, evald types, evald evaluate --help, evald runs --help")
    return ExitCode.PASSED


def _keep_open(server: DemoServer) -> None:
    """Keep the server and its console running until Ctrl-C."""
    if not server.console:
        raise CommandError(
            ExitCode.USAGE, "the console needs packages that are not installed", "pip install 'evald[web]'"
        )
    say("")
    say(("The run is in the console: ", "bold"), (server.console, "green"), "  (Ctrl-C ends it)")
    with suppress(KeyboardInterrupt):
        server.process.wait()


def _step(number: int, text: str) -> None:
    say("")
    say((f"{number}. ", "bold cyan"), (text, "bold"))


def _tell(text: str, hang: int = 0) -> None:
    """Print a paragraph. hang: additional indentation of all lines but the first."""
    say(textwrap.fill(text, out().width, initial_indent="   ", subsequent_indent=" " * (3 + hang)))


@contextmanager
def _server() -> Iterator[DemoServer]:
    command = ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"]
    _step(1, f"Start a server: evald {' '.join(command)}")
    # The settings of the user's own server must not affect the demo.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")}
    environment |= {"EVALD_LOG_LEVEL": "warning"}
    began = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - this package
        [sys.executable, "-m", "evald_server", *command], env=environment, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        ready = _line(process)
        addresses = re.findall(r"[\w.]+:\d+", ready)
        console = _line(process).partition(": ")[2].strip() if _HAS_WEB else ""
        say(("   ", ""), (clean(ready), "green"), f"  ({time.perf_counter() - began:.2f} s)")
        yield DemoServer(process, addresses[0], addresses[1], console)
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)
    finally:
        process.kill()
        process.communicate()
    if process.returncode:
        raise CommandError(ExitCode.INCONCLUSIVE, f"the server ended with exit code {process.returncode}")


def _line(process: "subprocess.Popen[bytes]") -> str:
    """Return the server's next line of output with addresses. Raises CommandError if there is none."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline().decode() if readable else ""
    if not re.search(r"[\w.]+:\d+", line):
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"the server did not start within {_START_SECONDS} s"
            if not readable
            else "the server did not start",
            "its output is above; run evald serve to see more",
        )
    return line


def _checks_of(conversation: RecordedConversation) -> "list[SpecLike]":
    """Return the checks of a conversation: its own task and the common checks."""
    wanted = [call for call in conversation.data["task"]["expected_tool_calls"] if call["name"] in _CHANGES]
    calls = Counter(call["name"] for call in wanted)
    expectations: list[dict[str, Any]] = [
        {"name": name, "minCalls": calls[name], "maxCalls": calls[name]} for name in _CHANGES
    ]
    expectations += [
        {"name": call["name"], "args": call["arguments"], "argsMatch": "exact"} for call in wanted
    ]
    task = {
        "type": "tool-use",
        "name": "solves-task",
        "when": "final",
        "config": {"expectations": expectations},
    }
    return [task, *(spec for spec, _ in _CHECKS)]


def _show_session(client: "Client", conversation: RecordedConversation) -> None:
    _tell(f"Instruction of the customer: {clean(conversation.data['task']['instruction'])}")
    for name, meaning in (
        ("solves-task", _TASK_CHECK),
        *((spec.get("name", spec["type"]), meaning) for spec, meaning in _CHECKS),
    ):
        _tell(f"{name:<16} {meaning}", hang=17)
    table = new_table(("Turn", "right"), "Customer", "Agent", "Tools", "Checks")
    for column in table.columns[1:4]:
        column.no_wrap = False
    evaluations: list[Evaluation] = []
    began = time.perf_counter()
    with client.session(_checks_of(conversation)) as session:
        for number, turn in enumerate(every_turn(conversation), start=1):
            evaluation = session.turn(turn)
            evaluations.append(evaluation)
            table.add_row(str(number), *_told(turn), _signs(evaluation))
    took = (time.perf_counter() - began) * 1000
    show(table)
    names = ", ".join(title(result) for result in evaluations[0].results if result.kind.name == "ASSERTION")
    _tell(f"Checks, in this order: {clean(names)}; - marks a check that runs on the last turn only.")
    _tell(f"{len(evaluations)} turns in {took:.0f} ms. The results of the last turn, as in a CI job:")
    show(*result_tables(evaluations[-1].results))
    assert session.summary is not None
    say(
        "   The session: ",
        verdict_text(session.summary.verdict.name),
        f" over {session.summary.turn_count} turns.",
    )


def _told(turn: "Turn") -> tuple[str, str, str]:
    """Return the customer's and the agent's message of a turn, and the called tools."""
    messages = turn.context.messages
    said = next((message.text for message in messages if message.role == "user"), "")
    tools = Counter(call.name for call in turn.context.tool_calls)
    return (
        clean(said, 60),
        clean(turn.context.answer or "", 60),
        clean(", ".join(f"{name} x{count}" if count > 1 else name for name, count in tools.items())),
    )


def _signs(evaluation: "Evaluation") -> Text:
    return Text(" ").join(
        mark(result.verdict.name) for result in evaluation.results if result.kind.name == "ASSERTION"
    )


def _show_batch(client: "Client", conversations: list[RecordedConversation]) -> None:
    from evald import BatchItem

    items = [
        BatchItem(turn, id=f"{position}/{number}", evaluators=_checks_of(conversation))
        for position, conversation in enumerate(conversations)
        for number, turn in enumerate(_turns_with_history(conversation))
    ]
    found: dict[int, list[Evaluation]] = {position: [] for position in range(len(conversations))}
    began = time.perf_counter()
    for answer in client.batch(items, []):
        if answer.evaluation is None:
            raise CommandError(
                ExitCode.INCONCLUSIVE,
                f"turn {answer.id}: {answer.error.message if answer.error else 'no answer'}",
            )
        found[int(answer.id.partition("/")[0])].append(answer.evaluation)
    took = time.perf_counter() - began

    totals = RunTotals()
    agreed = 0
    table = new_table("Conversation", ("Turns", "right"), "evald says", "tau-bench says", "Failed checks")
    for position, conversation in enumerate(conversations):
        evaluations = found[position]
        failures = [evaluation for evaluation in evaluations if not evaluation.passed]
        verdict = "FAILED" if any(e.failed for e in failures) else "ERROR" if failures else "PASSED"
        totals.add(verdict, evaluations)
        solved = all(
            result.verdict.name != "FAILED"
            for evaluation in evaluations
            for result in evaluation.results
            if result.name == "solves-task"
        )
        rewarded = conversation.data["outcome"]["reward"] == 1.0
        agreed += solved is rewarded
        because = ", ".join(
            f"{failure.name} (turn {number})"
            for number, evaluation in enumerate(evaluations, start=1)
            for failure in evaluation.failures
        )
        table.add_row(
            conversation.id.removeprefix("taubench-gpt4o-"),
            str(len(evaluations)),
            Text(*verdict_text(verdict)),
            "task solved" if rewarded else "task not solved",
            clean(because, 200),
        )
    show(table)
    _tell(
        f"{len(items)} turns in {took * 1000:.0f} ms: {len(items) / took:,.0f} per second, including the client."
    )
    _tell(
        f"Was the task solved? evald compares tool calls, tau-bench compares databases; "
        f"they agree on {agreed} of {len(conversations)} conversations."
    )
    _tell("The pass rate of every assertion and the values of every metric, over all turns:")
    show(*total_tables(totals.evaluators.values()))


def _turns_with_history(conversation: RecordedConversation) -> "Iterator[Turn]":
    """Yield every turn with its history, as an application sends it without a session."""
    from evald import Turn

    bounds = turn_bounds(conversation.messages)
    for number, (_, end) in enumerate(bounds, start=1):
        messages: list[Mapping[str, Any]] = list(conversation.messages[:end])
        yield Turn(messages, number=number, is_final=number == len(bounds), conversation_id=conversation.id)


def _show_scenario(server: DemoServer) -> None:
    command = ["runs", "start", "Appointment", "--persona", "Maria", "--connector", "salon"]
    _tell(f"evald import {_SCENARIO.name}; evald {' '.join(command)}")
    say("")
    with serve_agent() as (agent, _):
        run_async(_run_scenario(parse([*command, "--server", server.address]), agent))


async def _run_scenario(args: argparse.Namespace, agent: str) -> int:
    records = read_files([str(_SCENARIO)]).records
    async with open_server(args) as store:
        importing = Importing(store)
        for record, message in zip(records, read_records(records), strict=True):
            if record.word == "connector":
                message.base_url = agent
            stored = await importing.store(record, message)
            if stored.problem:
                raise CommandError(ExitCode.INCONCLUSIVE, f"{record.word}: {stored.problem}")
    return await runs.perform(args)


def _show_telemetry(server: DemoServer) -> None:
    with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    for line in lines:
        if _SHOWN_TELEMETRY.match(line) and not line.endswith(" 0.0"):
            say("   ", (clean(line), "dim"))
