"""The command line: commands, options and their help. Imports only modules that load fast."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from .options import (
    add_inside_options,
    add_option,
    add_plugins,
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
  -e contains:text=Oslo,reasoning=keep            also reads the model's reasoning

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
  evald calibrate cases.jsonl -e llm-judge:model=gpt-5.4-mini --repeats 3 --max-cost 2
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
how they connected, their state, load and lease, and their last error;
and the types that were offered once and that no instance offers now.
"""

_REMOTES_EXAMPLES = """\
examples:
  evald remotes --server 127.0.0.1:50051
  evald remotes acme.pii-leak --json
  evald remotes --watch                     a line for every change, until Ctrl-C
  evald remotes forget acme.pii-leak        it is not offered any more, and will not be
"""

_DEMO = """\
Starts a server, evaluates recorded conversations of an airline's agent, first
one turn by turn through a session, then all as a batch, then runs a scenario
against an agent with tools, and shows verdicts, pass rates and the server's metrics.
"""

_CONFORMANCE = """\
Checks a remote evaluator, in any language, against the contract evald.plugin.v1
and reports the result of every rule. With --target it connects to a plugin that
listens; with --attach it is the server for a plugin that dials out.
"""

_CONFORMANCE_EXAMPLES = """\
examples:
  evald conformance --target 127.0.0.1:50061
  evald conformance --attach --listen 127.0.0.1:50051
  evald conformance --target 127.0.0.1:50061 --config 'acme.pii-leak={"kinds": ["iban"]}'
  evald conformance --target 127.0.0.1:50061 --slow 'acme.judge={"samples": 9}' --junit report.xml
  evald conformance --attach --ca ca.pem --cert server.pem --key server.key --token-file plugin.key
"""

_KEYS = """\
Makes, lists and revokes API keys. The file holds digests only: a key is shown
once, when it is made. A running server reads the file again when it changes.
"""

_KEYS_EXAMPLES = """\
examples:
  evald keys create --keys-file keys.toml --principal ci --role caller
  evald keys create --keys-file keys.toml --principal pii-plugin --role plugin --types 'acme.*'
  evald keys list --keys-file keys.toml
  evald keys revoke --keys-file keys.toml 7f3k2m9q4x1z

roles:
  caller   evaluates, and runs scenarios          viewer   reads what is stored, and metrics
  plugin   offers evaluators                      admin    writes connectors and personas, reads all
  ingest   sends traces
"""

_CERTS = """\
Makes a CA and certificates signed by it, with the program openssl. For trying
TLS out only: a production server needs a certificate from the CA of its
organisation.
"""

_CERTS_EXAMPLES = """\
examples:
  evald certs dev certs
  evald certs dev certs --name evald.example.org --name 10.0.0.7 --days 90
"""

_UNKNOWN_WORD = re.compile(
    r"argument (COMMAND|ACTION): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL
)

# Options of other commands for reports, where a command has --output.
_REPORTS: Final = {"--html": "FILE.html", "--junit": "FILE.xml"}


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
        from evald_server.redaction import without_keys

        match = _UNKNOWN_WORD.match(message)
        if match:
            what, tried = match[1].lower(), match[2]
            known = re.findall(r"[a-z]+", match[3])
            near = _nearest(tried, known) or f"{what}s are {', '.join(known)}"
            message = f"unknown {what} {tried!r}; {near}"
            before = self._words[: self._words.index(tried)]
            if before and before[0].startswith("-"):  # argparse took the option's value for the command
                message = f"{before[0]} must come after the {what}"
        self.exit(2, f"evald: {without_keys(message)}\n  hint: {self.prog} --help\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print an error about unknown arguments and exit with code 2."""
        tried = unknown[0].partition("=")[0]
        known = re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", self.format_usage())
        if tried in known:
            advice = f"it must come after {self.prog!r}"
        elif tried in _REPORTS and "--output" in known:
            advice = f"write --output {_REPORTS[tried]}"
        else:
            advice = _nearest(tried, known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; {advice}' if advice else ''}")

    def print_help(self, file: Any = None) -> None:
        """Print the help. Raises OSError if it cannot be written; argparse would ignore the error."""
        stream = file or sys.stdout
        stream.write(self.format_help())
        stream.flush()


def _nearest(tried: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(tried, known, n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else ""


def _expression_option(parser: Any, text: str) -> None:
    add_option(parser, "-e --evaluator [NAME=]TYPE[:KEY=VALUE,...]", text, repeated="expressions")


def _evaluator_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("evaluators")
    _expression_option(group, "an evaluator; repeatable")
    text = "a JSON, TOML or YAML file of evaluators; repeatable"
    add_option(group, "--evaluators FILE", text, repeated="spec_files")


def _calibrate_options(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "FILE", "labelled cases, JSON Lines or a JSON list", dest="files", nargs="*")
    add_option(
        parser,
        "--format",
        "format of the files; detected from the first record by default",
        choices=("evald", "llmbar", "pandalm", "tau2"),
    )
    add_option(parser, "--no-attacks", "do not run the attack suite", action="store_false", dest="attacks")
    add_option(parser, "--card FILE", "JSON file for the card [calibration.json]", default="calibration.json")
    add_option(parser, "--json", "print the card instead of tables")
    judge = parser.add_argument_group("judge")
    add_option(judge, "--judge-config FILE", "a JSON or TOML file with one evaluator")
    _expression_option(
        judge, "the judge on the command line; default: llm-judge with the server's default model"
    )
    asking = parser.add_argument_group("queries")
    add_option(
        asking,
        "--repeats N",
        "query labelled cases N times; 2 or more measure self-consistency",
        type=whole_number(20),
        default=1,
    )
    add_option(
        asking,
        "--concurrency N",
        "maximum number of concurrent queries [8]",
        type=whole_number(256),
        default=8,
    )
    add_option(
        asking, "--timeout SECONDS", "time limit of one query [120]", type=positive_seconds, default=120.0
    )
    share = number_between(0, 1)
    gates = parser.add_argument_group("gates", "a missed gate makes the exit code 1; shares are from 0 to 1")
    add_option(gates, "--min-accuracy SHARE", "minimum agreement with people", type=share)
    add_option(gates, "--min-kappa K", "minimum agreement beyond chance, -1 to 1", type=number_between(-1, 1))
    add_option(gates, "--max-attack-success SHARE", "maximum share of successful attacks", type=share)
    add_option(gates, "--max-false-alarms SHARE", "maximum share of failed controls", type=share)
    add_option(gates, "--max-order-flips SHARE", "maximum share of pairs that flip", type=share)
    add_option(
        gates,
        "--max-cost USD",
        "cost ceiling in US dollars; queries that would exceed it are left out",
        type=number_between(0, 1e6),
    )
    add_option(
        gates,
        "--max-errors SHARE",
        "maximum share of queries without a verdict; above it the exit code is 3 [0.05]",
        type=share,
        default=0.05,
    )
    add_inside_options(parser)


def _certs_options(certs: Parser) -> None:
    actions = certs.add_subparsers(metavar="ACTION", title="actions", dest="action", required=True)
    dev = actions.add_parser("dev", help="make a CA, a server certificate and a client certificate")
    add_option(dev, "DIR", "directory for the files", dest="directory")
    name = "host name or address of the server, in addition to localhost and this machine's name; repeatable"
    add_option(dev, "--name HOST", name, repeated="names")
    add_option(
        dev, "--days DAYS", "validity of the certificates in days [30]", type=_count_of_days, default=30
    )


def _keys_options(keys: Parser) -> None:
    actions = keys.add_subparsers(metavar="ACTION", title="actions", dest="action", required=True)
    create = actions.add_parser("create", help="make a key, and show it once")
    add_option(
        create,
        "--principal NAME",
        "name of the caller; several keys may have the same principal",
        required=True,
    )
    add_option(
        create,
        "--role ROLE",
        "caller, plugin, viewer, admin or ingest; repeatable",
        action="append",
        dest="roles",
        required=True,
        choices=("caller", "plugin", "viewer", "admin", "ingest"),
    )
    types = "for the role plugin: evaluator types that it may offer; repeatable"
    add_option(create, "--types TYPE|PREFIX*", types, repeated="types")
    add_option(create, "--expires DAYS", "lifetime: 30d, or never [90d]", type=_days, default=90)
    add_option(create, "--rate N", "maximum calls per second", type=float)
    add_option(create, "--in-flight N", "maximum concurrent calls, sessions and watches", type=int)
    add_option(
        create, "--judge-usd-per-day USD", "maximum cost of judges per day (UTC), in US dollars", type=float
    )
    add_option(create, "--note TEXT", "shown by `evald keys list`", default="")
    listed = actions.add_parser("list", help="list all keys, without their secrets")
    add_option(
        listed,
        "--data-dir DIR",
        "the server's data directory; adds the cost of judges today [EVALD_DATA_DIR]",
    )
    add_option(listed, "--json", "as JSON")
    revoke = actions.add_parser("revoke", help="revoke a key: running servers refuse it within a second")
    add_option(revoke, "ID", "the key's id, or the whole key", dest="id")
    for action in (create, listed, revoke):
        add_option(action, "--keys-file FILE", "the keys file [EVALD_KEYS_FILE]")


def _days(text: str) -> int | None:
    """Parse a lifetime in days: 90d, or never (None)."""
    return None if text == "never" else _count_of_days(text, ", or never")


def _count_of_days(text: str, others: str = "") -> int:
    """Parse a number of days: 30 or 30d. others: further values that the option takes, for the error."""
    number = text.removesuffix("d")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 3650:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 1d to 3650d{others}")
    return int(number)


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
    add_option(parser, "--version", "print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    command = partial(_command, commands.add_parser)

    serve = command("serve", "run the server", _SERVE, _SERVE_EXAMPLES)
    add_option(serve, "--listen HOST:PORT", "gRPC address; port 0 picks a free port")
    add_option(serve, "--http HOST:PORT", "address of /metrics, /healthz, /readyz; '' for none")
    add_option(serve, "--web HOST:PORT", "address of the console and the HTTP API; '' for none")
    add_option(serve, "--data-dir DIR", "directory for data that survives a restart")
    add_option(serve, "--config FILE", "settings file, TOML or JSON [EVALD_CONFIG]")
    add_plugins(
        serve,
        "a Python file or an installed package with evaluators; repeatable",
        "a command that the `code` evaluator may run; repeatable",
    )
    add_option(serve, "--settings", "list all settings with their defaults and exit")

    health = command("health", "ask whether the server of this machine lives", _HEALTH, _HEALTH_EXAMPLES)
    add_option(health, "--ready", "ask whether it takes calls")
    add_option(health, "--http HOST:PORT", "address of the HTTP port [EVALD_HTTP, 127.0.0.1:9464]")
    add_option(health, "--config FILE", "settings of the server, TOML or JSON [EVALD_CONFIG]")

    evaluate = command("evaluate", "evaluate conversations", _EVALUATE, _EVALUATE_EXAMPLES)
    add_option(evaluate, "FILE", "JSON or JSON Lines; - reads standard input", dest="files", nargs="+")
    _evaluator_options(evaluate)
    add_option(evaluate, "--turns", "evaluate every turn, through a session")
    add_option(evaluate, "--json", "JSON Lines: an object per conversation, then a summary")
    add_option(evaluate, "--junit FILE", "write JUnit XML as well")
    add_option(evaluate, "--html FILE", "write an HTML report as well")
    add_option(evaluate, "--timeout SECONDS", "time limit of one evaluation", type=positive_seconds)
    add_inside_options(evaluate)

    types = command("types", "list the evaluators, or show one", "Lists the evaluators of a server.")
    add_option(types, "TYPE", "show this type and the keys of its config", dest="name", nargs="?")
    add_option(types, "--json", "as JSON")
    add_inside_options(types)

    validate = command("validate", "check evaluators without running them", _VALIDATE)
    add_option(validate, "FILE", "JSON, TOML or YAML files of evaluators", dest="files", nargs="*")
    _evaluator_options(validate)
    add_option(validate, "--json", "as JSON")
    add_inside_options(validate)

    _calibrate_options(
        command("calibrate", "measure how far a judge can be trusted", _CALIBRATE, _CALIBRATE_EXAMPLES)
    )
    remotes = command("remotes", "list remote evaluators", _REMOTES, _REMOTES_EXAMPLES)
    add_option(
        remotes,
        "TYPE",
        "only instances that offer this type; after `forget`, the type to remove, which no instance offers",
        dest="wanted",
        nargs="*",
    )
    add_option(remotes, "--version VERSION", "with forget: only this version", default="")
    add_option(remotes, "--watch", "keep running and print a line for every change")
    add_option(remotes, "--json", "as JSON; with --watch as JSON Lines")
    add_server_option(remotes, "the server [EVALD_SERVER, 127.0.0.1:50051]")

    conformance = command("conformance", "check a remote evaluator", _CONFORMANCE, _CONFORMANCE_EXAMPLES)
    add_option(conformance, "--target HOST:PORT", "address at which the plugin listens")
    add_option(conformance, "--attach --connect", "wait for a plugin that dials out (--connect is the same)")
    add_option(
        conformance,
        "--listen HOST:PORT",
        "with --attach: address for the plugin to dial [127.0.0.1:50051]; port 0 picks a free port",
    )
    add_option(
        conformance,
        "--wait SECONDS",
        "time limit for reaching the plugin [10, with --attach 60]",
        type=positive_seconds,
    )
    text = "config for a type that requires one; repeatable"
    add_option(conformance, "--config TYPE=JSON", text, repeated="configs")
    add_option(
        conformance,
        "--slow TYPE=JSON",
        "a type and a config with which an evaluation takes at least 5 s; tests deadlines, cancellation and pings",
    )
    add_option(conformance, "--tls", "use TLS")
    add_option(
        conformance,
        "--ca FILE",
        "CA of the plugin's certificate, PEM; with --attach and no --token-file the plugin must present one",
    )
    add_option(conformance, "--cert FILE", "certificate to present to the plugin, PEM")
    add_option(conformance, "--key FILE", "key of that certificate, PEM")
    add_token_file(conformance, "with --attach: file with the API key that the plugin must send")
    add_option(conformance, "--json", "as JSON")
    add_option(conformance, "--junit FILE", "write JUnit XML as well")

    _certs_options(command("certs", "make test certificates for TLS", _CERTS, _CERTS_EXAMPLES))
    _keys_options(command("keys", "make, list and revoke API keys", _KEYS, _KEYS_EXAMPLES))
    add_suite_commands(command)
    add_stored_commands(command)
    demo = command("demo", "run evald on recorded conversations", _DEMO)
    add_option(demo, "--console", "keep the server running, with the demo's run in the console")
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
