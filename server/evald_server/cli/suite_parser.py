"""The options of the commands test, compare, history and convert. Imports nothing slow."""

from collections.abc import Callable
from typing import Any, Final

from .options import add_inside_options, add_repeatable, number_between, whole_number

_TEST: Final = """\
Runs suites of cases against agents or recorded answers, and reports whether
they passed. SUITE is a YAML, JSON or JSON Lines file. All results are stored: in
--data-dir by the command's own server, or by the server of --server.
"""

_TEST_EXAMPLES: Final = """\
examples:
  evald test checkout.yaml
  evald test checkout.yaml --target staging --trials 4 --min-passed 3
  evald test checkout.yaml --target baseline --target new     compares the two
  evald test checkout.yaml --transcripts answers.jsonl --output report.xml
  evald test checkout.yaml --tag smoke --exclude-tag slow
  evald test checkout.yaml --resume                           continues an interrupted run
  evald test --schema > suite.schema.json

exit codes; of several suites or targets the worst one:
  0 passed   1 failed   2 wrong usage   3 inconclusive   4 server unreachable
"""

_HISTORY: Final = """\
Shows the results of suites over time: pass rate and mean score of every stored suite
run, oldest first; with --case, the results of one case.
"""

_HISTORY_EXAMPLES: Final = """\
examples:
  evald history
  evald history checkout --target staging --limit 50
  evald history checkout --case refund
"""

_COMPARE: Final = """\
Checks whether a suite run is worse than another, case by case: PASS, WARN, BLOCK
or INCONCLUSIVE. BASE and NEW are ids of stored suite runs, `latest` or
`previous` of --suite, or .json or .jsonl files that evald test --output
has written. With --gate the rules of a file decide: GO, NO-GO or INCONCLUSIVE.
"""

_COMPARE_EXAMPLES: Final = """\
examples:
  evald compare --suite checkout                    the latest run with the one before
  evald compare --suite checkout --target staging --max-drop 0.02
  evald compare main.json branch.json --output comparison.md
  evald compare main.json branch.json --gate gate.yaml
  evald compare --gate gate.yaml                    every suite that the gate names

exit codes; of several suites the worst one:
  0 PASS, WARN, GO   1 BLOCK, NO-GO   2 wrong usage   3 INCONCLUSIVE   4 server unreachable
"""

_CONVERT: Final = """\
Converts a suite of AgentV or promptfoo, or an OpenAI grader with its items, to a
suite file of evald. `evald test` also reads these files directly. A key without a
counterpart in evald is refused, with its line and the reason.
"""

_CONVERT_EXAMPLES: Final = """\
examples:
  evald convert promptfooconfig.yaml > checkout.yaml
  evald convert grader.json --output checkout.yaml        with the items of grader.jsonl
"""


def add_suite_commands(command: Callable[..., Any]) -> None:
    """Add the commands. command: (name, summary, text, examples) -> parser of the command."""
    _test_options(command("test", "run suites of cases", _TEST, _TEST_EXAMPLES))
    _compare_options(
        command("compare", "check whether a suite run is worse than another", _COMPARE, _COMPARE_EXAMPLES)
    )
    history = command("history", "show the results of suites over time", _HISTORY, _HISTORY_EXAMPLES)
    history.add_argument(
        "suite", metavar="SUITE", nargs="?", default="", help="only runs of this suite; default: all suites"
    )
    history.add_argument("--target", metavar="NAME", default="", help="only runs against this target")
    history.add_argument("--case", metavar="ID", default="", help="show the results of this case")
    history.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1000),
        default=20,
        help="show the latest N suite runs [20]",
    )
    history.add_argument("--html", metavar="FILE", help="write an HTML page with plots as well")
    history.add_argument("--json", action="store_true", help="as JSON Lines")
    _stored_options(history)

    converting = command(
        "convert", "convert suites of other tools to evald's format", _CONVERT, _CONVERT_EXAMPLES
    )
    converting.add_argument("file", metavar="FILE", help="YAML, JSON or JSON Lines")
    converting.add_argument("-o", "--output", metavar="FILE", help="file to write; default: standard output")


def _test_options(parser: Any) -> None:
    parser.add_argument("files", metavar="SUITE", nargs="*", help="YAML, JSON or JSON Lines")
    targets = parser.add_argument_group("what is tested")
    add_repeatable(
        targets.add_argument,
        "--target",
        "NAME",
        "targets",
        "name of a connector: stored, in the suite, or in --connector; repeatable",
    )
    add_repeatable(
        targets.add_argument,
        "--connector",
        "FILE",
        "connectors",
        "file of connectors that are not stored; repeatable",
    )
    add_repeatable(
        targets.add_argument,
        "--transcripts",
        "FILE",
        "transcripts",
        "recorded answers: JSON Lines or CSV; repeatable",
    )
    how = parser.add_argument_group("options of the run; they take precedence over the suites'")
    how.add_argument("--trials", metavar="N", type=whole_number(100), help="number of times each case is run")
    how.add_argument("--min-passed", metavar="N", type=whole_number(100), help="trials that must pass [all]")
    how.add_argument(
        "--threshold",
        metavar="SHARE",
        type=number_between(0, 1),
        help="minimum share of cases that must pass [1]",
    )
    how.add_argument(
        "--concurrency", metavar="N", type=whole_number(256), help="maximum concurrent calls of agents [8]"
    )
    filters = parser.add_argument_group("filters")
    add_repeatable(
        filters.add_argument,
        "--tag",
        "TAG",
        "tags",
        "only cases with this tag, or one of several; repeatable",
    )
    add_repeatable(
        filters.add_argument,
        "--exclude-tag",
        "TAG",
        "exclude_tags",
        "leave out cases with this tag; repeatable",
    )
    add_repeatable(filters.add_argument, "--case", "ID", "ids", "only this case; repeatable")
    parser.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="latest",
        help="resume an interrupted suite run: the latest of the suite, or the one with this id",
    )
    parser.add_argument("--list", action="store_true", help="list the cases without running them")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of suite files and exit")
    reports = parser.add_argument_group("reports")
    add_repeatable(
        reports.add_argument,
        "--output",
        "FILE",
        "outputs",
        "write .json, .jsonl, .xml (JUnit), .md or .html; repeatable",
    )
    reports.add_argument("--github", action="store_true", help="print annotations for GitHub Actions")
    reports.add_argument(
        "--json", action="store_true", help="JSON Lines: an object per case, then the suite run"
    )
    _stored_options(parser)


def _compare_options(parser: Any) -> None:
    parser.add_argument(
        "base", metavar="BASE", nargs="?", default="previous", help="suite run to compare with [previous]"
    )
    parser.add_argument("new", metavar="NEW", nargs="?", default="latest", help="suite run to check [latest]")
    add_repeatable(
        parser.add_argument,
        "--suite",
        "NAME",
        "suites",
        "suite of `latest` and `previous`; repeatable",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        default="",
        help="only runs against this target; default: that of the latest run",
    )
    parser.add_argument(
        "--max-drop",
        metavar="SHARE",
        type=number_between(0, 1),
        help="maximum drop of the pass rate [0.05]",
    )
    parser.add_argument("--gate", metavar="FILE", help="file of rules that decide, YAML or JSON")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_repeatable(
        parser.add_argument, "--output", "FILE", "outputs", "write .md or .json as well; repeatable"
    )
    _stored_options(parser)


def _stored_options(parser: Any) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="directory in which the command's own server stores results [EVALD_DATA_DIR, .evald]",
    )
    add_inside_options(parser)
