"""The options of the commands for scenarios, personas, connectors, experiments and runs. Imports nothing slow."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

from .options import add_option, add_server_option, whole_number

_NAMED: Final = {
    "scenarios": ("scenario", "situations that test an agent"),
    "personas": ("persona", "simulated users"),
    "connectors": ("connector", "how evald calls an agent"),
    "experiments": ("experiment", "scenarios to run with personas against an agent"),
}

_FILES: Final = """\
FILE is YAML, JSON or JSON Lines: one object, a list of them, or an object with the
lists under `scenarios`, `personas`, `connectors`, `experiments`; - reads standard
input. Names of scenarios, personas and connectors are accepted in place of ids.
"""

_IMPORT: Final = """\
Imports scenarios, personas, connectors, experiments and runs, in this
order. PATH is a project file such as evald.yaml, EvalStudio's evalstudio.config.json,
a directory with one of them or with files such as scenarios.yaml, or an export of
evald or EvalStudio. A record replaces the stored one with its id, or else with its
name. Nothing is stored if a file cannot be read.
"""

_RUNS: Final = """\
Runs scenarios: a simulated user talks to an agent; every turn is evaluated
and stored.
"""

_RUNS_EXAMPLES: Final = """\
examples:
  evald runs start "Booking flow" --connector staging --persona Maria
  evald runs start --experiment nightly --no-watch
  evald runs list --verdict failed --since 24h
  evald runs export --scenario "Booking flow" > runs.jsonl

exit codes of start, watch, retry and resume; of several runs the worst one:
  0 passed   1 failed   2 wrong usage   3 inconclusive   4 server unreachable
"""


def add_stored_commands(command: Callable[..., Any]) -> None:
    """Add the commands. command: (name, summary, text, examples) -> parser of the command."""
    for plural, (one, meaning) in _NAMED.items():
        parser = command(plural, f"create, list, change {plural}", f"{plural.capitalize()}: {meaning}.")
        _named_actions(_actions(parser), one)
    _run_actions(_actions(command("runs", "run scenarios against an agent", _RUNS, _RUNS_EXAMPLES)))
    project = command("import", "import a project: scenarios, personas, connectors, runs", _IMPORT)
    _import_options(project)
    _common_options(project)


def _actions(command: Any) -> Callable[..., Any]:
    """Return a function that adds an action to a command: (name, summary, text) -> parser of the action."""
    actions = command.add_subparsers(metavar="ACTION", title="actions", dest="action", required=True)

    def add(name: str, summary: str, text: str = "") -> Any:
        parser = actions.add_parser(
            name,
            help=summary,
            description=text or f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _common_options(parser)
        return parser

    return add


def _common_options(parser: Any) -> None:
    add_option(parser, "--json", "as JSON")
    add_server_option(parser, "the server [EVALD_SERVER, 127.0.0.1:50051]")


def _import_options(parser: Any) -> None:
    add_option(parser, "PATH", "file or directory; - reads standard input", dest="files", nargs="+")
    add_option(parser, "--project NAME", "project to import from an EvalStudio workspace that has several")


def _names(parser: Any, one: str, count: str | None = None, text: str = "") -> None:
    add_option(parser, "NAME_OR_ID", text or f"the {one}", dest="names", nargs=count or 1)


def _named_actions(add: Callable[..., Any], one: str) -> None:
    article = "an" if one.startswith("e") else "a"
    create = add("create", f"store one or more {one}s", _FILES)
    add_option(create, "FILE", "YAML, JSON or JSON Lines", dest="files", nargs="+")
    add("list", f"list the {one}s")
    _names(add("show", f"show {article} {one}"), one)
    update = add("update", f"change {article} {one}", f"Changes the keys that FILE has.\n{_FILES}")
    _names(update, one)
    add_option(update, "FILE", "YAML or JSON", dest="file")
    _names(add("delete", f"delete {one}s; runs keep their copies"), one, "+", f"the {one}s")
    _names(add("export", f"print {one}s as JSON Lines"), one, "*", f"only these {one}s; default: all")
    _import_options(add("import", f"create or update {one}s", _IMPORT))
    if one == "connector":
        test = add("test", "send a message to an agent")
        _names(test, one, "*")
        add_option(test, "--file FILE", "file of a connector that is not stored")
        add_option(test, "--message TEXT", "text of the message [Hello]", default="")
        types = add("types", "list the types of connectors, or show the config of one")
        add_option(types, "TYPE", "show the config of this type", dest="name", nargs="?")


def _run_actions(add: Callable[..., Any]) -> None:
    start = add("start", "run a scenario, or all scenarios of an experiment")
    add_option(start, "SCENARIO", "name or id", dest="scenario", nargs="?")
    for option, text in (
        ("connector", "connector of the agent"),
        ("persona", "persona of the simulated user; default: a neutral user"),
        ("experiment", "run all scenarios of this experiment instead"),
    ):
        add_option(start, f"--{option} NAME_OR_ID", text)
    listing = add("list", "list runs, newest first")
    _filters(listing)
    add_option(listing, "--messages", "with --json: include the conversations")
    add_option(listing, "--oldest-first", "oldest first")
    add_option(listing, "--limit N", "maximum number of runs [50]", type=whole_number(100_000), default=50)
    _run(add("show", "show a run: its conversation with the results of every turn"))
    _run(add("watch", "follow runs until they end"), "+")
    retry = add("retry", "repeat a run that ended in error")
    resume = add("resume", "resume a run that was interrupted")
    for parser in (retry, resume):
        _run(parser)
    for parser in (start, retry, resume):
        add_option(
            parser,
            "--watch",
            "follow the run until it ends; the default",
            action=argparse.BooleanOptionalAction,
            default=True,
        )
    _run(add("cancel", "end runs that are queued or running"), "+")
    _run(add("delete", "delete runs that have ended"), "+")
    export = add("export", "print runs as JSON Lines, with their turns")
    _run(export, "*", "only these runs; default: all that match the filters")
    _filters(export)
    _import_options(add("import", "import runs of evald or EvalStudio that have ended", _IMPORT))


def _run(parser: Any, count: str | None = None, text: str = "id of the run") -> None:
    add_option(parser, "RUN", text, dest="runs", nargs=count or 1)


STATUSES: Final[Sequence[str]] = ("queued", "running", "completed", "error", "interrupted", "cancelled")
VERDICTS: Final[Sequence[str]] = ("passed", "failed", "error", "skipped")


def _filters(parser: Any) -> None:
    group = parser.add_argument_group("filters; a run must match all of them")
    for one in ("scenario", "persona", "connector", "experiment"):
        add_option(group, f"--{one} NAME_OR_ID", f"runs of this {one}")
    add_option(
        group, "--execution N", "runs of this execution of an experiment", type=whole_number(2**62), default=0
    )
    add_option(group, "--status", "runs with this status", choices=STATUSES)
    add_option(group, "--verdict", "runs with this verdict", choices=VERDICTS)
    add_option(
        group, "--failed-evaluator NAME", "runs in which this evaluator failed or ended in error", default=""
    )
    for option, text in (("since", "runs queued then or later"), ("until", "runs queued before then")):
        add_option(
            group, f"--{option} TIME", f"{text}: 2026-01-31, 2026-01-31T12:00:00Z, or 30m, 24h, 7d ago"
        )
