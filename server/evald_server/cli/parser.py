"""The command line: commands, options and their help. Imports only modules that load fast."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from .access_parser import add_access_commands
from .options import (
    AddArgument,
    add_inside_options,
    add_plugins,
    add_repeatable,
    add_server_option,
    add_token_file,
    number_between,
    positive_seconds,
    whole_number,
)
from .stored_parser import add_stored_commands
from .suite_parser import add_suite_commands

_EPILOG = """\
examples:
  evald serve --listen 127.0.0.1:50051
  evald evaluate conversation.json -e regex:pattern='BK-[0-9]+' -e response-length
  evald evaluate conversations.jsonl --evaluators checks.toml --json > results.jsonl
  evald test suite.yaml --target staging --trials 4 --output report.xml
  evald types tool-use
  evald runs start "Booking flow" --connector staging
  evald calibrate cases.jsonl --judge-config judge.toml --min-accuracy 0.85
  evald demo

exit codes:
  0 passed   1 failed   2 wrong usage or config   3 inconclusive   4 server unreachable

environment:
  EVALD_SERVER=HOST:PORT  use this server; default: the command starts its own
  EVALD_TLS=1             use TLS; EVALD_CA_FILE, EVALD_CERT_FILE, EVALD_KEY_FILE: PEM files
  EVALD_TOKEN_FILE=FILE   file with the API key or token to send; or EVALD_TOKEN=KEY
  EVALD_DEBUG=1           show stack traces
  NO_COLOR=1              no colours
"""

_SERVE = """\
Serves gRPC, metrics and health over HTTP, and the console with the HTTP API. Prints
the addresses when it is ready.
SIGTERM or SIGINT drains: health becomes NOT_SERVING, new calls are refused, calls in
flight get EVALD_DRAIN_GRACE seconds to finish. A second signal stops at once.

Every setting is also an environment variable EVALD_<NAME> and a key of the
config file; the command line takes precedence over the environment, the environment
over the file. `evald serve --settings` lists them all.
"""

_SERVE_EXAMPLES = """\
examples:
  evald serve
  evald serve --listen 127.0.0.1:0 --http 127.0.0.1:0     pick free ports and print them
  evald serve --plugin ./my_checks.py --plugin acme_evals
  EVALD_DRAIN_GRACE=30 evald serve --config evald.toml
"""

_EVALUATE = """\
Evaluates conversations. FILE holds a JSON object with `messages` in OpenAI's
format, a JSON list of messages, or JSON Lines of such objects; - reads
standard input. Evaluates the last turn with the history before it; --turns
evaluates every turn.
"""

_EVALUATE_EXAMPLES = """\
evaluators:
  -e regex:pattern='BK-[0-9]+'                    a value is a string ...
  -e latency-budget:maxMs=3000                    ... or JSON
  -e 'contains:substrings=["yes","ok"],mode=any'
  -e ref=regex:pattern='BK-[0-9]+',mustMatch=true the result is named ref
  -e tool-use:expectations.0.name=book            dots address nested keys

examples:
  evald evaluate conversation.json --evaluators checks.toml
  cat conversations.jsonl | evald evaluate - -e is-json --json
  evald evaluate conversations.jsonl --turns -e length-within:max=120,unit=words
  evald evaluate conversations.jsonl --evaluators checks.toml --junit report.xml --html report.html
"""

_VALIDATE = """\
Checks the types and configs of evaluators without running them. The exit code is 2
if one is not valid.
"""

_CALIBRATE = """\
Runs a judge on cases that people have labelled and on evald's attack
suite, and measures how far its verdicts can be trusted: agreement with people,
order flips, self-consistency, successful attacks, false alarms, cost. Writes a
calibration card as JSON.

FILE holds labelled cases, JSON Lines or a JSON list, in the format of evald,
LLMBar, PandaLM or tau2-bench. Without FILE only the attack suite is run.
"""

_CALIBRATE_EXAMPLES = """\
examples:
  evald calibrate cases.jsonl --judge-config judge.toml --min-accuracy 0.85
  evald calibrate cases.jsonl -e llm-judge:model=gpt-4o-mini --repeats 3 --max-cost 2
  evald calibrate -e llm-judge --max-attack-success 0 --max-false-alarms 0.1

exit codes:
  0 gates met   1 a gate missed   2 wrong usage   3 too many errors   4 server unreachable
"""

_HEALTH = """\
Asks the HTTP port of a server on this machine for /healthz, or /readyz. Reads the
server's own settings, so it finds another port and TLS by itself.
The exit code is 0 for yes, 1 for no, 2 for wrong settings, 4 if nothing answers.
"""

_HEALTH_EXAMPLES = """\
examples:
  evald health                              the process lives
  evald health --ready                      it takes calls: not while it starts or drains
"""

_REMOTES = """\
Lists the remote evaluator instances of a server: their evaluators,
how they connected, their state, load and lease, and their last error.
"""

_REMOTES_EXAMPLES = """\
examples:
  evald remotes --server 127.0.0.1:50051
  evald remotes acme.pii-leak --json
  evald remotes --watch                     a line for every change, until Ctrl-C
"""

_DEMO = """\
Starts a server, evaluates recorded conversations of an airline's agent, first
one turn by turn through a session, then all as a batch, then runs a scenario
against an agent with tools, and shows verdicts, pass rates and the server's metrics.
"""

_CONFORMANCE = """\
Checks a remote evaluator, in any language, against the contract evald.plugin.v1
and reports the result of every rule. With --target it connects to a plugin that
listens; with --connect it is the server for a plugin that dials out.
"""

_CONFORMANCE_EXAMPLES = """\
examples:
  evald conformance --target 127.0.0.1:50061
  evald conformance --connect --listen 127.0.0.1:50051
  evald conformance --target 127.0.0.1:50061 --config 'acme.pii-leak={"kinds": ["iban"]}'
  evald conformance --target 127.0.0.1:50061 --slow 'acme.judge={"samples": 9}' --junit report.xml
  evald conformance --connect --ca ca.pem --cert server.pem --key server.key --token-file plugin.key
"""


_UNKNOWN_WORD = re.compile(
    r"argument (COMMAND|ACTION): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL
)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the closest command, action or option for a mistyped one."""

    _words: Sequence[str] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_defaults(parser=self)  # the parser of the given command or action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the known arguments, as argparse does. argparse calls this for commands and actions too."""
        self._words = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        match = _UNKNOWN_WORD.match(message)
        if match:
            what, tried = match[1].lower(), match[2]
            known = re.findall(r"[a-z]+", match[3])
            near = _nearest(tried, known) or f"{what}s are {', '.join(known)}"
            message = f"unknown {what} {tried!r}; {near}"
            before = self._words[: self._words.index(tried)]
            if before and before[0].startswith("-"):  # argparse took the option's value for the command
                message = f"{before[0]} must come after the {what}"
        self.exit(2, f"evald: {message}\n  hint: {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print an error about unknown arguments and exit with code 2."""
        tried = unknown[0].partition("=")[0]
        known = re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", self.format_usage())
        advice = f"it must come after {self.prog!r}" if tried in known else _nearest(tried, known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; {advice}' if advice else ''}")

    def print_help(self, file: Any = None) -> None:
        """Print the help. Raises OSError if it cannot be written; argparse would ignore the error."""
        stream = file or sys.stdout
        stream.write(self.format_help())
        stream.flush()


def _nearest(tried: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(tried, known, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else ""


def _expression_option(add: AddArgument, text: str) -> None:
    metavar = "[NAME=]TYPE[:KEY=VALUE,...]"
    add_repeatable(partial(add, "-e"), "--evaluator", metavar, "expressions", text)


def _evaluator_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("evaluators")
    _expression_option(group.add_argument, "an evaluator; repeatable")
    text = "a JSON, TOML or YAML file of evaluators; repeatable"
    add_repeatable(group.add_argument, "--evaluators", "FILE", "spec_files", text)


def _calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="*", help="labelled cases, JSON Lines or a JSON list")
    parser.add_argument(
        "--format",
        choices=("evald", "llmbar", "pandalm", "tau2"),
        help="format of the files; detected from the first record by default",
    )
    parser.add_argument(
        "--no-attacks", action="store_false", dest="attacks", help="do not run the attack suite"
    )
    parser.add_argument(
        "--card", metavar="FILE", default="calibration.json", help="JSON file for the card [calibration.json]"
    )
    parser.add_argument("--json", action="store_true", help="print the card instead of tables")
    judge = parser.add_argument_group("judge")
    judge.add_argument("--judge-config", metavar="FILE", help="a JSON or TOML file with one evaluator")
    _expression_option(
        judge.add_argument,
        "the judge on the command line; default: llm-judge with the server's default model",
    )
    asking = parser.add_argument_group("queries")
    asking.add_argument(
        "--repeats",
        metavar="N",
        type=whole_number(20),
        default=1,
        help="query labelled cases N times; 2 or more measure self-consistency",
    )
    asking.add_argument(
        "--concurrency",
        metavar="N",
        type=whole_number(256),
        default=8,
        help="maximum number of concurrent queries [8]",
    )
    asking.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        default=120.0,
        help="time limit of one query [120]",
    )
    share = number_between(0, 1)
    gates = parser.add_argument_group("gates", "a missed gate makes the exit code 1; shares are from 0 to 1")
    gates.add_argument("--min-accuracy", metavar="SHARE", type=share, help="minimum agreement with people")
    gates.add_argument(
        "--min-kappa",
        metavar="K",
        type=number_between(-1, 1),
        help="minimum agreement beyond chance, -1 to 1",
    )
    gates.add_argument(
        "--max-attack-success", metavar="SHARE", type=share, help="maximum share of successful attacks"
    )
    gates.add_argument(
        "--max-false-alarms", metavar="SHARE", type=share, help="maximum share of failed controls"
    )
    gates.add_argument(
        "--max-order-flips", metavar="SHARE", type=share, help="maximum share of pairs that flip"
    )
    gates.add_argument(
        "--max-cost",
        metavar="USD",
        type=number_between(0, 1e6),
        help="cost ceiling in US dollars; queries that would exceed it are left out",
    )
    gates.add_argument(
        "--max-errors",
        metavar="SHARE",
        type=share,
        default=0.05,
        help="maximum share of queries without a verdict; above it the exit code is 3 [0.05]",
    )
    add_inside_options(parser)


def _command(add: Callable[..., Parser], name: str, summary: str, text: str, examples: str = "") -> Parser:
    parser = add(
        name,
        help=summary,
        description=text,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=name)
    return parser


def build_parser() -> Parser:
    """Return the parser of `evald`."""
    parser = Parser(
        prog="evald",
        description="The evaluation service for AI agents: decides whether an agent's turn passes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    add = parser.add_subparsers(metavar="COMMAND", title="commands").add_parser

    serve = _command(add, "serve", "run the server", _SERVE, _SERVE_EXAMPLES)
    serve.add_argument("--listen", metavar="HOST:PORT", help="gRPC address; port 0 picks a free port")
    serve.add_argument(
        "--http", metavar="HOST:PORT", help="address of /metrics, /healthz, /readyz; '' for none"
    )
    serve.add_argument(
        "--web", metavar="HOST:PORT", help="address of the console and the HTTP API; '' for none"
    )
    serve.add_argument("--data-dir", metavar="DIR", help="directory for data that survives a restart")
    serve.add_argument("--config", metavar="FILE", help="settings file, TOML or JSON [EVALD_CONFIG]")
    add_plugins(
        serve.add_argument,
        "a Python file or an installed package with evaluators; repeatable",
        "a command that the `code` evaluator may run; repeatable",
    )
    serve.add_argument(
        "--settings", action="store_true", help="list all settings with their defaults and exit"
    )

    health = _command(
        add, "health", "ask whether the server of this machine lives", _HEALTH, _HEALTH_EXAMPLES
    )
    health.add_argument("--ready", action="store_true", help="ask whether it takes calls")
    health.add_argument(
        "--http", metavar="HOST:PORT", help="address of the HTTP port [EVALD_HTTP, 127.0.0.1:9464]"
    )
    health.add_argument(
        "--config", metavar="FILE", help="settings of the server, TOML or JSON [EVALD_CONFIG]"
    )

    evaluate = _command(add, "evaluate", "evaluate conversations", _EVALUATE, _EVALUATE_EXAMPLES)
    evaluate.add_argument(
        "files", metavar="FILE", nargs="+", help="JSON or JSON Lines; - reads standard input"
    )
    _evaluator_options(evaluate)
    evaluate.add_argument("--turns", action="store_true", help="evaluate every turn, through a session")
    evaluate.add_argument(
        "--json", action="store_true", help="JSON Lines: an object per conversation, then a summary"
    )
    evaluate.add_argument("--junit", metavar="FILE", help="write JUnit XML as well")
    evaluate.add_argument("--html", metavar="FILE", help="write an HTML report as well")
    evaluate.add_argument(
        "--timeout", metavar="SECONDS", type=positive_seconds, help="time limit of one evaluation"
    )
    add_inside_options(evaluate)

    types = _command(add, "types", "list the evaluators, or show one", "Lists the evaluators of a server.")
    types.add_argument("name", metavar="TYPE", nargs="?", help="show this type and the keys of its config")
    types.add_argument("--json", action="store_true", help="as JSON")
    add_inside_options(types)

    validate = _command(add, "validate", "check evaluators without running them", _VALIDATE)
    validate.add_argument("files", metavar="FILE", nargs="*", help="JSON, TOML or YAML files of evaluators")
    _evaluator_options(validate)
    validate.add_argument("--json", action="store_true", help="as JSON")
    add_inside_options(validate)

    _calibrate_options(
        _command(add, "calibrate", "measure how far a judge can be trusted", _CALIBRATE, _CALIBRATE_EXAMPLES)
    )
    remotes = _command(add, "remotes", "list remote evaluators", _REMOTES, _REMOTES_EXAMPLES)
    remotes.add_argument(
        "type", metavar="TYPE", nargs="?", default="", help="only instances that offer this type"
    )
    remotes.add_argument(
        "--watch", action="store_true", help="keep running and print a line for every change"
    )
    remotes.add_argument("--json", action="store_true", help="as JSON; with --watch as JSON Lines")
    add_server_option(remotes.add_argument, "the server [EVALD_SERVER, 127.0.0.1:50051]")

    conformance = _command(
        add, "conformance", "check a remote evaluator", _CONFORMANCE, _CONFORMANCE_EXAMPLES
    )
    conformance.add_argument("--target", metavar="HOST:PORT", help="address at which the plugin listens")
    conformance.add_argument("--connect", action="store_true", help="wait for a plugin that dials out")
    conformance.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="with --connect: address for the plugin to dial [127.0.0.1:50051]; port 0 picks a free port",
    )
    conformance.add_argument(
        "--wait",
        metavar="SECONDS",
        type=positive_seconds,
        help="time limit for reaching the plugin [10, with --connect 60]",
    )
    text = "config for a type that requires one; repeatable"
    add_repeatable(conformance.add_argument, "--config", "TYPE=JSON", "configs", text)
    conformance.add_argument(
        "--slow",
        metavar="TYPE=JSON",
        help="a type and a config with which an evaluation takes at least 5 s; tests deadlines, cancellation and pings",
    )
    conformance.add_argument("--tls", action="store_true", help="use TLS")
    conformance.add_argument(
        "--ca",
        metavar="FILE",
        help="CA of the plugin's certificate, PEM; with --connect the plugin must present a certificate",
    )
    conformance.add_argument("--cert", metavar="FILE", help="certificate to present to the plugin, PEM")
    conformance.add_argument("--key", metavar="FILE", help="key of that certificate, PEM")
    add_token_file(
        conformance.add_argument, "with --connect: file with the API key that the plugin must send"
    )
    conformance.add_argument("--json", action="store_true", help="as JSON")
    conformance.add_argument("--junit", metavar="FILE", help="write JUnit XML as well")

    command = partial(_command, add)
    add_access_commands(command)
    add_suite_commands(command)
    add_stored_commands(command)
    demo = _command(add, "demo", "run evald on recorded conversations", _DEMO)
    demo.add_argument(
        "--console", action="store_true", help="keep the server running, with the demo's run in the console"
    )
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. `command` is None if there is none; `words` are all arguments as given."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else list(argv)
    args: argparse.Namespace
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.refuse(unknown)
    args.words = words
    if getattr(args, "command", None) is None:
        args.command = "version" if args.version else None
        args.help_text = parser.format_help()
    return args
